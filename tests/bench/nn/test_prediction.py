"""Prediction losses against slow loops, a second library, and closed forms."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn.losses import mutual_prediction, negative_cosine, spread
from fedbench.bench.system.seeding import generator


def draw(*shape: int, purpose: str = "p") -> Tensor:
    return torch.randn(*shape, generator=generator(0, purpose))


def slow_mean_cosine(a: Tensor, b: Tensor) -> float:
    total = 0.0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        dot = sum(s * t for s, t in zip(x, y, strict=True))
        total += dot / math.sqrt(sum(s * s for s in x) * sum(t * t for t in y))
    return total / len(a)


def test_negative_cosine_equals_a_loop() -> None:
    p, z = draw(6, 5), draw(6, 5, purpose="z")
    assert negative_cosine(p, z).item() == pytest.approx(-slow_mean_cosine(p, z), rel=1e-5)


def test_negative_cosine_equals_lightlys() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that package's own, at import
        theirs = pytest.importorskip("lightly.loss.negative_cosine_similarity")
    p, z = draw(6, 5), draw(6, 5, purpose="z")
    torch.testing.assert_close(negative_cosine(p, z), theirs.NegativeCosineSimilarity()(p, z))


def test_mutual_prediction_crosses_the_views() -> None:
    p1, p2, z1, z2 = (draw(6, 5, purpose=name) for name in ("p1", "p2", "z1", "z2"))
    expected = -(slow_mean_cosine(p1, z2) + slow_mean_cosine(p2, z1)) / 2
    assert mutual_prediction((p1, p2), (z1, z2)).item() == pytest.approx(expected, rel=1e-5)


def test_perfect_prediction_costs_minus_one_whatever_the_lengths() -> None:
    z1, z2 = draw(6, 5), draw(6, 5, purpose="z")
    assert mutual_prediction((3 * z2, 0.1 * z1), (z1, z2)).item() == pytest.approx(-1)
    assert mutual_prediction((-z2, -z1), (z1, z2)).item() == pytest.approx(1)


def test_no_gradient_reaches_what_is_predicted() -> None:
    p1, p2, z1, z2 = (draw(4, 3, purpose=n).requires_grad_() for n in ("p1", "p2", "z1", "z2"))
    mutual_prediction((p1, p2), (z1, z2)).backward()
    assert p1.grad is not None
    assert p2.grad is not None
    assert bool(p1.grad.any())
    assert bool(p2.grad.any())
    assert z1.grad is None
    assert z2.grad is None


def test_bootstrap_loss_has_four_times_the_gradient() -> None:
    # Two directions of 2 - 2 cos: 4 + 4 x ours.
    p1, p2, z1, z2 = (draw(6, 5, purpose=name) for name in ("p1", "p2", "z1", "z2"))
    original = 4 - 2 * (slow_mean_cosine(p1, z2) + slow_mean_cosine(p2, z1))
    assert original == pytest.approx(4 + 4 * mutual_prediction((p1, p2), (z1, z2)).item(), rel=1e-5)


def test_spread_tells_collapse_from_uniform_directions() -> None:
    one_way = torch.arange(1.0, 6.0)[:, None] * torch.tensor([[0.6, 0.8]])
    assert spread(one_way).item() == pytest.approx(0, abs=1e-6)
    # +e_i and -e_i for each of d axes: per dimension the variance is 2 / 2d, so spread is 1.
    axes = torch.cat((torch.eye(7), -torch.eye(7)))
    assert spread(axes).item() == pytest.approx(1, rel=1e-6)
    assert spread(draw(4000, 64)).item() == pytest.approx(1, abs=0.01)
    assert spread(draw(1, 8)).item() == 0
    assert not spread(draw(3, 3).requires_grad_()).requires_grad
