"""Merging of stores, and bitwise comparison of rows of the same run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes, copy_folder, write_error

CIRCUMSTANCES = frozenset(
    {
        "schema_version",
        "preset",
        "tuned",
        "study_id",
        "selection",
        "wall_seconds",
        "train_seconds",
        "peak_memory_bytes",
        "resumes",
        "started_at",
        "finished_at",
        "git_sha",
        "package_version",
        "env_json",
        "hardware",
        "device",
        "platform",
        "platform_json",
        "argv",
        "grid",
        "scaled_json",
        "measured_from",
        "dataset",  # the name of its folder; the revision identifies the images
        "config_json",  # has that name too; the ids cover the rest of it
    }
)
"""Columns of provenance and cost, in which rows of the same run may differ."""


@dataclass(frozen=True)
class Difference:
    """A column (or a key of `metrics_json`) in which two rows of one run are not equal."""

    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.name} {self.first} and {self.second}"


def results_of(row: Row) -> dict[str, Any]:
    """Return the results of a row by name, with the keys of `metrics_json` among them."""
    values = {name: value for name, value in dict(row).items() if name not in CIRCUMSTANCES}
    values.update(json.loads(values.pop("metrics_json") or "{}"))
    return values


def differences(first: Row, second: Row) -> list[Difference]:
    """Compare the results of two rows to the last bit.

    Of rows of two schema versions, a column that is null in the older one is not compared: the
    older schema may not have had it.
    """
    one, other = results_of(first), results_of(second)
    if first.schema_version != second.schema_version:
        older = min(first, second, key=lambda row: row.schema_version)
        for name in [name for name in Row.model_fields if getattr(older, name) is None]:
            one.pop(name, None)
            other.pop(name, None)
    return [
        Difference(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


_SHOWN = 3
_SETTINGS = ("spec", "space", "sampler", "seed", "seeds_per_trial", "data", "benchmark")
"""Keys of the description that two studies of one name must share."""
_TRIAL = ("status", "seeds", "params", "objective", "watched")


@dataclass
class Merged:
    """Outcome of a merge, or of a dry run of it.

    Attributes:
        rows_added: rows that the target did not have.
        rows_replaced: failed rows that gave way to finished ones.
        rows_same: rows that both had, with equal results.
        trials_added, trials_same: the same for trials of studies.
        problems: one line per file that could not be read and was left out.
    """

    rows_added: int = 0
    rows_replaced: int = 0
    rows_same: int = 0
    trials_added: int = 0
    trials_same: int = 0
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Output of `fedbench merge --json`."""
        return asdict(self)


def merge(
    sources: Sequence[Store | Path | str],
    store: Store | Path | str | None = None,
    *,
    dry_run: bool = False,
) -> Merged:
    """Copy rows, curves, checkpoints and studies of other stores into one.

    Nothing is written before everything has been compared. Rows are the same if their results are
    equal to the last bit; they may differ in `CIRCUMSTANCES`, and the row of the target stays. Each
    cell and study of the target is locked and compared again before it is written.

    Args:
        sources: stores that stay as they are.
        store: the target, which need not exist; see `open_store`.
        dry_run: compare and count only.

    Raises:
        StoreError: for a source that is not there, for rows, trials or studies that contradict
            each other, for a target that cannot be written, or if another process works on the same
            run or study there; the same call again then does the rest.
    """
    target, done, conflicts = open_store(store), Merged(), []
    rows = {row.row_id: (row, target) for row in target.rows()}
    new: dict[str, tuple[Row, Store]] = {}
    studies = _Studies(target)
    for source in map(open_store, sources):
        if not source.root.is_dir():
            raise StoreError(f"there is no store at {str(source.root)!r}; give folders of stores")
        done.problems += source.problems()
        for row in source.rows():
            known = rows.get(row.row_id)
            if known is None or (known[0].status == "error" and row.status != "error"):
                if row.row_id not in new:
                    done.rows_added += known is None
                    done.rows_replaced += known is not None
                rows[row.row_id] = new[row.row_id] = (row, source)
            elif row.status == "error" or not (different := differences(known[0], row)):
                done.rows_same += 1
            else:
                where = f"{known[1].root} and {source.root}"
                conflicts.append(f"row {row.row_id} has {different[0]} in {where}")
        conflicts += studies.add(source, done)
    if conflicts:
        more = f", and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        raise StoreError(
            f"the stores contradict each other: {'; '.join(conflicts[:_SHOWN])}{more}; nothing was"
            " written. Delete the one that you do not trust, or keep the stores apart"
        )
    if not dry_run:
        target.check_writable()
        for study_id, files in studies.files.items():
            with _locked(target, "study", study_id):
                for name, origin in files.items():
                    atomic_write_bytes(target.root / name, origin.read_bytes())
        for row_id, (row, source) in new.items():
            with _locked(target, "run", row_id):
                now = target.finished(row_id)  # it may have been finished meanwhile
                if now is not None and (different := differences(now, row)):
                    raise StoreError(
                        f"row {row_id} has {different[0]} in {target.root}, just written, and"
                        f" {source.root}; delete the one that you do not trust"
                    )
                if now is None:
                    _copy_cell(source.cell_dir(row_id), target.cell_dir(row_id), row)
                    target.write_row(row)
        target.refresh()
    return done


