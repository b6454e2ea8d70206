"""Result store: one immutable Parquet file per finished run, everything else derived.

```
rows/<row_id>.parquet              the truth, one file per finished cell
rows/<row_id>@<hash>.parquet       replicas: other results of that run, from other platforms
packed/*.parquet                   further runs with their rounds, many in a file (`files.py`)
trials/<study_id>/<number>.parquet one file per finished trial; study.json beside them
trials/<study_id>/bracket-<n>/   records and decisions of a search by rungs, as JSON with a checksum
cells/<row_id>/                    checkpoints, curve.parquet and the lock of a cell
cells/<row_id>@<hash>/             the same of a replica
leaderboard.parquet                all rows, sorted (`frame.py`); may be deleted; makes reading fast
at-chance.json                     terms of rows' losses that ended at chance; derived likewise
```

Files appear whole or not at all (`bench.system.files`), so any number of processes may write at
once. Nothing is created before the first write; reading an absent store gives an empty result.
Whatever writes raises a StoreError if the store cannot be written.
"""

import logging
import math
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from fedbench.bench.results.store.files import (
    MOST_BYTES,
    THREADS,
    check_points,
    list_folder,
    load,
    packs,
    read_error,
    tables_in,
)
from fedbench.bench.results.store.frame import Frame, Rows
from fedbench.bench.results.store.replicas import replica_hash, replica_key
from fedbench.bench.results.store.row import Row, Trial, check_study, from_trial, to_trial
from fedbench.bench.results.store.schema import encode, read_table, table_bytes
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import (
    atomic_write_bytes,
    atomic_write_text,
    check_writable,
    file_lock,
    read_limited,
    sweep_temporary,
    user_path,
    write_error,
)

if TYPE_CHECKING:
    import pandas as pd

STORE_VARIABLE = "FEDBENCH_STORE"
_log = logging.getLogger(__name__)

_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,127}$")
_MIN_PREFIX = 4
"""Characters that the beginning of a row id must have."""


