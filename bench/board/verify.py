"""Check of a store: every file whole and unaltered, rows that agree with their configuration.

Numbers that agree with each other pass. Only to run rows again tells whether they are true.
"""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.execution.compare import Reproduction
from fedbench.bench.execution.execute import OnRound, derived
from fedbench.bench.execution.run import reproduce
from fedbench.bench.experiment.code import missing_code
from fedbench.bench.results.chance import MARKS_FILE
from fedbench.bench.results.store.files import PACKED, Pack, parse_record, read_error
from fedbench.bench.results.store.row import Row, Trial
from fedbench.bench.results.store.schema import read_table
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system import tensor_files
from fedbench.bench.system.checksums import parse_json
from fedbench.bench.system.cores import usable_cores
from fedbench.bench.system.errors import ConfigError, FedbenchError, StoreError
from fedbench.bench.training.checkpoint import read_checkpoint
from fedbench.bench.training.history import History

_Read = Callable[[Path], object]
_THREADS = min(8, usable_cores())


@dataclass(frozen=True)
class FileKind:
    """Outcome for the files of one kind."""

    kind: str
    files: int
    damaged: int
    bytes: int


@dataclass(frozen=True)
class Damage:
    """A damaged file."""

    file: str
    kind: str
    problem: str
    remedy: str


