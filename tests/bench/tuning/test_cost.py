"""Predicted costs of sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbench.bench.terminal.show_tuning import plan_record
from fedbench.bench.tuning.grid import Scale
from fedbench.bench.tuning.sweep import sweep

from .test_sweep import GRID, SMALL, small


def test_a_dry_run_counts_estimates_and_writes_nothing(tmp_path: Path) -> None:
    result = small(tmp_path / "s", dry_run=True, seeds=[0, 1], concurrency=2)
    assert (result.planned, result.to_run, result.skipped) == (8, 8, 0)
    assert {cell["status"] for cell in result.cells} == {"planned"}
    assert result.estimate.concurrency == 2
    assert result.estimate.hours > 0
    assert result.estimate.bytes_up > 0
    assert result.estimate.device == "cpu"
    finish = result.estimate.finish_hours
    assert sorted(finish) == [1, 2, 8, 64]
    assert finish[1] > finish[2] == result.estimate.hours >= finish[8] >= finish[64]
    assert finish[1] > result.estimate.device_hours > 0
    assert not (tmp_path / "s").exists()
    shown = plan_record(result)
    assert (shown["methods"], shown["seeds"]) == ("simclr, supervised", [0, 1])
    assert json.dumps(result.as_dict())


@pytest.mark.usefixtures("unpriced")
def test_what_follows_an_axis_is_said_once(tmp_path: Path) -> None:
    axes = {"federation.participation": (0.5, 1.0)}
    scaling = {"client.lr": Scale(by="sqrt", of="federation.participation")}
    grid = GRID.model_copy(update={"axes": axes, "scaling": scaling})
    result = sweep(grid, store=tmp_path, set=SMALL, dry_run=True)
    value = "client.lr 0.03 -> 0.0424264: x sqrt(participation 1.0 / 0.5)"
    assert plan_record(result)["scaled"] == [value]
