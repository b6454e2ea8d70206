"""Made-up rows for the cells of studies."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from fedbench import open_store
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import Cell

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "leaderboards" / "studies"


@pytest.fixture(scope="module")
def row() -> Row:
    """Return any row on the studies' data."""
    return open_store(ROOT / "leaderboards" / "results").rows()[0]


def made(row: Row, cells: Iterable[Cell], score: Callable[[Any], dict[str, Any]]) -> list[Row]:
    """Return a made-up row for each cell, with what `score(config)` gives."""
    rows = []
    for config in (cell.config for cell in cells):
        update = {
            **{"row_id": row_id(config, row.dataset_revision), "seed": config.seed},
            **{"settings": config.model_dump(mode="json"), "method": config.spec},
            **{"alpha": config.data.alpha, "status": "ok", "untrained_linear_acc": 0.3},
            **score(config),
        }
        rows.append(row.model_copy(update=update))
    return rows
