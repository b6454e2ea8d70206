"""Honest rows: three seeds of this project's results."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedbench.bench.board.bundle import Run, runs_of
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.numerics import Platform

RESULTS = Path(__file__).resolve().parents[3] / "leaderboards" / "results"


@pytest.fixture(scope="session")
def honest() -> tuple[Run, ...]:
    """Entries of one configuration under seeds 0, 1 and 2."""
    store = Store(RESULTS)
    rows = [row for row in store.rows() if (row.method, row.grid) == ("simclr", "participation")]
    rows = [row for row in rows if row.participation == 0.5 and row.seed < 3]
    assert [row.seed for row in rows] == [0, 1, 2]
    assert len({row.config_id for row in rows}) == 1
    return tuple(runs_of(store, rows))


def elsewhere(entry: Run) -> Run:
    """Give a row the record of another numeric platform, which agrees with itself."""
    (record,) = entry.row.platforms
    platform = Platform.from_dict({**record, "fingerprint": "0" * 64})
    columns = {"platform": str(platform), "platforms": [platform.as_dict()]}
    return replace(entry, row=entry.row.model_copy(update=columns))
