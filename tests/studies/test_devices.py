"""The analysis of phones finds what made-up runs hold."""

from typing import Any

import pytest

from fedbench.bench.results.store.row import Row
from tests.studies.conftest import made

LOST = {"whole": 0.0, "dropout": 0.02, "deadline": 0.01, "rare and slow": 0.05}


def test_losses_and_regret_of_made_up_runs(study: Any, row: Row) -> None:
    """Spectral loses twice what the others do; the objective prefers 0.03, labels 0.1."""
    devices = study("devices")
    cells = devices.planned()
    assert len(cells) == 4 * 4 * 3 * 5

    def score(config: Any) -> dict[str, float]:
        factor = 2 if config.spec == "spectral" else 1
        linear = 0.4 - factor * LOST[devices.setting_of(config)] + config.seed / 1e5
        linear += 0.004 * (config.client.lr == 0.1)
        return {"linear_acc": linear, "objective": float(config.client.lr == 0.03)}

    table = devices.measured(made(row, cells, score), cells)
    assert len(table) == len(cells)
    assert devices.lost(table, "dropout").mean(axis=1).to_dict() == pytest.approx(
        {"simclr": 2, "byol": 2, "simsiam": 2, "spectral": 4}
    )
    assert devices.lost(table, "rare and slow").loc["spectral"].tolist() == pytest.approx([8] * 5)
    assert devices.regret(table).tolist() == pytest.approx([0.4] * 16)
