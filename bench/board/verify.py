"""`verify BUNDLE`: checks of others' rows, some of which are run again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedbench.bench.board.bundle import MANIFEST, entries_of, open_bundle
from fedbench.bench.board.checks import COPIES, FILES, CheckCount, Checker, Problem
from fedbench.bench.board.people import Person, person
from fedbench.bench.board.reproductions import record_reproduction
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.store import SUBMISSIONS, Store, open_store
from fedbench.bench.runs.arguments import as_path
from fedbench.bench.runs.compare import REPRODUCED, Reproduction
from fedbench.bench.runs.execute import OnRound
from fedbench.bench.runs.reproduce import reproduce
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes


@dataclass(frozen=True)
class BundleVerification:
    """Outcome of a check of a bundle, or of the rows of a store.

    Attributes:
        rows: run ids, readable or not.
        id: SHA-256 of its manifest; empty for a store.
        by: who submits it; None if it does not say.
        board: store whose rows it was compared with; None if there is none.
        reruns: reproductions, in the order that the bundle's id gives.
        added_to: store that its rows were added to; None if they were not.
    """

    bundle: str
    rows: tuple[str, ...]
    checks: tuple[CheckCount, ...]
    problems: tuple[Problem, ...]
    seconds: float
    id: str = ""
    by: Person | None = None
    board: str | None = None
    reruns: tuple[Reproduction, ...] = ()
    added_to: str | None = None

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
    on_rerun: Callable[[str], OnRound] | None = None,
) -> BundleVerification:
    """Check a bundle: files, schema, and that its rows contradict neither themselves nor others.

    Args:
        bundle: a .zip or a folder that `submit` wrote.
        store: the board to compare runs with; None = `add_to`, else as `open_store`, and a store
            that is not there has no rows.
        rerun: rows to run again, which the bundle's id chooses.
        add_to: store that takes the rows if nothing contradicts them.
        data_name: as in `reproduce`.
        data_dir: as in `reproduce`.
        workers: as in `reproduce`.
        device: as in `reproduce`.
        by: name of who runs rows again; they are then recorded in `add_to`.
        orcid: ORCID iD of the same.
        on_rerun: called with the id of each row before it is run again; returns what is called
            after each of its rounds.

    Raises:
        ConfigError: for a negative `rerun`.
        StoreError: for a path that holds no bundle, or a store that cannot be written.
        FedbenchError: for rows that cannot be run again here.
    """
    if rerun < 0:
        raise ConfigError(f"--rerun must be 0 or more (got {rerun})")
    began, who = time.monotonic(), person(by, orcid)
    target = None if add_to is None else open_store(add_to)
    board = target if store is None and target is not None else open_store(store)
    compared = board.root.is_dir()
    with open_bundle(bundle) as opened:
        checker = Checker(as_path(data_dir), Store(opened.root))
        for run_id, problem in opened.problems:
            checker.add(run_id, FILES, [problem])
        for entry in opened.entries.values():
            checker(entry)
        if compared and not checker.problems:
            try:
                merge([opened.root], board, dry_run=True)
                checker.add("", COPIES, [])
            except StoreError as err:
                checker.add("", COPIES, [str(err).replace(str(opened.root), str(bundle))])
        reruns = tuple(
            reproduce(
                run_id,
                opened.root,
                data_name=data_name,
                data_dir=data_dir,
                workers=workers,
                device=device,
                on_round=None if on_rerun is None else on_rerun(run_id),
            )
            for run_id in chosen(opened.id, [*opened.entries], 0 if checker.problems else rerun)
        )
        if checker.problems or any(again.verdict == "different" for again in reruns):
            target = None
        if target is not None:
            merge([opened.root], target)
            manifest = target.root / SUBMISSIONS / f"{opened.id}.json"
            atomic_write_bytes(manifest, (opened.root / MANIFEST).read_bytes())
            for again in reruns:
                if who is not None and again.verdict in REPRODUCED:
                    record_reproduction(target, again, who)
        rows = (*opened.entries, *(run_id for run_id, _ in opened.problems if run_id))
    return BundleVerification(
        bundle=str(bundle),
        rows=tuple(dict.fromkeys(rows)),
        checks=tuple(checker.counts.values()),
        problems=tuple(checker.problems),
        seconds=time.monotonic() - began,
        id=opened.id,
        by=opened.by,
        board=str(board.root) if compared else None,
        reruns=reruns,
        added_to=None if target is None else str(target.root),
    )


def verify_claims(
    store: Store | Path | str | None = None, *, data_dir: Path | str | None = None
) -> BundleVerification:
    """Check the rows of a store like a bundle's; `verify` checks its files.

    Args:
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: for a store that is not there.
    """
    began, store = time.monotonic(), open_store(store).require()
    checker = Checker(as_path(data_dir), store)
    rows = [row for row in store.rows() if row.status != "error"]
    for problem in store.problems():
        checker.add("", FILES, [problem])
    for entry in entries_of(store, rows):
        checker(entry)
    return BundleVerification(
        bundle=str(store.root),
        rows=tuple(dict.fromkeys(row.row_id for row in rows)),
        checks=tuple(checker.counts.values()),
        problems=tuple(checker.problems),
        seconds=time.monotonic() - began,
    )


def chosen(bundle_id: str, run_ids: Sequence[str], number: int) -> list[str]:
    """Return so many rows of a bundle, in an order that its id gives."""

    def place(run_id: str) -> str:
        return hashlib.sha256(f"{bundle_id} {run_id}".encode()).hexdigest()

    return sorted(run_ids, key=place)[:number]
