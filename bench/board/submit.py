"""`submit`: pack rows of a store into a bundle, and say how to propose it to a board."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.board.bundle import (
    LICENCE,
    MANIFEST,
    STUDY_FILE,
    Entry,
    card_text,
    files_of,
    manifest_text,
    zipped,
)
from fedbench.bench.board.people import Person, person, sign
from fedbench.bench.board.static import CheckCount, Checker
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.runs.arguments import as_path
from fedbench.bench.system.errors import ConfigError, FedbenchError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, atomic_write_text, write_error
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
        rows: row ids.
        methods: method specs, sorted.
        by: who submits it; None if nobody is named.
        signed: True if the manifest is signed.
        num_files: files in it.
        num_bytes: size of all of them.
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
    signed: bool
    num_files: int
    num_bytes: int
    left_out: tuple[str, ...]
    checks: tuple[CheckCount, ...]
    commands: tuple[str, ...]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench submit --json`."""
        return {
            "file": str(self.file),
            "id": self.id,
            "rows": list(self.rows),
            "methods": list(self.methods),
            "by": None if self.by is None else self.by.as_dict(),
            "signed": self.signed,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
            "licence": LICENCE,
            "left_out": list(self.left_out),
            "checks": [vars(check) for check in self.checks],
            "commands": list(self.commands),
            "text": self.text,
        }


