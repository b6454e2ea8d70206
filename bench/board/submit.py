"""`submit`: pack rows of a store into a bundle, and say how to propose it to a board."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.board.bundle import LICENCE, Entry, entries_of, pack, zipped
from fedbench.bench.board.checks import CheckCount, Checker
from fedbench.bench.board.people import Person, person
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.runs.arguments import as_path
from fedbench.bench.runs.execute import plugin_packages
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, copy_folder, write_error
from fedbench.bench.system.scratch import temporary_folder

BOARD = "leaderboards/results"
"""Folder of a clone that a bundle is proposed for."""
_SHOWN = 3


@dataclass(frozen=True)
class Submission:
    """A bundle that was written.

    Attributes:
        file: the .zip, or the folder.
        id: SHA-256 of its manifest.
        rows: run ids.
        left_out: runs of the store that were left out, each with the reason.
        checks: outcome of the checks that need no run.
        commands: command lines that propose it, from a clone of the board's project.
        text: of the pull request.
    """

    file: Path
    id: str
    rows: tuple[str, ...]
    methods: tuple[str, ...]
    by: Person | None
    num_files: int
    num_bytes: int
    licence: str
    left_out: tuple[str, ...]
    checks: tuple[CheckCount, ...]
    commands: tuple[str, ...]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench submit --json`."""
        return {**asdict(self), "file": str(self.file)}


def submit(
    run_ids: Sequence[str] = (),
    store: Store | Path | str | None = None,
    *,
    every: bool = False,
    file: Path | str | None = None,
    by: str | None = None,
    orcid: str | None = None,
    data_dir: Path | str | None = None,
) -> Submission:
    """Pack runs of a store into a bundle; equal runs and equal names give equal bytes.

    Args:
        run_ids: row ids, or unambiguous beginnings of them; see `Store.find`.
        store: see `open_store`; nothing is written there.
        every: take all runs that can be submitted, instead of `run_ids`.
        file: a .zip, or a folder that is not there yet; None = `fedbench-<id>.zip` here.
        by: name of who submits.
        orcid: ORCID iD of the same.
        data_dir: cache of data sets, for the checks.

    Raises:
        ConfigError: for no run, a file that is there already, or names that are none.
        StoreError: for runs that cannot be submitted, or that the checks refuse.
    """
    if every == bool(run_ids):
        raise ConfigError("name the runs to submit, or give --all; `fedbench runs` lists them")
    store, who = open_store(store).require(), person(by, orcid)
    entries, left_out = _chosen(store, run_ids, every=every)
    checker = Checker(as_path(data_dir), store)
    for entry in entries:
        checker(entry)
    _refuse(checker, len(entries))
    with temporary_folder() as place:
        folder = place / "bundle"
        identity = pack(entries, who, folder, store)
        found = (path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
        target = Path(file or f"fedbench-{identity[:10]}.zip").expanduser()
        data = zipped(files)
        try:
            taken = target.exists() and not (target.is_file() and target.read_bytes() == data)
        except OSError as cause:  # a name that is too long
            raise write_error(target, cause) from cause
        if taken:
            raise ConfigError(f"{str(target)!r} is there already; name a new .zip or folder")
        if target.suffix == ".zip":
            atomic_write_bytes(target, data)
        else:
            copy_folder(folder, target)
    rows = [entry.row for entry in entries]
    methods = tuple(sorted({row.method for row in rows}))
    return Submission(
        file=target,
        id=identity,
        rows=tuple(row.row_id for row in rows),
        methods=methods,
        by=who,
        num_files=len(files),
        num_bytes=sum(map(len, files.values())),
        licence=LICENCE,
        left_out=left_out,
        checks=tuple(checker.counts.values()),
        commands=_commands(target, identity, rows),
        text=_text(identity, rows, who),
    )


def _chosen(
    store: Store, run_ids: Sequence[str], *, every: bool
) -> tuple[list[Entry], tuple[str, ...]]:
    """Return the runs to pack, sorted by row id, and those that were left out."""
    rows = store.rows() if every else [store.find(run_id) for run_id in run_ids]
    entries: dict[str, Entry] = {}
    refused: list[str] = []
    for entry in entries_of(store, rows):
        row = entry.row
        if row.status == "error":
            refused.append(f"run {row.row_id} failed: {row.error}")
        elif not entry.points and row.rounds_done:
            refused.append(f"run {row.row_id} has no curve, as trials of a study")
        else:
            first = entries.setdefault(row.row_id, entry)
            if first.row != row and not every:
                raise ConfigError(f"run {row.row_id} of two platforms: submit them in two bundles")
    if refused and not every:
        raise StoreError(f"{refused[0]}; it cannot be submitted, leave it out")
    if not entries:
        raise StoreError(f"no run of {str(store.root)!r} can be submitted; run some first")
    return [entries[row_id] for row_id in sorted(entries)], tuple(refused)


def _refuse(checker: Checker, num_runs: int) -> None:
    if not checker.problems:
        return
    first = [f"run {p.run_id}, {p.check}: {p.problem}" for p in checker.problems[:_SHOWN]]
    more = len(checker.problems) - _SHOWN
    raise StoreError(
        f"others would refuse {len({p.run_id for p in checker.problems})} of {num_runs} runs:"
        f" {'; '.join(first)}{f'; and {more} more' if more > 0 else ''}; nothing was written"
    )


def _commands(target: Path, identity: str, rows: Sequence[Row]) -> tuple[str, ...]:
    methods = sorted({row.method for row in rows})
    of = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    message = f"Add {len(rows):,} run{'s' * (len(rows) > 1)} of {of}"
    branch, file = f"results-{identity[:10]}", shlex.quote(str(target.absolute()))
    return (
        f"git switch -c {branch}",
        f"fedbench verify {file} --add-to {BOARD}",
        f"git add {BOARD}",
        f"git commit -m {shlex.quote(message)}",
        f"git push -u origin {branch}",
    )


def _text(identity: str, rows: Sequence[Row], who: Person | None) -> str:
    methods = ", ".join(sorted({row.method for row in rows}))
    data = ", ".join(sorted({f"{row.dataset} ({row.preset})" for row in rows}))
    seeds = ", ".join(map(str, sorted({row.seed for row in rows})))
    code = {name for row in rows for name in row.code}
    versions = {f"{n} {version}" for row in rows for n, version in plugin_packages(row).items()}
    needed = ", ".join(sorted(versions or code))
    foreign = f"Needs {needed}, which fedbench does not ship; its code: PUBLIC ADDRESS, COMMIT.\n"
    return (
        f"Runs: {len(rows):,}, of {methods} on {data}, seeds {seeds}.\n{foreign if code else ''}"
        f"Bundle {identity}{f', submitted by {who}' if who else ''}; licence {LICENCE}."
    )
