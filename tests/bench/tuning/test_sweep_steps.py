"""What a sweep says of local steps before it runs anything."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.system.errors import ConfigError
from fedbench.bench.terminal.show_tuning import local_steps
from fedbench.bench.tuning.grid import Grid
from fedbench.bench.tuning.sweep import SweepResult, sweep

from .conftest import InOneProcess

Use = Callable[..., InOneProcess]
GRID = Grid(
    grid="small",
    description="for tests",
    axes={"data.num_clients": (3, 6)},
    methods=("simclr",),
    seeds=(0,),
)
# 60 images: 20 for each of 3 clients, 10 for each of 6.
SMALL: dict[str, Any] = {
    "data.train_subset": 60,
    "data.test_subset": 30,
    "data.partition": "iid",
    "client.keep_last_batch": False,
    "client.local_epochs": 2,
    "federation.num_rounds": 1,
    "model.width": 4,
    "evaluation.protocols": ["knn"],
    "evaluation.objective_max_examples": 20,
}


def small(store: Path, batch_size: int, **settings: Any) -> SweepResult:
    given = {**SMALL, "client.batch_size": batch_size, **settings.pop("set", {})}
    return sweep(GRID, store=store, set=given, **settings)


@pytest.mark.usefixtures("unpriced")
def test_a_plan_has_the_steps_of_every_cell(tmp_path: Path) -> None:
    result = small(tmp_path, 8, dry_run=True)
    steps = [cell["local_steps"] for cell in json.loads(json.dumps(result.as_dict()))["cells"]]
    # 2 epochs of 20 // 8 = 2 batches; 2 epochs of 10 // 8 = 1 batch.
    assert steps == [
        {"least": 4, "median": 4.0, "most": 4, "num_clients": 3, "idle_clients": 0},
        {"least": 2, "median": 2.0, "most": 2, "num_clients": 6, "idle_clients": 0},
    ]
    shown = local_steps(result.cells)
    assert [(line["setting"], line["least"], line["most"]) for line in shown] == [
        ("data.num_clients=3", 4, 4),
        ("data.num_clients=6", 2, 2),
    ]


def test_cells_in_which_nobody_trains_are_refused(tmp_path: Path, in_one_process: Use) -> None:
    process = in_one_process()
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=r"1 of 2 cells.*num_clients=6.*client.batch_size"):
            small(tmp_path, 16, dry_run=dry_run)
    assert process.ran == []
    result = small(tmp_path, 16, set={"client.local_epochs": 0})  # not meant to train
    assert (result.planned, result.done) == (2, 2)


def test_clients_that_never_train_are_named_once(
    tmp_path: Path, in_one_process: Use, caplog: pytest.LogCaptureFixture
) -> None:
    in_one_process()
    uneven = {"data.partition": "dirichlet", "data.alpha": 0.1}
    with caplog.at_level(logging.WARNING):
        result = small(tmp_path, 8, set=uneven)
    assert result.done == 2
    idle = [cell["local_steps"]["idle_clients"] for cell in result.cells]
    assert 0 < idle[1] < 6
    (warning,) = [r.getMessage() for r in caplog.records if "never train" in r.getMessage()]
    number = sum(map(bool, idle))
    assert warning.startswith(f"{number} of 2 cells")
    assert f"{idle[1]} of 6 clients" in warning
