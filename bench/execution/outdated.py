"""Stored runs of code that is not installed any more."""

from collections.abc import Iterable

from fedbench.bench.experiment.code import missing_code
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store


def outdated(store: Store, current: Iterable[Row], *, drop: bool = False) -> tuple[str, ...]:
    """Return the ids of stored runs that differ from given ones in the code of packages only.

    With `drop` they are deleted.
    """
    made = [row for row in current if row.code and row.status != "error"]
    if not made:
        return ()
    ids = {_settings(row): row.row_id for row in made}
    specs = {row.method for row in made}
    others = [
        row.row_id
        for row in store.rows()
        if row.method in specs and row.code and not missing_code(row.code)
        if ids.get(_settings(row), row.row_id) != row.row_id
    ]
    names = tuple(sorted(set(others)))
    for name in names if drop else ():
        store.drop(name)
    if names and drop:
        store.refresh()
    return names


def _settings(row: Row) -> tuple[str, str]:
    """Return what identifies a run apart from code of other packages."""
    config = row.config.model_copy(update={"code": {}})
    return str(row.benchmark_version), row_id(config, row.dataset_revision)
