"""Trackers of a sweep and of a study: rounds from the trial processes, rows at their ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench.bench.results.trackers import TensorBoard
from fedbench.bench.tuning.grid import Grid

from .conftest import SMALL, Use

PLAIN = {"federation.num_rounds": 3, "evaluation.protocols": [], "evaluation.untrained": False}
CALL: dict[str, Any] = {"set": {**SMALL, **PLAIN}, "track": ["tensorboard"]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls of a viewer, which still does its work."""
    seen: list[str] = []

    def noted(name: str, text: Callable[..., str]) -> None:
        real = getattr(TensorBoard, name)

        def call(self: TensorBoard, *given: Any, **rest: Any) -> None:
            seen.append(text(*given, **rest))
            real(self, *given, **rest)

        monkeypatch.setattr(TensorBoard, name, call)

    noted("begin", lambda run: f"begin {run.row_id[:4]} {run.study or ''}".strip())
    noted("round", lambda done, seconds, values: f"round {done}")
    noted("finished", lambda row: f"{row.status} {row.row_id[:4]}")
    return seen


def test_a_sweep_shows_rounds_as_they_end(
    tmp_path: Path, in_one_process: Use, calls: list[str]
) -> None:
    in_one_process(width=1)
    grid = Grid(grid="one", description="", methods=("simclr",), seeds=(0, 1))
    result = fedbench.sweep(grid, store=tmp_path, **CALL)
    shown = []
    for cell in result.cells:
        name = cell["run_id"][:4]
        shown.append([f"begin {name}", "round 1", "round 2", "round 3", f"ok {name}"])
    assert calls in (shown[0] + shown[1], shown[1] + shown[0])
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_a_trial_that_pauses_keeps_its_rounds(
    tmp_path: Path, in_one_process: Use, calls: list[str]
) -> None:
    """A rung ends after one round; half of the trials go on. Random inits are no runs."""
    in_one_process(width=1)
    halving = {"trials": 4, "fidelity": "halving", "eta": 4, "rungs": 2}
    result = fedbench.tune("simclr", store=tmp_path, **halving, **CALL)
    begun = [call for call in calls if call.startswith("begin")]
    assert len(begun) == 5 + 6  # the best and the preset on three other seeds
    assert all(call.endswith(result.study_id) for call in begun)
    ended = [index for index, call in enumerate(calls) if call.startswith("ok")]
    assert len(ended) == 1 + 6
    first = calls[ended[0] - 4]
    assert first.startswith("begin")
    assert calls.count(first) == 2
    assert calls[ended[0] - 3 : ended[0]] == ["round 1", "round 2", "round 3"]