@dataclass(frozen=True)
class Verification:
    """Outcome of a check of a store."""

    store: str
    kinds: tuple[FileKind, ...]
    damaged: tuple[Damage, ...]
    without_curve: tuple[str, ...]  # row ids of runs that had rounds, whose curve the store lacks
    seconds: float
    reruns: tuple[Reproduction, ...] = ()  # of the rows that were run again

    @property
    def ok(self) -> bool:
        """True if no file is damaged, and no row that was run again differs."""
        return not self.damaged and not self.differ

    @property
    def differ(self) -> tuple[str, ...]:
        """Row ids of runs that gave other results."""
        return tuple(again.run_id for again in self.reruns if again.verdict == "different")

    @property
    def bytes(self) -> int:
        """Size of all files that were read."""
        return sum(kind.bytes for kind in self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench verify --json`."""
        plain = asdict(replace(self, reruns=()))
        reruns = [again.as_dict() for again in self.reruns]
        return {"ok": self.ok, **plain, "bytes": self.bytes, "reruns": reruns}


def verify(
    store: Store | Path | str | None = None,
    *,
    rerun: int = 0,
    data_name: str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_rerun: Callable[[str], AbstractContextManager[OnRound]] | None = None,
) -> Verification:
    """Read every file of a store and check it, then run some rows again; nothing is written.

    Rows of this benchmark version must have the identities and the columns that follow from their
    configuration. Other processes may work on the store meanwhile: a file that they delete is left
    out.

    Args:
        store: see `open_store`.
        rerun: how many rows to run again, which the ids of all rows choose; 0 if a file is damaged.
        data_name: data set of these rows if it has moved, as for `reproduce`.
        data_dir: cache of data sets.
        workers: processes that train clients.
        device: `auto`, `cpu` or `cuda`.
        on_rerun: takes the id of each row that is run again, and returns a context whose value is
            called after its rounds.

    Raises:
        StoreError: for a store that is not there, or a folder in it that may not be read.
            Also for a row that cannot be run again here.

    >>> from fedbench.bench.testing import demo_store
    >>> verify(demo_store()).ok
    True
    """
    if rerun < 0:
        raise ConfigError(f"--rerun must be 0 or more (got {rerun})")
    began = time.monotonic()
    store = open_store(store).require()
    root = store.root
    files = list(_files(root))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in _KINDS}
    damaged = []
    with ThreadPoolExecutor(_THREADS) as threads:
        for (kind, path), outcome in zip(files, threads.map(_outcome, files), strict=True):
            if outcome is None:
                continue
            size, problem = outcome
            counts[kind].update(files=1, damaged=int(bool(problem)), bytes=size)
            if problem:
                damaged.append(Damage(str(path), kind, problem, _KINDS[kind][2]))
    kinds = (FileKind(kind, **count) for kind, count in counts.items() if count)
    order = sorted(damaged, key=lambda damage: damage.file)
    reruns = []
    for run_id in chosen(_repeatable(store), rerun) if rerun and not damaged else ():
        with nullcontext() if on_rerun is None else on_rerun(run_id) as on_round:
            places: dict[str, Any] = {"data_name": data_name, "data_dir": data_dir}
            places |= {"workers": workers, "device": device, "on_round": on_round}
            try:
                reruns.append(reproduce(run_id, store, **places))
            except FedbenchError as err:
                why = f"no file is damaged, but run {run_id} cannot be run again here: {err}"
                raise StoreError(why) from err
    return Verification(
        store=str(root),
        kinds=tuple(kinds),
        damaged=tuple(order),
        without_curve=_without_curve(store),
        seconds=time.monotonic() - began,
        reruns=tuple(reruns),
    )


def _repeatable(store: Store) -> list[str]:
    """Return the ids of rows of this version that ended, and whose code is installed here."""
    current = (row for row in store.rows() if row.benchmark_version == BENCHMARK_VERSION)
    ended = (row for row in current if row.status != "error" and not missing_code(row.code))
    return sorted({row.row_id for row in ended})


def chosen(run_ids: Sequence[str], number: int) -> list[str]:
    """Return `number` of sorted row ids, by a hash of all, so that nobody picks them one by one."""
    every = hashlib.sha256(" ".join(run_ids).encode()).hexdigest()

    def place(run_id: str) -> str:
        return hashlib.sha256(f"{every} {run_id}".encode()).hexdigest()

    return sorted(run_ids, key=place)[:number]


def _without_curve(store: Store) -> tuple[str, ...]:
    lost = []
    for row in store.rows():
        with suppress(StoreError):  # one that cannot be read is among the damaged files
            if row.rounds_done and row.status != "error" and not store.curve(store.key(row)):
                lost.append(row.row_id)
    return tuple(sorted(lost))


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file that a result may depend on, with its kind."""

    def unreadable(cause: OSError) -> None:
        if not isinstance(cause, FileNotFoundError):
            raise read_error(Path(cause.filename), cause) from cause

    for folder, folders, names in os.walk(root, onerror=unreadable, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for path in (Path(folder, name) for name in sorted(names) if name[0] != "."):
            place = path.relative_to(root).as_posix()
            kinds = (kind for kind, entry in _KINDS.items() if fnmatchcase(place, entry[0]))
            if (kind := next(kinds, None)) is not None:
                yield kind, path


def _outcome(file: tuple[str, Path]) -> tuple[int, str] | None:
    """Return the size of a file, and its damage in one line or ""; None if it has just gone."""
    kind, path = file
    try:
        size = path.stat().st_size
        _KINDS[kind][1](path)
        return size, ""
    except FileNotFoundError:
        return None
    except OSError as err:
        return 0, f"cannot be read ({err.strerror or err})"
    except (FedbenchError, ValueError, KeyError, TypeError) as err:
        text = " ".join(str(err).split()) or type(err).__name__
        return size, text.removeprefix(f"{str(path)!r}: ").removeprefix(f"{path}: ")


def _pack(path: Path) -> None:
    pack = Pack(path.read_bytes())
    pack.check()
    for row in pack.rows.values():
        _check_row(row)


def _check_row(row: Row) -> None:
    if row.benchmark_version == BENCHMARK_VERSION and not missing_code(row.code):
        for name, value in derived(row.config, row.dataset_revision).items():
            if getattr(row, name) != value:
                raise StoreError(
                    f"{name} is {getattr(row, name)} but its configuration gives {value}"
                )


def _trial(path: Path) -> None:
    trial = parse_record(path, path.read_bytes(), Trial)
    if trial.study_id != path.parent.name:
        raise StoreError(f"it belongs to study {trial.study_id}")


def _parquet(path: Path) -> None:
    read_table(path.read_bytes())


def _json(path: Path) -> None:
    parse_json(path.read_bytes())


_AGAIN = "delete it; it is made again when it is needed"
_TUNE = "delete it; the same `fedbench tune` command makes it again"
_RUN = (
    "delete it: an unfinished run goes on without it; to have it again of a finished one, delete"
    " its row and its folder and run it again"
)
_ROUNDS = "delete its folder; an unfinished run starts again"
_KINDS: dict[str, tuple[str, _Read, str]] = {
    "rows": (
        "rows/*.parquet",
        lambda path: _check_row(parse_record(path, path.read_bytes(), Row)),
        "delete it; the same command makes this run again, or `fedbench merge` brings it back from"
        " the store that it came from",
    ),
    "packed runs": (f"{PACKED}/*.parquet", _pack, "fetch it again from where it came from"),
    "trials": ("trials/*/*.parquet", _trial, _TUNE),
    "marks": (MARKS_FILE, _json, _AGAIN),
    "studies": ("trials/*/study.json", _json, _TUNE),
    "rungs": ("trials/*/bracket-*/*.json", _json, _TUNE.replace("it;", "the folder it is in;")),
    "best values": ("trials/*/best.yaml", load_yaml, _TUNE),
    "curves": ("cells/*/curve.parquet", _parquet, _RUN),
    "checkpoints": ("cells/*/round-*.safetensors", read_checkpoint, _RUN),
    "clients": ("cells/*/clients/*.safetensors", tensor_files.read, _RUN),
    "partitions": ("cells/*/partition.safetensors", tensor_files.read, _AGAIN),
    "rounds": ("cells/*/history.jsonl", lambda path: History(path.parent).read(), _ROUNDS),
    "figures": ("cells/*/geometry.json", _json, "run `fedbench figures` for this run again"),
    "leaderboard": ("leaderboard.parquet", _parquet, _AGAIN),
}
"""By the kind of a file: its place in a store, what reads it and raises if it is damaged, and the
remedy."""