class Store:
    """Results below one folder, which need not exist."""

    def __init__(self, root: Path | str) -> None:
        self.root = user_path(root)
        self._all = Frame(self.root)
        self._swept = False

    def require(self) -> Self:
        """Return the store itself; a StoreError says that its folder is not there."""
        try:
            there = self.root.exists()
        except OSError as cause:  # a name that is too long
            raise read_error(self.root, cause) from cause
        if not there:
            raise StoreError(
                f"there is no store at {str(self.root)!r}; name another with --store, or fill this"
                f" one: `fedbench run simclr --store {shlex.quote(str(self.root))}`"
            )
        return self

    # Rows

    def write_row(self, row: Row) -> bool:
        """Write the row of a finished run; return False if it was there already.

        A row that failed or is unreadable is replaced.
        """
        path = self._row_path(row.row_id)
        if self.finished(row.row_id) is not None:
            return False
        if path.exists() and isinstance(problem := load(path, Row), str):
            aside = path.with_suffix(".unreadable")
            path.replace(aside)  # it may be a newer fedbench's
            _log.warning("%s; it is kept as %s, the new row takes its place", problem, aside.name)
        self._write(path, encode([row], Row))
        return True

    def write_replica(self, row: Row) -> None:
        """Write a row beside the rows of the same run that the store has."""
        self._write(self._row_path(replica_key(row)), encode([row], Row))

    def drop(self, row_id: str) -> None:
        """Delete a run: its row, its replicas, and their curves and checkpoints."""
        self.check_writable()
        if any(pack.of(row_id) for pack in packs(self.root)):
            raise StoreError(f"run {row_id} is packed with others and cannot be deleted")
        for path in self._paths_of(row_id):
            _delete(path)
            _delete(self.cell_dir(path.stem))

    def rows(self) -> list[Row]:
        """All readable rows, sorted by task, method and seed; see `problems` for the others.

        Replicas of a run have its row id; the one that finished first comes first.
        """
        return self._all.rows()

    def columns(self, *names: str) -> tuple[dict[str, list[Any]], Rows]:
        """Return columns of the same rows, and what makes the rows at places of these lists.

        Making a row takes a millisecond. Rows that are written meanwhile are not among them.
        """
        return self._all.columns(*names)

    def frame(self) -> "pd.DataFrame":
        """Return the same rows as a frame, which must not be changed.

        It has the columns of `Row` and `frame.FURTHER`, and one for every further metric, and is
        kept for the next time, if the store may be written to.
        """
        return self._all.frame(atomic_write_bytes)

    def replicas(self, row_id: str) -> list[Row]:
        """All readable rows of a run: the one that finished first leads, failed ones come last."""
        loaded = (load(path, Row) for path in self._paths_of(row_id))
        rows = [row for pack in packs(self.root) for row in pack.of(row_id)]
        rows += [row for row in loaded if isinstance(row, Row)]
        # In one order, whatever the names of their files.
        return sorted(rows, key=lambda r: (r.status == "error", r.finished_at, replica_hash(r)))

    def row(self, row_id: str) -> Row | None:
        """One row, the first of its `replicas`; a StoreError if its file is unreadable."""
        if rows := self.replicas(row_id):
            return rows[0]
        problem = load(self._row_path(row_id), Row)
        if isinstance(problem, str):
            raise StoreError(f"{problem}; delete the file to run this cell again")
        return problem

    def key(self, row: Row) -> str:
        """Return the name of a stored row's file and cell: its row id, or `<row id>@<hash>`."""
        name = replica_key(row)
        own = self._row_path(name).exists() or any(name in p.places for p in packs(self.root))
        return name if own else row.row_id

    def find(self, run_id: str) -> Row:
        """Return the row of a run id, or of a beginning of it of 4 characters that no other has.

        Of replicas the one that finished first is meant; `@` and the beginning of the hash of its
        results name another.

        Raises:
            StoreError: for a store, a run or a replica that is not there, or an unreadable row.
            ConfigError: where several row ids begin so.
        """
        run_id, at, chosen = run_id.partition("@")
        if not run_id:
            raise ConfigError("a run id must not be empty; `fedbench runs` lists run ids")
        row = self.require().row(run_id)
        if row is None and len(run_id) >= _MIN_PREFIX:
            files = [path.stem for path in tables_in(self.root / "rows")]
            files += [name for pack in packs(self.root) for name in pack.places]
            names = {name.partition("@")[0] for name in files}
            found = sorted(name for name in names if name.startswith(run_id))
            if len(found) > 1:
                shown = ", ".join(found[:3])
                raise ConfigError(f"{len(found)} runs begin with {run_id!r}: {shown}; give more")
            row = self.row(found[0]) if found else None
        if row is None:
            raise StoreError(
                f"no run {run_id!r} in store {str(self.root)!r}; `fedbench runs` lists run"
                f" ids; {_MIN_PREFIX} characters will do where no other begins with them"
            )
        if at:
            replicas = {replica_key(replica): replica for replica in self.replicas(row.row_id)}
            named = [key for key in replicas if key.startswith(f"{row.row_id}@{chosen}")]
            if len(named) != 1:
                raise StoreError(
                    f"run {row.row_id} has {len(named) or 'no'} replicas that begin with @{chosen};"
                    f" it has {', '.join(replicas)}"
                )
            row = replicas[named[0]]
        return row

    def finished(self, row_id: str) -> Row | None:
        """A row that needs no further run; None if there is none, or it failed or is unreadable."""
        rows = self.replicas(row_id)
        return rows[0] if rows and rows[0].status != "error" else None

    def problems(self) -> list[str]:
        """One line for every file of rows, trials or studies that cannot be read."""
        loaded: list[Any] = [*self._all.problems()]
        for study_id in self.studies():
            loaded += self._loaded_trials(study_id)
            try:
                self.study(study_id)
            except StoreError as error:
                loaded.append(str(error))
        return sorted(problem for problem in loaded if isinstance(problem, str))

    def refresh(self) -> Path | None:
        """Bring `leaderboard.parquet` up to date; untouched if it is, None if there are no rows."""
        return self._all.file if self._all.save(self._write) else None

    # Trials and studies

    def write_trial(self, study_id: str, number: int, record: Mapping[str, Any]) -> bool:
        """Write a finished trial; return False if one that did not fail is already there.

        A record has the columns of `Trial`, `params` and `watched` as dicts; anything else that
        JSON can hold is kept as well.

        Raises:
            StoreError: a record that does not fit.
        """
        path = self._study_dir(study_id) / f"{number}.parquet"
        trial = to_trial(study_id, number, record)
        old = load(path, Trial)
        if isinstance(old, Trial) and old.status != "error":
            return False
        self._write(path, encode([trial], Trial))
        return True

    def trials(self, study_id: str) -> list[dict[str, Any]]:
        """The readable trials of a study by number, as records of `write_trial`."""
        loaded = (each for each in self._loaded_trials(study_id) if isinstance(each, Trial))
        return [from_trial(trial) for trial in sorted(loaded, key=lambda trial: trial.number)]

    def write_study(self, study_id: str, meta: Mapping[str, Any]) -> None:
        """Write or replace the description of a study."""
        try:
            text = json_with_checksum(meta, indent=2, allow_nan=False)
        except (TypeError, ValueError) as cause:
            raise StoreError(f"study {study_id!r}: not JSON: {cause}") from cause
        self._sweep()
        atomic_write_text(self._study_dir(study_id) / "study.json", text + "\n")

    def study(self, study_id: str) -> dict[str, Any]:
        """The description of a study, empty without one; a StoreError if it is unreadable."""
        path = self._study_dir(study_id) / "study.json"
        try:
            return check_study(parse_json(read_limited(path, MOST_BYTES)))
        except FileNotFoundError:
            return {}
        except OSError as cause:
            raise read_error(path, cause) from cause
        except ValueError as cause:
            raise StoreError(
                f"{str(path)!r} is torn or altered: {cause}; delete it, the same `fedbench tune`"
                " command writes it again from the study's trials"
            ) from cause

    def drop_study(self, study_id: str) -> None:
        """Delete a study with its trials."""
        self.check_writable()
        _delete(self._study_dir(study_id))
        _delete(self.cell_dir(study_id))

    def studies(self) -> list[str]:
        """Ids of all studies, sorted."""
        return sorted(p.name for p in list_folder(self.root / "trials") if _NAME.match(p.name))

    # Cells

    def cell_dir(self, row_id: str) -> Path:
        """Folder for a cell's checkpoints and curve; not created here."""
        return self.root / "cells" / _checked(row_id, "row id")

    def write_curve(self, row_id: str, points: Sequence[Mapping[str, Any]]) -> Path:
        """Write or replace the curve of a run: one point per round, each a dict of numbers.

        A key missing from a point, and a number that is not finite, become null.

        Raises:
            StoreError: values of one key that are of different kinds, or a failed write.
        """
        names = list(dict.fromkeys(name for point in points for name in point))
        columns = {name: [_finite(point.get(name)) for point in points] for name in names}
        try:
            table = pa.table({name: pa.array(values) for name, values in columns.items()})
        except (pa.ArrowException, ValueError, TypeError) as cause:
            raise StoreError(f"curve of {row_id}: values of mixed kinds: {cause}") from cause
        path = self.cell_dir(row_id) / "curve.parquet"
        self._write(path, table_bytes(table))
        return path

    def curve(self, row_id: str) -> list[dict[str, Any]]:
        """The points of a run's curve; empty if there is none. A StoreError if it is unreadable."""
        path = self.cell_dir(row_id) / "curve.parquet"
        try:
            return check_points(read_table(path.read_bytes()).to_pylist())
        except FileNotFoundError:
            found = (pack.curve(row_id) for pack in packs(self.root) if row_id in pack.places)
            return next(found, [])
        except OSError as cause:
            raise read_error(path, cause) from cause
        except StoreError as error:
            raise StoreError(f"{str(path)!r}: {error}") from error

    def lock(self, name: str) -> AbstractContextManager[bool]:
        """Claim a cell (or a study) while the block runs; it gets False if another process has it.

        Look for the row again inside the block: the last holder may just have finished it.
        """
        return file_lock(self.cell_dir(name) / "lock")

    def check_writable(self) -> None:
        """Raise a StoreError now rather than after hours; remove leftovers of killed writers."""
        check_writable(self.root)
        self._sweep()

    # Inside

    def _row_path(self, row_id: str) -> Path:
        return self.root / "rows" / f"{_checked(row_id, 'row id')}.parquet"

    def _paths_of(self, row_id: str) -> list[Path]:
        plain = self._row_path(row_id)
        try:
            return [plain, *plain.parent.glob(f"{row_id}@*.parquet")]
        except OSError as cause:  # a name that is too long
            raise read_error(plain.parent, cause) from cause

    def _study_dir(self, study_id: str) -> Path:
        return self.root / "trials" / _checked(study_id, "study id")

    def _loaded_trials(self, study_id: str) -> list[Trial | str | None]:
        with ThreadPoolExecutor(THREADS) as threads:
            paths = tables_in(self._study_dir(study_id))
            return [*threads.map(partial(load, model=Trial), paths)]

    def _write(self, path: Path, data: bytes) -> None:
        self._sweep()
        atomic_write_bytes(path, data)

    def _sweep(self) -> None:
        """Before the first write, remove leftovers of killed writers."""
        if not self._swept and self.root.is_dir():
            self._swept = True
            folders = [self.root, self.root / "rows"]
            # The tensors that clients keep have a folder of their own in a cell.
            for parent in (self.root / "trials", self.root / "cells"):
                folders += [at for path in list_folder(parent) for at in (path, path / "clients")]
            for folder in filter(Path.is_dir, folders):
                sweep_temporary(folder)


def open_store(store: Store | Path | str | None = None) -> Store:
    """Return the store of a folder; None stands for `$FEDBENCH_STORE`, else `./leaderboards`.

    >>> open_store("leaderboards").root.name
    'leaderboards'
    """
    if isinstance(store, Store):
        return store
    return Store(store or os.environ.get(STORE_VARIABLE) or "leaderboards")


def _delete(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as cause:
        raise write_error(path, cause) from cause


def _checked(name: str, kind: str) -> str:
    if not _NAME.match(name):
        raise StoreError(f"{kind} {name!r} cannot name a file; use letters, digits and . _ + = @ -")
    return name


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
