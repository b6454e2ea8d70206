"""`verify BUNDLE`: all that can be said about others' rows, with and without running them."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.board.bundle import MANIFEST, Bundle, open_bundle
from fedbench.bench.board.copies import known_entries
from fedbench.bench.board.people import Person, person, signature_of, signing_key
from fedbench.bench.board.static import CheckCount, Checker, Problem
from fedbench.bench.board.tiers import record_reproduction
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.store import SUBMISSIONS, Store, open_store
from fedbench.bench.runs.arguments import as_path
from fedbench.bench.runs.execute import OnRound
from fedbench.bench.runs.reproduce import REPRODUCED, Reproduction, reproduce
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.system.files import atomic_write_bytes, write_error

_SLOWER = 5
"""Times the seconds of a row that its repetition may take on a busy machine, unnoted."""


@dataclass(frozen=True)
class BundleVerification:
    """Outcome of a check of a bundle, or of the rows of a store.

    Attributes:
        bundle: its path.
        id: SHA-256 of its manifest; empty for a store.
        by: who submits it; None if it does not say.
        key: fingerprint of the SSH key that signed it; None without a signature.
        rows: row ids, readable or not.
        board: store whose rows it was compared with; None if there is none.
        checks: counts by check.
        problems: contradictions, by row.
        notes: remarks that are no contradiction.
        reruns: reproductions, in the order that the bundle's id gives.
        added_to: store that its rows were added to; None if they were not.
        seconds: wall time.
    """

    bundle: str
    id: str
    by: Person | None
    key: str | None
    rows: tuple[str, ...]
    board: str | None
    checks: tuple[CheckCount, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    reruns: tuple[Reproduction, ...]
    added_to: str | None
    seconds: float

    @property
    def ok(self) -> bool:
        """True without a contradiction, and if each row that was run again was reproduced."""
        return not self.problems and not any(r.verdict == "different" for r in self.reruns)

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench verify BUNDLE --json`."""
        return {
            "ok": self.ok,
            "bundle": self.bundle,
            "id": self.id,
            "by": None if self.by is None else self.by.as_dict(),
            "key": self.key,
            "rows": list(self.rows),
            "board": self.board,
            "checks": [asdict(check) for check in self.checks],
            "problems": [asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
            "reruns": [rerun.as_dict() for rerun in self.reruns],
            "added_to": self.added_to,
            "seconds": self.seconds,
        }


def verify_bundle(
    bundle: Path | str,
    store: Store | Path | str | None = None,
    *,
    rerun: int = 0,
    add_to: Store | Path | str | None = None,
    data_name: str | None = None,
    data_dir: Path | str | None = None,
    checkout: Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    by: str | None = None,
    orcid: str | None = None,
    key: Path | str | None = None,
    on_rerun: Callable[[str], OnRound] | None = None,
) -> BundleVerification:
    """Check a bundle: files, schema, and that its rows contradict neither themselves nor others.

    Args:
        bundle: a .zip or a folder that `submit` wrote.
        store: the board to look for copies in; None = `add_to`, else as `open_store`, and a store
            that is not there has no rows.
        rerun: rows to run again, which the bundle's id chooses.
        add_to: store that takes the rows if nothing contradicts them.
        data_name: as in `reproduce`.
        data_dir: cache of data sets; None = the default one.
        checkout: clone of the project whose commits are known; None = that of this fedbench.
        workers: as in `reproduce`.
        device: as in `reproduce`.
        by: name of who runs rows again; they are then recorded in `add_to`.
        orcid: ORCID iD of the same.
        key: SSH key to sign the records with.
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
    board = open_store(add_to if store is None and add_to is not None else store)
    with open_bundle(bundle) as opened:
        known = known_entries(board, board.rows()) if board.root.is_dir() else []
        checker = Checker(known, as_path(data_dir), checkout, Store(opened.root))
        for row_id, problem in opened.problems:
            checker.file_problem(row_id, problem)
        signer = _signature(opened, checker)
        for entry in opened.entries.values():
            checker(entry)
        checked = checker.result()
        reruns: list[Reproduction] = []
        for row_id in chosen(opened.id, tuple(opened.entries), 0 if checked.problems else rerun):
            reruns.append(
                reproduce(
                    row_id,
                    opened.root,
                    data_name=data_name,
                    data_dir=data_dir,
                    workers=workers,
                    device=device,
                    on_round=None if on_rerun is None else on_rerun(row_id),
                )
            )
        notes = (*checked.notes, *filter(None, map(_slower, reruns)))
        bad = any(rerun.verdict == "different" for rerun in reruns)
        added = add_to is not None and not checked.problems and not bad
        if add_to is not None and added:
            _add(opened, open_store(add_to))
            if who is not None:
                for again in reruns:
                    if again.verdict in REPRODUCED:
                        record_reproduction(open_store(add_to), again, who, as_path(key))
    rows = (*opened.entries, *(row_id for row_id, _ in opened.problems if row_id))
    return BundleVerification(
        bundle=str(bundle),
        id=opened.id,
        by=opened.by,
        key=signer,
        rows=tuple(dict.fromkeys(rows)),
        board=str(board.root) if known else None,
        checks=checked.checks,
        problems=checked.problems,
        notes=notes,
        reruns=tuple(reruns),
        added_to=str(open_store(add_to).root) if added else None,
        seconds=time.monotonic() - began,
    )


def verify_claims(
    store: Store | Path | str | None = None,
    *,
    data_dir: Path | str | None = None,
    checkout: Path | None = None,
) -> BundleVerification:
    """Check the rows of a store as those of a bundle; `verify` checks its files.

    Args:
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.
        checkout: clone of the project whose commits are known; None = that of this fedbench.

    Raises:
        StoreError: for a store that is not there.
    """
    began, store = time.monotonic(), open_store(store).require()
    checker = Checker((), as_path(data_dir), checkout, store)
    entries = known_entries(store, [row for row in store.rows() if row.status != "error"])
    for problem in store.problems():
        checker.file_problem("", problem)
    for entry in entries:
        checker(entry)
    checked = checker.result()
    return BundleVerification(
        bundle=str(store.root),
        id="",
        by=None,
        key=None,
        rows=tuple(dict.fromkeys(entry.row.row_id for entry in entries)),
        board=None,
        checks=checked.checks,
        problems=checked.problems,
        notes=checked.notes,
        reruns=(),
        added_to=None,
        seconds=time.monotonic() - began,
    )


def chosen(bundle_id: str, row_ids: Sequence[str], number: int) -> list[str]:
    """Return so many rows of a bundle, in an order that its id gives."""

    def place(row_id: str) -> str:
        return hashlib.sha256(f"{bundle_id} {row_id}".encode()).hexdigest()

    return sorted(row_ids, key=place)[:number]


def _slower(rerun: Reproduction) -> str:
    """Say that a run took much longer on hardware of the same name; empty if it did not."""
    then, now = rerun.claimed.train_seconds, rerun.row.train_seconds
    alike = all(
        getattr(rerun.claimed, name) == getattr(rerun.row, name) for name in ("hardware", "device")
    )
    if not alike or not then or not now or now < _SLOWER * then:
        return ""
    return (
        f"run {rerun.row_id} trained for {now:.0f} s here and {then:.0f} s as it says, on the same"
        " hardware"
    )


def _signature(bundle: Bundle, checker: Checker) -> str | None:
    try:
        return signing_key(bundle.root / MANIFEST)
    except ResourceError as err:
        checker.note(str(err))
    except ConfigError as err:
        checker.file_problem("", str(err))
    return None


def _add(bundle: Bundle, board: Store) -> None:
    """Merge the rows of a bundle into a board, and keep the manifest that names who sent them."""
    merge([bundle.root], board)
    manifest = bundle.root / MANIFEST
    target = board.root / SUBMISSIONS / f"{bundle.id}.json"
    atomic_write_bytes(target, manifest.read_bytes())
    if signature_of(manifest).exists():
        try:
            shutil.copyfile(signature_of(manifest), signature_of(target))
        except OSError as cause:
            raise write_error(target, cause) from cause
