"""Noise on the sums of objectives: sensitivity, privacy against dp-accounting, no bias."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.evaluation.objectives.accumulator import (
    DELTA,
    Accumulator,
    GaussianNoise,
    epsilon,
    with_noise,
)
from fedbench.bench.evaluation.objectives.base import Projections
from fedbench.bench.evaluation.objectives.registry import objectives
from fedbench.bench.runs.resolve import resolve
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.tuning.scoring import Scoring

PRIVATE = with_noise(objectives().values())
METRICS = [objective.metric.name for objective in PRIVATE]
STATISTICS = {s.name: s for objective in PRIVATE for s in objective.statistics}
DIM = 6


def images(count: int) -> tuple[Tensor, Tensor]:
    """Projections around four centres, and views of them."""
    z = torch.randn(count, DIM, dtype=torch.float64, generator=generator(0, "z"))
    z += 2 * torch.eye(4, DIM, dtype=torch.float64).repeat(count // 4, 1)
    views = torch.randn(count, DIM, dtype=torch.float64, generator=generator(0, "views"))
    return z, z + 0.5 * views


def test_which_objectives_have_an_epsilon() -> None:
    assert METRICS == [
        "global_align", "global_rho", "global_sep", "global_unif", "participation_ratio",
        "self_clustering", "sigreg",
    ]  # fmt: skip


@pytest.mark.parametrize("name", STATISTICS)
def test_one_image_changes_a_sum_by_its_sensitivity_at_most(name: str) -> None:
    """The bound is met: an image that equals its view has the largest change of each."""
    statistic = STATISTICS[name]
    assert statistic.sensitivity is not None
    z, view = images(40)
    z[0] = view[0] = 5.0
    changes = []
    for k in range(len(z)):
        one = statistic.of(Projections(z[k : k + 1], view[k : k + 1]), {})
        changes.append(float((one / statistic.noise_scale(DIM)).norm()))
    assert max(changes) == pytest.approx(statistic.sensitivity)


@pytest.mark.parametrize(("multiplier", "scorings"), [(0.7, 1), (3.73, 1), (10.0, 20), (200.0, 3)])
def test_epsilon_against_dp_accounting(multiplier: float, scorings: int) -> None:
    loss = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    mechanism = loss.GaussianPrivacyLoss(multiplier / math.sqrt(scorings))
    expected = mechanism.get_delta_for_epsilon(epsilon(multiplier, scorings))
    assert expected == pytest.approx(DELTA, rel=1e-6)


def test_noise_of_all_sums_together_costs_what_is_stated() -> None:
    """Standard deviations over sensitivity, as 1 / square, add to that of the multiplier."""
    sums = {s.name: s.of(Projections(*images(40)), {}) for s in STATISTICS.values()}
    noisy = GaussianNoise(3.0, 0).add(sums, list(STATISTICS.values()), DIM)
    precisions = [
        s.sensitivity**2 / float(noisy[f"{s.name}.variance"])
        for s in STATISTICS.values()
        if s.sensitivity is not None
    ]
    assert sum(precisions) == pytest.approx(1 / 3.0**2)
    drawn = (noisy["frequencies"] - sums["frequencies"]) / float(
        noisy["frequencies.variance"]
    ) ** 0.5
    assert float(drawn.std()) == pytest.approx(1, abs=0.05)  # 2,048 draws: 3 sd


def test_noise_adds_no_bias() -> None:
    """Means over 200 draws lie within 4 standard errors of the value without noise."""
    z, view = images(4000)
    clean = Accumulator(PRIVATE, 1)
    clean.add(z, view)
    expected = clean.values()
    found: dict[str, list[float]] = {name: [] for name in METRICS}
    for index in range(200):
        sums = Accumulator(PRIVATE, 1, GaussianNoise(1.0, 0, index))
        sums._sums, sums._dim, sums._clients = clean._sums, DIM, 1
        noisy = sums.values()
        for name in METRICS:
            found[name].append(noisy[name])
    for name in METRICS:
        values = torch.tensor(found[name], dtype=torch.float64)
        error = float(values.std()) / math.sqrt(len(values))
        assert abs(float(values.mean()) - expected[name]) < 4 * error, name
        assert error > 0


def test_noise_differs_between_scorings_and_not_between_runs() -> None:
    z, view = images(40)
    results = []
    for index in (0, 1, 0):
        sums = Accumulator(objectives().values(), 1, GaussianNoise(1.0, 7, index))
        sums.add(z, view)
        results.append(sums.values())
    assert results[0] == results[2] != results[1]
    assert results[0].keys() - {"objective_bytes", "objective_epsilon"} <= {*METRICS}
    assert results[0]["objective_epsilon"] == epsilon(1.0)


def test_a_run_without_noise_keeps_its_identity() -> None:
    """The id is from before there was noise."""
    config = RunConfig.model_validate({})
    noisy = RunConfig.model_validate({"evaluation": {"objective_noise": 2.0}})
    assert row_id(config, "r") == "3dc588f001f90412d10f"
    assert row_id(noisy, "r") != row_id(config, "r")


def test_a_search_takes_an_objective_that_noise_leaves_an_epsilon() -> None:
    Scoring("global-sep+gate").check_noise(1.0)
    Scoring("rankme").check_noise(None)
    for name in ("rankme", "align-unif", "clusterability"):
        with pytest.raises(ConfigError, match="global-sep"):
            Scoring(name).check_noise(1.0)
    with pytest.raises(ConfigError, match="objective_noise"):
        resolve("simclr", set={"evaluation.objective_noise": 0}, environ={})
