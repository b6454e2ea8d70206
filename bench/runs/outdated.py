"""Runs that code of other packages made which is not installed any more."""

from __future__ import annotations

from collections.abc import Iterable

from fedbench.bench.config import row_id
from fedbench.bench.results.store.reader import list_folder
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import REPRODUCTIONS, SUBMISSIONS, Store


def outdated(store: Store, current: Iterable[Row]) -> tuple[str, ...]:
    """Return the ids of stored runs that differ from given ones in the code of packages only.

    Runs that others submitted or reproduced are left out: their code is not this machine's.

    Args:
        store: the store.
        current: rows that the installed code made; those that failed replace nothing.
    """
    made = [row for row in current if row.code and row.status != "error"]
    if not made:
        return ()
    ids = {_settings(row): row.row_id for row in made}
    specs = {row.method for row in made}
    others = [
        row.row_id
        for row in store.rows()
        if row.method in specs and row.code
        if ids.get(_settings(row), row.row_id) != row.row_id
    ]
    public = [path.name for path in list_folder(store.root / REPRODUCTIONS)]
    if others:
        manifests = list_folder(store.root / SUBMISSIONS)
        public += [path.read_text(encoding="utf-8") for path in manifests if path.is_file()]
    return tuple(sorted({n for n in others if not any(n in text for text in public)}))


def drop_outdated(store: Store, current: Iterable[Row]) -> tuple[str, ...]:
    """Delete the runs that `outdated` finds, and return their ids.

    Raises:
        StoreError: if the store cannot be written.
    """
    names = outdated(store, current)
    for name in names:
        store.drop(name)
    if names:
        store.refresh()
    return names


def _settings(row: Row) -> tuple[str, str]:
    """Return what identifies a run apart from code of other packages."""
    config = row.config.model_copy(update={"code": {}})
    return str(row.benchmark_version), row_id(config, row.dataset_revision)
