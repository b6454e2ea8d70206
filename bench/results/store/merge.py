"""Merging of stores."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedbench.bench.results.store.files import PACKED, list_folder
from fedbench.bench.results.store.replicas import differences, known_apart, platform_of, replica_key
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes, copy_folder, write_error

_SHOWN = 3
_SETTINGS = ("spec", "space", "sampler", "seed", "seeds_per_trial", "data", "benchmark")
"""Keys of the description that two studies of one name must share."""
_TRIAL = ("status", "seeds", "params", "objective", "watched")


@dataclass
class Merged:
    """Outcome of a merge, or of a dry run of it."""

    rows_added: int = 0  # rows of runs that the target did not have
    replicas_added: int = 0  # rows with other results of another numeric platform
    rows_replaced: int = 0  # failed rows that gave way to finished ones
    rows_same: int = 0  # rows that both had, with equal results
    trials_added: int = 0  # of studies
    trials_same: int = 0
    problems: list[str] = field(default_factory=list)  # lines on files that were left out


def merge(
    sources: Sequence[Store | Path | str],
    store: Store | Path | str | None = None,
    *,
    dry_run: bool = False,
) -> Merged:
    """Copy rows, curves, checkpoints and studies of other stores into one, which need not exist.

    Nothing is written before everything has been compared. Rows are the same if their results are
    equal to the last bit; they may differ in `CIRCUMSTANCES`, and the row of the target stays. Rows
    with other results are kept beside it as replicas if another numeric platform computed them.
    Each cell of the target is locked and compared again before a write.

    Args:
        sources: stores that stay as they are.
        store: the target; see `open_store`.
        dry_run: compare and count only.

    Raises:
        StoreError: for a source that is no store, for rows, trials or studies that contradict
            each other, for a target that cannot be written, or if another process works on the same
            run or study there; the same call again then does the rest.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> merge([demo_store()], new_folder()).rows_added
    1
    """
    target, done = open_store(store), Merged()
    opened = [open_store(source).require() for source in sources]
    parts = {"cells", "rows", PACKED, "trials"}
    for source in opened:
        if parts.isdisjoint(path.name for path in list_folder(source.root)):
            raise StoreError(f"{str(source.root)!r} holds no results; name the folder of a store")
    done.problems = [problem for source in opened for problem in source.problems()]
    new, conflicts = _new_rows(target, opened, done)
    files, others = _new_files(target, opened, done)
    conflicts += others
    if conflicts:
        more = f", and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        raise StoreError(
            f"the stores contradict each other: {'; '.join(conflicts[:_SHOWN])}{more}; nothing was"
            " written. Delete the one that you do not trust, or keep the stores apart"
        )
    if not dry_run:
        target.check_writable()
        for study_id, origins in files.items():
            with _locked(target, "study", study_id):
                for name, origin in origins.items():
                    atomic_write_bytes(target.root / name, origin.read_bytes())
        for row_id, rows in new.items():
            with _locked(target, "run", row_id):
                for row, source in rows:
                    _copy(row, source, target)
        target.refresh()
    return done


_Known = tuple[Row, Store]  # a row and the store that has it


def _new_rows(
    target: Store, sources: Sequence[Store], done: Merged
) -> tuple[dict[str, list[_Known]], list[str]]:
    """Return the rows to copy by row id, and a line for every contradiction; count them."""
    rows: dict[str, list[_Known]] = {}
    for row in target.rows():
        rows.setdefault(row.row_id, []).append((row, target))
    conflicts = []
    for source in sources:
        for row in source.rows():
            known = rows.setdefault(row.row_id, [])
            try:
                outcome = _outcome(row, source, known)
            except StoreError as error:
                conflicts.append(str(error))
                continue
            done.rows_same += outcome == "same"
            done.replicas_added += outcome == "replica"
            if outcome == "first":
                done.rows_added += not known
                done.rows_replaced += any(at is target for _, at in known)
                known.clear()
            if outcome != "same":
                known.append((row, source))
    copied = {i: [each for each in known if each[1] is not target] for i, known in rows.items()}
    return {row_id: known for row_id, known in copied.items() if known}, conflicts


def _outcome(
    row: Row, source: Store, known: Sequence[_Known]
) -> Literal["first", "replica", "same"]:
    """Return what a row is beside the known ones of its run; failed ones give way to a `first`.

    Raises:
        StoreError: a contradiction: one platform, and results that differ.
    """
    finished = [each for each in known if each[0].status != "error"]
    if row.status == "error":
        return "same" if known else "first"
    if not finished:
        return "first"
    if any(not differences(other, row) for other, _ in finished):
        return "same"
    for other, store in finished:
        if not known_apart(other, row):
            platforms = dict.fromkeys((platform_of(other), platform_of(row)))
            raise StoreError(
                f"row {row.row_id} has {differences(other, row)[0]} in {store.root} and"
                f" {source.root}, both from {' and '.join(platforms)}"
            )
    return "replica"


def _copy(row: Row, source: Store, target: Store) -> None:
    """Copy a row and its cell, as a replica if the target has finished the run in another way."""
    known = [(other, target) for other in target.replicas(row.row_id)]
    outcome = _outcome(row, source, known)  # the run may have been finished meanwhile
    if outcome != "same":
        name, key = source.key(row), replica_key(row) if outcome == "replica" else row.row_id
        cell = source.cell_dir(name)
        if cell.is_dir():
            _copy_cell(cell, target.cell_dir(key), row)
        # That of a packed run is not in its cell, which may have a checkpoint.
        if not (cell / "curve.parquet").exists() and (points := source.curve(name)):
            target.write_curve(key, points)
        target.write_replica(row) if outcome == "replica" else target.write_row(row)


@contextmanager
def _locked(target: Store, kind: str, name: str) -> Iterator[None]:
    with target.lock(name) as mine:
        if not mine:
            raise StoreError(
                f"{kind} {name} is being worked on by another process in {str(target.root)!r}; wait"
                " for it and merge again: what was merged so far stays"
            )
        yield


def _new_files(
    target: Store, sources: Sequence[Store], done: Merged
) -> tuple[dict[str, dict[Path, Path]], list[str]]:
    """Return the files of studies to copy, and a line for every contradiction; count trials.

    Files are by study and by path below the target.
    """
    described = {i: target.study(i) for i in target.studies()}
    known = {i: {t["number"]: t for t in target.trials(i)} for i in described}
    files: dict[str, dict[Path, Path]] = {}
    conflicts = []
    for source, study_id in [(each, i) for each in sources for i in each.studies()]:
        try:
            meta = source.study(study_id)
        except StoreError:  # one of the source's problems
            continue
        other = described.setdefault(study_id, meta)
        if other and meta and any(other.get(key) != meta.get(key) for key in _SETTINGS):
            conflicts.append(f"study {study_id} has other settings in {source.root}")
            continue
        trials, chosen = known.setdefault(study_id, {}), list[Path]()
        folder, theirs = source.root / "trials" / study_id, source.trials(study_id)
        for trial in theirs:
            number = trial["number"]
            there = trials.get(number)
            if there is None or (there["status"] == "error" and trial["status"] != "error"):
                done.trials_added += 1
                trials[number] = trial
                chosen.append(folder / f"{number}.parquet")
            elif trial["status"] == "error" or all(there[key] == trial[key] for key in _TRIAL):
                done.trials_same += 1
            else:
                conflicts.append(f"trial {number} of {study_id} differs in {source.root}")
        # These files count the trials and name the best: right only where a source has all.
        if chosen and len(theirs) == len(trials):
            more = [folder / "study.json", folder / "best.yaml", *folder.glob("bracket-*/*.json")]
            chosen += filter(Path.exists, more)
        if chosen:
            of_study = files.setdefault(study_id, {})
            of_study |= {path.relative_to(source.root): path for path in chosen}
    return files, conflicts


def _copy_cell(source: Path, target: Path, row: Row) -> None:
    """Copy curve and checkpoints of a finished run, in place of those of an unfinished attempt.

    Its row is written later, so that a torn copy is redone.
    """
    if row.status == "error":
        return
    try:
        for left in list_folder(target):
            if left.name != "lock":  # which this process holds
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    except OSError as cause:
        raise write_error(target, cause) from cause
    copy_folder(source, target)