@contextmanager
def _locked(target: Store, kind: str, name: str) -> Iterator[None]:
    with target.lock(name) as mine:
        if not mine:
            raise StoreError(
                f"{kind} {name} is being worked on by another process in {str(target.root)!r}; wait"
                " for it and merge again: what was merged so far stays"
            )
        yield


class _Studies:
    """Studies of the target and of the sources so far.

    Attributes:
        files: sources of the files to copy, by study and by path below the target.
    """

    def __init__(self, target: Store) -> None:
        self.files: dict[str, dict[Path, Path]] = {}
        self._meta: dict[str, Mapping[str, Any]] = {}
        self._trials: dict[str, dict[int, Mapping[str, Any]]] = {}
        for study_id in target.studies():
            self._meta[study_id] = target.study(study_id) or {}
            self._trials[study_id] = {t["number"]: t for t in target.trials(study_id)}

    def add(self, source: Store, done: Merged) -> list[str]:
        """Add the studies of a source; return a line for every contradiction."""
        conflicts = []
        for study_id in source.studies():
            try:
                meta = source.study(study_id) or {}
            except StoreError:  # one of the source's problems
                continue
            known = self._meta.setdefault(study_id, meta)
            if known and meta and any(known.get(key) != meta.get(key) for key in _SETTINGS):
                conflicts.append(f"study {study_id} has other settings in {source.root}")
                continue
            conflicts += self._add_trials(source, study_id, done)
        return conflicts

    def _add_trials(self, source: Store, study_id: str, done: Merged) -> list[str]:
        conflicts = []
        folder, trials = Path("trials") / study_id, self._trials.setdefault(study_id, {})
        before = len(trials)
        for trial in source.trials(study_id):
            known, name = trials.get(trial["number"]), f"{trial['number']}.parquet"
            if known is None or (known["status"] == "error" and trial["status"] != "error"):
                done.trials_added += 1
                trials[trial["number"]] = trial
                self.files.setdefault(study_id, {})[folder / name] = source.root / folder / name
            elif trial["status"] == "error" or all(known[key] == trial[key] for key in _TRIAL):
                done.trials_same += 1
            else:
                conflicts.append(f"trial {trial['number']} of {study_id} differs in {source.root}")
        if len(trials) > before:  # the description and the best values of the longer study
            for name in ("study.json", "best.yaml"):
                if (source.root / folder / name).exists():
                    self.files[study_id][folder / name] = source.root / folder / name
        return conflicts


def _copy_cell(source: Path, target: Path, row: Row) -> None:
    """Copy curve and checkpoints of a run; its row is written later, so a torn copy is redone.

    Leftovers of an unfinished attempt in the target are deleted. Checkpoints of a failed run are
    not copied: it can be tried again in its store.
    """
    if row.status == "error" or not source.is_dir():
        return
    try:
        for left in target.iterdir():  # it has its lock at least
            if left.name != "lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    except OSError as cause:
        raise write_error(target, cause) from cause
    copy_folder(source, target)
