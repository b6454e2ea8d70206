"""`submit` and `verify BUNDLE`: rows packed for others, and checks of theirs, some run again."""

import hashlib
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedbench.bench.board.bundle import (
    LICENCE,
    MANIFEST,
    Person,
    Run,
    open_bundle,
    pack,
    person,
    runs_of,
    zipped,
)
from fedbench.bench.board.checks import COPIES, FILES, CheckCount, Checker, Problem
from fedbench.bench.board.reproductions import record_reproduction
from fedbench.bench.data.known import REVISIONS, SUBSETS
from fedbench.bench.execution.compare import REPRODUCED, Reproduction
from fedbench.bench.execution.execute import OnRound, plugin_packages
from fedbench.bench.execution.run import reproduce
from fedbench.bench.experiment.common_options import as_path
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.replicas import replica_key
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import SUBMISSIONS, Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, copy_folder, user_path, write_error
from fedbench.bench.system.scratch import temporary_folder

BOARD = "leaderboards/results"
"""Folder of a clone that a bundle is proposed for."""
_SHOWN = 3


@dataclass(frozen=True)
class Submission:
    """A bundle that was written."""

    file: Path
    id: str  # SHA-256 of its manifest
    rows: tuple[str, ...]
    methods: tuple[str, ...]
    by: Person | None
    num_files: int
    num_bytes: int
    licence: str
    left_out: tuple[str, ...]  # runs of the store that were left out, each with the reason
    checks: tuple[CheckCount, ...]
    commands: tuple[str, ...]  # command lines that propose it, from a clone of the board's project
    text: str


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

    Raises `ConfigError` if no run is given, `file` exists already, `by` is no name; and
    `StoreError` for runs that cannot be submitted or that the checks refuse.

    Args:
        run_ids: row ids, or unambiguous beginnings of them; see `Store.find`.
        store: see `open_store`; nothing is written there.
        every: take all runs that can be submitted, instead of `run_ids`.
        file: a .zip, or a folder that is not there yet; None = `fedbench-<id>.zip` here.
        by: name of who submits.
        orcid: ORCID iD of the same.
        data_dir: cache of data sets, for the checks.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> folder = new_folder()
    >>> len(submit(store=demo_store(), every=True, file=f"{folder}/one.zip").rows)
    1
    """
    if every == bool(run_ids):
        raise ConfigError("give either run ids or --all; `fedbench runs` lists run ids")
    store, who = open_store(store).require(), person(by, orcid)
    runs, left_out = _chosen(store, run_ids, every=every)
    checker = Checker(as_path(data_dir))
    for run in runs:
        checker(run)
    if problems := checker.problems:
        first = [f"run {each.run_id}, {each.check}: {each.problem}" for each in problems[:_SHOWN]]
        first += [f"and {len(problems) - _SHOWN} more"] * (len(problems) > _SHOWN)
        raise StoreError(
            f"others would refuse {len({each.run_id for each in problems})} of {len(runs)} runs:"
            f" {'; '.join(first)}; nothing was written"
        )
    with temporary_folder() as place:
        folder = place / "bundle"
        identity = pack(runs, who, folder, store)
        found = (path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
        target = user_path(file or f"fedbench-{identity[:10]}.zip")
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
    rows = [run.row for run in runs]
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
        commands=_commands(target, identity, len(rows), methods),
        text=_text(identity, rows, who),
    )


def _chosen(
    store: Store, run_ids: Sequence[str], *, every: bool
) -> tuple[list[Run], tuple[str, ...]]:
    """Return the runs to pack, sorted by row id, and those that were left out."""
    rows = store.rows() if every else [store.find(run_id) for run_id in run_ids]
    runs: dict[str, Run] = {}
    refused: list[str] = []
    for run in runs_of(store, rows):
        row = run.row
        if row.status == "error":
            refused.append(f"run {row.row_id} failed: {row.error}")
        elif not run.points and row.rounds_done:
            refused.append(f"run {row.row_id} has no curve that can be read (trials have none)")
        else:
            first = runs.setdefault(row.row_id, run)
            if first.row != row:
                if not every:
                    raise ConfigError(f"run {row.row_id} of two platforms: submit two bundles")
                refused.append(f"run {replica_key(row)} is of another platform: submit it apart")
    if refused and not every:
        raise StoreError(f"{refused[0]}; it cannot be submitted, leave it out")
    if not runs:
        raise StoreError(f"no run of {str(store.root)!r} can be submitted; run some first")
    return [runs[row_id] for row_id in sorted(runs)], tuple(refused)


def _commands(target: Path, identity: str, count: int, methods: Sequence[str]) -> tuple[str, ...]:
    of = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    message = f"Add {count:,} run{'s' * (count > 1)} of {of}"
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
    known = {*REVISIONS, *SUBSETS}
    others = {r.dataset for r in rows if ":" in r.dataset and r.dataset_revision not in known}
    lines = [f"Runs: {len(rows):,}, of {methods} on {data}, seeds {seeds}."]
    if code:
        lines.append(
            f"Needs {needed}, which fedbench does not ship; its code: PUBLIC ADDRESS, COMMIT."
        )
    if others:
        lines.append(f"Needs the images of {', '.join(sorted(others))}: PUBLIC ADDRESS.")
    by = f", submitted by {who}" if who else ""
    return "\n".join([*lines, f"Bundle {identity}{by}; licence {LICENCE}."])


@dataclass(frozen=True)
class BundleVerification:
    """Outcome of a check of a bundle, or of the rows of a store."""

    bundle: str
    rows: tuple[str, ...]
    checks: tuple[CheckCount, ...]
    problems: tuple[Problem, ...]
    seconds: float
    id: str = ""  # SHA-256 of its manifest; empty for a store
    by: Person | None = None  # who submits it; None if it does not say
    board: str | None = None  # store whose rows it was compared with; None if there is none
    reruns: tuple[Reproduction, ...] = ()  # reproductions, in the order that the bundle's id gives
    added_to: str | None = None  # store that its rows were added to; None if they were not

    @property
    def ok(self) -> bool:
        """True without a contradiction, and if no repetition differs."""
        return not self.problems and not any(r.verdict == "different" for r in self.reruns)

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench verify BUNDLE --json`."""
        reruns = [rerun.as_dict() for rerun in self.reruns]
        return {"ok": self.ok, **asdict(replace(self, reruns=())), "reruns": reruns}


