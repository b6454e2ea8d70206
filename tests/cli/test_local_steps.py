"""The commands name local steps, and refuse runs in which nobody trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conftest import Answer

Call = Callable[..., Answer]

# Digits: 1,201 training images = 250 * 4 + 201, so that 49 clients hold 4 and 201 hold 5.
MANY = ("--set", "data.num_clients=250", "--set", "data.partition=iid")
FIVES = ("--set", "client.keep_last_batch=false", "--set", "client.batch_size=5")
SMALL = ("--set", "model.width=4", "--set", "federation.num_rounds=1")


def test_the_plan_of_a_run_has_its_steps(call: Call, tmp_path: Path) -> None:
    words = ("run", "simclr", *MANY, *FIVES, *SMALL, "--store", tmp_path, "--dry-run")
    assert call(*words, "--json").json["local_steps"] == {
        "least": 0,
        "median": 2.0,
        "most": 2,  # local epochs of one step
        "num_clients": 250,
        "idle_clients": 49,
    }
    assert "49 of 250 clients" in call(*words).out