def submit(
    run_ids: Sequence[str] = (),
    store: Store | Path | str | None = None,
    *,
    every: bool = False,
    file: Path | str | None = None,
    by: str | None = None,
    orcid: str | None = None,
    key: Path | str | None = None,
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
        key: SSH key to sign the manifest with, by `ssh-keygen -Y sign`.
        data_dir: cache of data sets, for the checks.

    Raises:
        ConfigError: for no run, a file that is there already, or names that are none.
        StoreError: for runs that cannot be submitted, or that the checks refuse.
    """
    if every == bool(run_ids):
        raise ConfigError("name the runs to submit, or give --all; `fedbench runs` lists them")
    store, who = open_store(store).require(), person(by, orcid)
    entries, left_out = _chosen(store, run_ids, every=every)
    checks = _checked(entries, as_path(data_dir), store)
    with temporary_folder() as place:
        folder = place / "bundle"
        identity = pack(entries, who, folder, store)
        if key is not None:
            sign(folder / MANIFEST, Path(key))
        found = (path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    target = Path(file or f"fedbench-{identity[:10]}.zip").expanduser()
    _write(files, target)
    rows = [entry.row for entry in entries]
    return Submission(
        file=target,
        id=identity,
        rows=tuple(row.row_id for row in rows),
        methods=tuple(sorted({row.method for row in rows})),
        by=who,
        signed=key is not None,
        num_files=len(files),
        num_bytes=sum(map(len, files.values())),
        left_out=left_out,
        checks=checks,
        commands=_commands(target, identity, rows),
        text=_text(identity, rows, who),
    )


def pack(
    entries: Sequence[Entry], who: Person | None, folder: Path, studies: Store | None = None
) -> str:
    """Write the files of a bundle, unchecked, to an empty folder, and return the bundle's id.

    Args:
        entries: its rows.
        who: submits them.
        folder: takes the files.
        studies: store of the studies that the rows name; None = they stay behind.
    """
    store, names = Store(folder), list[str]()
    for entry in entries:
        row, points = entry.row, entry.points
        store.write_row(row)
        store.write_curve(row.row_id, points)
        names += files_of(row.row_id)
        atomic_write_text(folder / names[-1], card_text(row, len(points)))
    if studies is not None:
        for study_id in {entry.row.study_id for entry in entries} & {*studies.studies()}:
            for path in (studies.root / "trials" / str(study_id)).rglob("*"):
                name = path.relative_to(studies.root).as_posix()
                if re.fullmatch(STUDY_FILE, name):
                    names.append(name)
                    atomic_write_bytes(folder / name, path.read_bytes())
    text = manifest_text({name: (folder / name).read_bytes() for name in names}, who)
    atomic_write_text(folder / MANIFEST, text)
    return hashlib.sha256(text.encode()).hexdigest()


def _chosen(
    store: Store, run_ids: Sequence[str], *, every: bool
) -> tuple[list[Entry], tuple[str, ...]]:
    """Return the runs to pack, sorted by row id, and those that were left out."""
    if every:
        rows = list({row.row_id: row for row in reversed(store.rows())}.values())
    else:
        rows = [store.find(run_id) for run_id in run_ids]
    entries: dict[str, Entry] = {}
    refused: dict[str, str] = {}
    for row in rows:
        if row.row_id in entries and entries[row.row_id].row != row:
            raise ConfigError(f"two replicas of run {row.row_id}: submit them in two bundles")
        points = store.curve(store.key(row))
        if row.status == "error":
            refused[row.row_id] = f"run {row.row_id} failed: {row.error}"
        elif not points and row.rounds_done:
            refused[row.row_id] = f"run {row.row_id} has no curve, as trials of a study"
        else:
            entries[row.row_id] = Entry(row, tuple(points))
    if refused and not every:
        raise StoreError(f"{next(iter(refused.values()))}; it cannot be submitted, leave it out")
    if not entries:
        raise StoreError(f"no run of {str(store.root)!r} can be submitted; run some first")
    return [entries[row_id] for row_id in sorted(entries)], tuple(refused.values())


def _checked(
    entries: Sequence[Entry], data_dir: Path | None, store: Store
) -> tuple[CheckCount, ...]:
    checker = Checker((), data_dir, studies=store)
    for entry in entries:
        checker(entry)
    checked = checker.result()
    if checked.problems:
        first = "; ".join(
            f"run {found.row_id}, {found.check}: {found.problem}"
            for found in checked.problems[:_SHOWN]
        )
        more = len(checked.problems) - _SHOWN
        raise StoreError(
            f"others would refuse {len({p.row_id for p in checked.problems})} of"
            f" {len(entries)} runs: {first}{f'; and {more} more' if more > 0 else ''}; nothing was"
            " written"
        )
    return checked.checks


def _write(files: dict[str, bytes], target: Path) -> None:
    if target.suffix == ".zip":
        with temporary_folder() as folder:
            zipped(files, folder / "bundle.zip")
            data = (folder / "bundle.zip").read_bytes()
        if target.exists() and (target.is_dir() or target.read_bytes() != data):
            raise ConfigError(f"{str(target)!r} is there already, with other content; name another")
        atomic_write_bytes(target, data)
        return
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as cause:
        raise write_error(target, cause) from cause
    if taken:
        raise ConfigError(f"{str(target)!r} is there already; name a .zip or a new folder")
    try:
        for name, data in files.items():
            atomic_write_bytes(target / name, data)
    except FedbenchError:
        shutil.rmtree(target, ignore_errors=True)  # it was new or empty
        raise


def _commands(target: Path, identity: str, rows: Sequence[Row]) -> tuple[str, ...]:
    branch, file = f"results-{identity[:10]}", shlex.quote(str(target.absolute()))
    return (
        f"git switch -c {branch}",
        f"fedbench verify {file} --add-to {BOARD}",
        f"git add {BOARD}",
        f"git commit -m {shlex.quote(f'Add {_runs(rows)}')}",
        f"git push -u origin {branch}",
    )


def _text(identity: str, rows: Sequence[Row], who: Person | None) -> str:
    methods = ", ".join(sorted({row.method for row in rows}))
    data = ", ".join(sorted({f"{row.dataset} ({row.preset})" for row in rows}))
    seeds = ", ".join(map(str, sorted({row.seed for row in rows})))
    return (
        f"Runs: {len(rows):,}, of {methods} on {data}, seeds {seeds}.\n"
        f"Bundle {identity}{f', submitted by {who}' if who else ''}; licence {LICENCE}."
    )


def _runs(rows: Sequence[Row]) -> str:
    """Count runs in the words of a commit's subject."""
    methods = sorted({row.method for row in rows})
    of = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    return f"{len(rows):,} run{'s' if len(rows) > 1 else ''} of {of}"