def verify_bundle(
    bundle: Path | str,
    store: Store | Path | str | None = None,
    *,
    rerun: int = 0,
    add_to: Store | Path | str | None = None,
    data_name: str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
    by: str | None = None,
    orcid: str | None = None,
    on_rerun: Callable[[str], AbstractContextManager[OnRound]] | None = None,
) -> BundleVerification:
    """Check a bundle: files, schema, and that its rows contradict neither themselves nor others.

    Rows are compared with those of `store`; None = `add_to`, else as `open_store`, and a store that
    is not there has no rows. `rerun` of the rows, chosen by the bundle's id, are run again, with
    `data_name`, `data_dir`, `workers` and `device` as in `reproduce`; `on_rerun` takes the id of
    each and returns a context, whose value is called after its rounds. `add_to` takes the rows if
    nothing contradicts them, and the reproductions under the name `by` with `orcid`.

    Raises `StoreError` for a path that holds no bundle or a store that cannot be written, and
    `FedbenchError` for rows that cannot be run again here.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> folder = new_folder()
    >>> packed = submit(store=demo_store(), every=True, file=f"{folder}/one.zip")
    >>> verify_bundle(f"{folder}/one.zip", demo_store()).ok
    True
    """
    if rerun < 0:
        raise ConfigError(f"--rerun must be 0 or more (got {rerun})")
    began, who = time.monotonic(), person(by, orcid)
    target = None if add_to is None else open_store(add_to)
    board = target if store is None and target is not None else open_store(store)
    compared = board.root.is_dir()
    with open_bundle(bundle) as opened:
        checker = Checker(as_path(data_dir))
        for run_id, problem in opened.problems:
            checker.add(run_id, FILES, [problem])
        for run in opened.runs.values():
            checker(run)
        if compared and not checker.problems:
            try:
                merge([opened.root], board, dry_run=True)
                checker.add("", COPIES, [])
            except StoreError as err:
                checker.add("", COPIES, [str(err).replace(str(opened.root), str(bundle))])
        known = [run_id for run_id in opened.runs if run_id not in checker.other_code]
        reruns = []
        for run_id in chosen(opened.id, known, 0 if checker.problems else rerun):
            with nullcontext() if on_rerun is None else on_rerun(run_id) as on_round:
                again = reproduce(
                    run_id,
                    opened.root,
                    data_name=data_name,
                    data_dir=data_dir,
                    workers=workers,
                    device=device,
                    on_round=on_round,
                )
            reruns.append(again)
        if checker.problems or any(again.verdict == "different" for again in reruns):
            target = None
        if target is not None:
            merge([opened.root], target)
            manifest = target.root / SUBMISSIONS / f"{opened.id}.json"
            atomic_write_bytes(manifest, (opened.root / MANIFEST).read_bytes())
            for again in reruns:
                if who is not None and again.verdict in REPRODUCED:
                    record_reproduction(target, again, who)
        rows = (*opened.runs, *(run_id for run_id, _ in opened.problems if run_id))
    return BundleVerification(
        bundle=str(bundle),
        rows=tuple(dict.fromkeys(rows)),
        checks=tuple(checker.counts.values()),
        problems=tuple(checker.problems),
        seconds=time.monotonic() - began,
        id=opened.id,
        by=opened.by,
        board=str(board.root) if compared else None,
        reruns=tuple(reruns),
        added_to=None if target is None else str(target.root),
    )


def verify_claims(
    store: Store | Path | str | None = None, *, data_dir: Path | str | None = None
) -> BundleVerification:
    """Check the rows of a store like a bundle's; `verify` checks its files.

    >>> from fedbench.bench.testing import demo_store
    >>> verify_claims(demo_store()).ok
    True
    """
    began, store = time.monotonic(), open_store(store).require()
    checker = Checker(as_path(data_dir))
    rows = [row for row in store.rows() if row.status != "error"]
    for problem in store.problems():
        checker.add("", FILES, [problem])
    for run in runs_of(store, rows):
        checker(run)
    return BundleVerification(
        bundle=str(store.root),
        rows=tuple(dict.fromkeys(row.row_id for row in rows)),
        checks=tuple(checker.counts.values()),
        problems=tuple(checker.problems),
        seconds=time.monotonic() - began,
    )


def chosen(bundle_id: str, run_ids: Sequence[str], number: int) -> list[str]:
    """Return `number` rows of a bundle, which its id chooses."""

    def place(run_id: str) -> str:
        return hashlib.sha256(f"{bundle_id} {run_id}".encode()).hexdigest()

    return sorted(run_ids, key=place)[:number]
