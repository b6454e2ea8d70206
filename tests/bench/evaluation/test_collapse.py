import math

import pytest
import torch

from fedbench.bench.evaluation.collapse import (
    FeatureSpread,
    effective_rank,
    feature_spread,
)
from fedbench.bench.training.personal import relative_movement
from tests.specs import gaussian


def spread(features: torch.Tensor) -> FeatureSpread:
    measured = feature_spread(features)
    assert measured is not None
    return measured


def test_constant_features_are_collapsed() -> None:
    for row in (torch.zeros(8), torch.full((8,), 0.1), gaussian(8)):
        measured = spread(row.expand(50, 8))
        assert measured.std_ratio == pytest.approx(0.0, abs=1e-7)
        assert measured.effective_rank == pytest.approx(1.0)
        assert measured.collapsed is True


def test_isotropic_features_are_not() -> None:
    measured = spread(gaussian(4000, 16))
    assert measured.std_ratio == pytest.approx(1.0, abs=0.02)
    assert measured.effective_rank == pytest.approx(16.0, abs=0.1)
    assert measured.collapsed is False


@pytest.mark.parametrize(("t", "collapsed"), [(0.05, False), (0.04, True)])
def test_spread_and_verdict_by_hand(t: float, collapsed: bool) -> None:
    """Of (1, ±t, ±t) at length 1 two dimensions deviate by t / s, s = sqrt(1 + 2 t^2), one by 0.

    The mean, 2 t / 3 s, times sqrt(3) is 0.0576 and 0.0461; the two deviate alike: rank 2.
    """
    measured = spread(torch.tensor([[1, a, b] for a in (t, -t) for b in (t, -t)]))
    expected = 2 * t / math.sqrt(1 + 2 * t * t) / math.sqrt(3)
    assert [*measured] == [pytest.approx(expected), pytest.approx(2.0), collapsed]


def test_features_on_a_line_are_collapsed_although_their_directions_spread() -> None:
    measured = spread(gaussian(200, 1) @ gaussian(1, 8))
    assert measured.effective_rank == pytest.approx(1.0, abs=1e-3)
    assert measured.std_ratio > 0.5
    assert measured.collapsed is True
    # One dimension or two images cannot do better, so a low rank says nothing about them.
    assert spread(gaussian(200, 1)).collapsed is False
    assert spread(gaussian(2, 8)).collapsed is False


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_effective_rank_by_the_full_decomposition(shape: tuple[int, int]) -> None:
    features = gaussian(*shape).double() * torch.logspace(0, -3, shape[1], dtype=torch.float64) + 7
    singular = torch.linalg.svdvals(features - features.mean(0))
    share = singular[singular > 1e-9] / singular.sum()
    expected = math.exp(-sum(p * math.log(p) for p in share.tolist()))
    assert effective_rank(features) == pytest.approx(expected, rel=1e-5)


def test_non_finite_features_have_no_verdict() -> None:
    features = gaussian(10, 3)
    features[4, 1] = math.nan
    assert feature_spread(features) is None


def test_relative_movement() -> None:
    before = torch.tensor([3.0, 4.0])
    # |(3, 4)| = 5 and the difference (0, 1) has length 1.
    assert relative_movement(before, torch.tensor([3.0, 5.0])) == pytest.approx(0.2)
    assert relative_movement(before, before.clone()) == 0.0
    assert relative_movement(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_movement(torch.zeros(2), before) == math.inf
    assert math.isnan(relative_movement(before, torch.tensor([math.nan, 0.0])))
    assert math.isnan(relative_movement(torch.zeros(2), torch.tensor([math.nan, 0.0])))
