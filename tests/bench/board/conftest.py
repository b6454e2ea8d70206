"""Honest rows: three seeds of this project's results."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store


class Run(NamedTuple):
    """A row with its curve."""

    row: Row
    points: list[dict[str, Any]]


RESULTS = Path(__file__).resolve().parents[3] / "leaderboards" / "results"


@pytest.fixture(scope="session")
def honest() -> tuple[Run, ...]:
    """Entries of one configuration under seeds 0, 1 and 2."""
    store = Store(RESULTS)
    rows = [row for row in store.rows() if (row.method, row.grid) == ("simclr", "participation")]
    rows = [row for row in rows if row.participation == 0.5 and row.seed < 3]
    assert [row.seed for row in rows] == [0, 1, 2]
    assert len({row.config_id for row in rows}) == 1
    return tuple(Run(row, store.curve(store.key(row))) for row in rows)
