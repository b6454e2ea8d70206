"""Alignment and uniformity, and SSD on top: closed forms, directions of clients, refusals."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.system.errors import ConfigError
from fedbench.methods.aligned import log_potential
from fedbench.methods.ssd import distillation
from tests.specs import setup_of


def test_potentials_of_known_configurations() -> None:
    eye = torch.eye(4)
    assert float(log_potential(eye[:1].repeat(5, 1), 2.0)) == pytest.approx(0.0, abs=1e-6)
    assert float(log_potential(torch.stack([eye[0], -eye[0]]), 2.0)) == pytest.approx(
        -8.0, abs=1e-4
    )
    assert float(log_potential(eye, 2.0)) == pytest.approx(-4.0)
    simplex = F.normalize(eye - 0.25, dim=1)  # squared distances 2 + 2/3, times -t
    assert float(log_potential(simplex, 2.0)) == pytest.approx(-16 / 3, abs=1e-5)
    # Two clients that collapsed on orthogonal points: 2 of 6 pairs at distance 0, 4 at sqrt(2).
    both = eye[:2].repeat_interleave(2, dim=0)
    assert float(log_potential(both, 2.0)) == pytest.approx(math.log((2 + 4 * math.exp(-4)) / 6))


@pytest.mark.parametrize(("t", "least"), [(0.5, -2.0), (5.0, -20.0), (50.0, -87.3)])
def test_opposite_points_have_a_finite_potential_and_gradient(t: float, least: float) -> None:
    """-4 t, as long as float32 has such a kernel; beside ones it loses 1e-8 already."""
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    value = log_potential(opposite, t)
    assert float(value.detach()) == pytest.approx(least, rel=1e-3)
    value.backward()
    assert opposite.grad is not None
    assert bool(opposite.grad.isfinite().all())


def test_distillation_is_the_divergence_from_features_to_projections() -> None:
    z, h = torch.tensor([[0.5 * math.log(3), 0.0]]), torch.zeros(1, 2)
    # At temperature 0.5 softmax(z) = (3/4, 1/4) and softmax(h) = (1/2, 1/2).
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(distillation(z, h, 0.5)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 29.16),  # (0.6 - 6)^2
        ({"method__target": "unit"}, 0.599),
        ({"method__target": "unit", "method__reduction": "frobenius"}, 0.774),
    ],
)
def test_separation_by_hand(fields: dict[str, str], expected: float) -> None:
    """The projection (0.6, 0.8), stretched tenfold along the first coordinate: (6, 0.8).

    To unit length that is (0.9912, 0.1322), at a squared distance of 0.1531 + 0.4460 = 0.599; 0.774
    is its root.
    """
    given = {"method__projection_dim": 2, "method__distillation": 0.0, "data__num_clients": 2}
    setup = setup_of("ssd", **given, **fields)
    net = setup.make_net()
    rows = torch.tensor([[0.6, 0.8]])
    value = setup.method._separation(net, rows, torch.tensor([0]))  # type: ignore[attr-defined]
    assert float(value) == pytest.approx(expected, abs=1e-3)


def test_a_rotated_basis_stretches_as_much() -> None:
    given = {"method__projection_dim": 8, "method__distillation": 0.0, "method__basis": "rotated"}
    setup = setup_of("ssd", **given)
    net = setup.make_net()
    axes, share = net.tensor("directions.axes"), 8 // setup.config.data.num_clients
    torch.testing.assert_close(axes @ axes.T, torch.eye(8), atol=1e-5, rtol=0)
    own = axes[:, :1].T  # the first client's first direction
    gap = setup.method._separation(net, own, torch.tensor([0]))  # type: ignore[attr-defined]
    assert share >= 1
    assert float(gap) == pytest.approx((10 - 1) ** 2, rel=1e-4)
    other = setup.method._separation(net, own, torch.tensor([1]))  # type: ignore[attr-defined]
    assert float(other) == pytest.approx(0.0, abs=1e-6)


def test_what_cannot_be_is_refused() -> None:
    few = {"method__projection_dim": 2, "method__distillation": 0.0}
    with pytest.raises(ConfigError, match="4 clients"):
        setup_of("ssd", **few).make_net()
    with pytest.raises(ConfigError, match="width"):
        setup_of("ssd", method__projection_dim=24).make_net()
