"""Merging of stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedbench.bench.results.store.reader import list_folder, read_error
from fedbench.bench.results.store.replicas import differences, known_apart, platform_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import (
    REPRODUCTIONS,
    SUBMISSIONS,
    Store,
    open_store,
    replica_key,
)
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes, copy_folder, write_error

_SHOWN = 3
_SETTINGS = ("spec", "space", "sampler", "seed", "seeds_per_trial", "data", "benchmark")
"""Keys of the description that two studies of one name must share."""
_TRIAL = ("status", "seeds", "params", "objective", "watched")


@dataclass
class Merged:
    """Outcome of a merge, or of a dry run of it.

    Attributes:
        rows_added: rows of runs that the target did not have.
        replicas_added: rows of runs that the target has with other results, computed on another
            numeric platform.
        rows_replaced: failed rows that gave way to finished ones.
        rows_same: rows that both had, with equal results.
        trials_added, trials_same: the same for trials of studies.
        problems: one line per file that could not be read and was left out.
    """

    rows_added: int = 0
    replicas_added: int = 0
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
    equal to the last bit; they may differ in `CIRCUMSTANCES`, and the row of the target stays. Rows
    with other results are kept beside it as replicas if another numeric platform computed them;
    which of them has the plain file name depends on what was there first, and nothing else does.
    Each cell and study of the target is locked and compared again before it is written.

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
    rows: dict[str, list[_Known]] = {}
    for row in target.rows():
        rows.setdefault(row.row_id, []).append((row, target))
    new: dict[str, list[_Known]] = {}
    studies = _Studies(target)
    for source in map(open_store, sources):
        try:
            there = source.root.is_dir()
        except OSError as cause:  # a name that is too long
            raise read_error(source.root, cause) from cause
        if not there:
            raise StoreError(f"there is no store at {str(source.root)!r}; give folders of stores")
        done.problems += source.problems()
        for row in source.rows():
            known = rows.setdefault(row.row_id, [])
            fate = _fate(row, known)
            if fate == "conflict":
                conflicts.append(_conflict(row, source, known))
            elif fate == "same":
                done.rows_same += 1
            else:
                done.rows_added += not known
                done.replicas_added += fate == "replica"
                done.rows_replaced += fate == "first" and any(at is target for _, at in known)
                if fate == "first":
                    known.clear()
                    new.pop(row.row_id, None)
                known.append((row, source))
                new.setdefault(row.row_id, []).append((row, source))
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
        for row_id, replicas in new.items():
            with _locked(target, "run", row_id):
                for row, source in replicas:
                    _copy(row, source, target)
        for source in map(open_store, sources):
            _copy_records(source, target)
        target.refresh()
    return done


_Known = tuple[Row, Store]
"""A row and the store that has it."""


def _fate(row: Row, known: Sequence[_Known]) -> Literal["first", "replica", "same", "conflict"]:
    """Return what becomes of a row beside the known ones of its run.

    It is the first (failed ones give way to it), a replica of them, the same as one of them, or a
    contradiction.
    """
    finished = [other for other, _ in known if other.status != "error"]
    if row.status == "error":
        return "same" if known else "first"
    if not finished:
        return "first"
    if any(not differences(other, row) for other in finished):
        return "same"
    return "replica" if all(known_apart(other, row) for other in finished) else "conflict"


def _conflict(row: Row, source: Store, known: Sequence[_Known]) -> str:
    """Describe a contradiction: the first difference, where, and the platform that both have."""
    other, store = next(
        (entry, at)
        for entry, at in known
        if entry.status != "error" and not known_apart(entry, row)
    )
    versions = [
        f"{entry.package_version} ({entry.git_sha})" if entry.git_sha else entry.package_version
        for entry in (other, row)
    ]
    code = "fedbench " + " and ".join(dict.fromkeys(versions))
    platforms = " and ".join(dict.fromkeys((platform_of(other), platform_of(row))))
    return (
        f"row {row.row_id} has {differences(other, row)[0]} in {store.root} and {source.root}, both"
        f" from {platforms}, {code}"
    )


def _copy(row: Row, source: Store, target: Store) -> None:
    """Copy a row and its cell, as a replica if the target has finished the run in another way."""
    known = [(other, target) for other in target.replicas(row.row_id)]
    fate = _fate(row, known)  # the run may have been finished meanwhile
    if fate == "conflict":
        raise StoreError(
            f"{_conflict(row, source, known)}, just written; delete the one that you do not trust"
        )
    if fate != "same":
        key = replica_key(row) if fate == "replica" else row.row_id
        _copy_cell(source.cell_dir(source.key(row)), target.cell_dir(key), row)
        target.write_replica(row) if fate == "replica" else target.write_row(row)


def _copy_records(source: Store, target: Store) -> None:
    """Copy who submitted and who reproduced rows; the name of a file is a hash of its content."""
    for folder in (SUBMISSIONS, REPRODUCTIONS):
        for path in sorted((source.root / folder).rglob("[!.]*")):
            there = target.root / path.relative_to(source.root)
            if path.is_file() and not there.exists():
                atomic_write_bytes(there, path.read_bytes())


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
            for path in (source.root / folder).glob("bracket-*/rung-*.json"):
                self.files[study_id][path.relative_to(source.root)] = path
        return conflicts


def _copy_cell(source: Path, target: Path, row: Row) -> None:
    """Copy curve and checkpoints of a run; its row is written later, so a torn copy is redone.

    Leftovers of an unfinished attempt in the target are deleted. Checkpoints of a failed run are
    not copied: it can be tried again in its store.
    """
    if row.status == "error" or not source.is_dir():
        return
    try:
        for left in list_folder(target):
            if left.name != "lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    except OSError as cause:
        raise write_error(target, cause) from cause
    copy_folder(source, target)
