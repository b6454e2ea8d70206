"""Scores of studies by name, the gate, and studies that use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS
from fedbench.bench.evaluation.objectives.registry import objectives
from fedbench.bench.results.leaderboard.studies import studies
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.tuning.scoring import Scoring, metrics, names, objective_records

from .conftest import InOneProcess
from .test_study import small

Use = Callable[..., InOneProcess]
BEFORE = [{"rho": 0.9, "sep": 0.2, "participation_ratio": 20.0}, {"rho": 0.7, "sep": 0.4}]
GOOD = {"rho": 0.3, "sep": 0.5, "participation_ratio": 8.0, "projection_std_ratio": 0.5}


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, None),
        ({"rho": 0.0799}, "shrunk"),  # a tenth of the mean 0.8
        ({"rho": 0.0801}, None),
        ({"projection_std_ratio": 0.049}, "shrunk"),
        ({"participation_ratio": 4.99}, "narrow"),  # a quarter of 20
        ({"sep": 0.3}, "unlearned"),  # the mean before
        ({"sep": 0.301}, None),
    ],
)
def test_the_gate(changed: dict[str, float], refusal: str | None) -> None:
    figures = {**GOOD, **changed}
    assert Scoring("align-unif+gate").refusal(figures, BEFORE) == refusal
    assert Scoring("align-unif").refusal(figures, BEFORE) is None


def test_few_directions_are_narrow_whatever_was_before() -> None:
    gate = Scoring("lidar+gate")
    assert gate.refusal({**GOOD, "participation_ratio": 1.9}, []) == "narrow"
    assert gate.refusal({**GOOD, "participation_ratio": 2.1}, []) is None
    undefined = {name: value for name, value in GOOD.items() if name != "sep"}
    assert gate.refusal(undefined, []) == "unlearned"  # collapsed encoders have no SEP


@pytest.mark.parametrize("name", names())
def test_scores_rise_as_the_leaderboards_do(name: str) -> None:
    scoring = Scoring(name)
    for value in (-1.0, 0.3, 1.0, 2.5):
        assert scoring.of({scoring.metric: value}) == needed(scoring.metric).score(value)
    assert scoring.of({}) is None


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="'lidar'"):
        Scoring("lida")
    with pytest.raises(UnknownNameError):
        Scoring("lidar+gates")


def test_listings_agree() -> None:
    assert [*OF_CLIENTS, *SHIPPED] == [*OF_CLIENTS, *objectives()] == names()
    assert all(name == objective.name for name, objective in objectives().items())
    assert [record["name"] for record in objective_records()] == names()
    assert [record["metric"] for record in objective_records()] == metrics()


def test_a_study_by_another_objective(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process()
    result = small(tmp_path, trials=2, sampler="random", objective="self-clustering")
    assert result.objective == "self-clustering"
    assert result.best is not None
    for trial in result.trials:
        assert trial["objective"] == -trial["scores"]["self_clustering"]
        assert {"objective", "sep", "participation_ratio", "self_clustering"} <= set(
            trial["scores"]
        )
        assert "rankme" not in trial["scores"]
    assert result.best["objective"] == max(trial["objective"] for trial in result.trials)
    view = studies(Store(tmp_path))[0]
    assert (view.objective, view.study_id) == ("self-clustering", result.study_id)
    plain = small(tmp_path, trials=2, sampler="random", dry_run=True)
    assert plain.study_id != result.study_id


def test_a_gate_may_refuse_every_trial(tmp_path: Path, in_one_process: Use) -> None:
    """Runs that hardly move are no better than encoders without training."""
    in_one_process(width=7)
    result = small(
        tmp_path,
        trials=2,
        sampler="random",
        objective="align-unif+gate",
        set={"client.lr": 1e-9, "model.norm": "group"},
    )
    assert result.best is None
    assert {trial["status"] for trial in result.trials} == {"refused"}
    assert all(trial["objective"] is None for trial in result.trials)
    assert all("refused by the gate" in trial["error"] for trial in result.trials)
    assert result.config_file is None
