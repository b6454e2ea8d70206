"""Stores and runs by what a person types."""

from __future__ import annotations

from fedbench.bench.errors import ConfigError, StoreError
from fedbench.bench.results.reader import tables_in
from fedbench.bench.results.row import Row
from fedbench.bench.results.store import Store

LEAST = 4
"""Characters that a beginning of a row id must have."""


def existing(store: Store) -> Store:
    """The store itself.

    Raises:
        StoreError: if its folder is not there.
    """
    if not store.root.exists():
        raise StoreError(f"there is no store at {str(store.root)!r}; name another with --store")
    return store


def find_row(store: Store, run_id: str) -> Row:
    """The row of a run.

    Args:
        store: holds it.
        run_id: its row id, or a beginning of it, at least `LEAST` characters, that no other has.

    Raises:
        StoreError: for a store that is not there, a run that is not in it, or an unreadable row.
        ConfigError: where several runs begin so.
    """
    row = existing(store).row(run_id)
    if row is None and len(run_id) >= LEAST:
        found = [p.stem for p in tables_in(store.root / "rows") if p.stem.startswith(run_id)]
        if len(found) > 1:
            shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
            raise ConfigError(f"{len(found)} runs begin with {run_id!r}: {shown}; give more of it")
        row = store.row(found[0]) if found else None
    if row is None:
        raise StoreError(
            f"no run {run_id!r} in store {str(store.root)!r}; `fedbench leaderboard --json` lists"
            f" row ids; {LEAST} characters will do where no other begins with them"
        )
    return row
