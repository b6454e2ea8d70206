"""FedU2: min-norm weights by hand, logarithms on the sphere, and the server's step."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.testing import all_tensors, tiny_config, tiny_setup, train
from fedbench.methods.fedu2 import min_norm_weights, sphere_log, tangent_transport


def gram(*vectors: tuple[float, ...]) -> np.ndarray:
    rows = np.array(vectors)
    product: np.ndarray = rows @ rows.T
    return product


@pytest.mark.parametrize(
    ("vectors", "weights"),
    [
        (((2.0, 0.0), (0.0, 2.0)), (0.5, 0.5)),
        (((1.0, 0.0), (3.0, 0.0)), (1.0, 0.0)),  # the shorter one of the same direction
        (((1.0, 0.0), (2.0, 1.0)), (1.0, 0.0)),  # v1.v2 >= |v1|^2
        (((0.0, 0.0), (0.0, 0.0)), (0.5, 0.5)),
        (((1.0, 0.0),), (1.0,)),
    ],
)
def test_weights_by_hand(
    vectors: tuple[tuple[float, ...], ...], weights: tuple[float, ...]
) -> None:
    np.testing.assert_allclose(min_norm_weights(gram(*vectors)), weights, atol=1e-9)


def test_opposed_clients_stop_the_server_and_angles_shorten_its_step() -> None:
    weights = min_norm_weights(gram((1.0, 0.0), (-1.0, 0.0)))
    np.testing.assert_allclose(weights, [0.5, 0.5])
    vectors = np.array([(2.0, 0.0), (2 * math.cos(2.5), 2 * math.sin(2.5))])
    shortest = min_norm_weights(vectors @ vectors.T) @ vectors
    assert np.linalg.norm(shortest) == pytest.approx(2 * math.cos(1.25))


def test_logarithms_have_the_length_of_the_angle_and_touch_the_sphere() -> None:
    rng = torch.Generator().manual_seed(0)
    points, rows = (F.normalize(torch.randn(n, 5, generator=rng), dim=1) for n in (3, 7))
    tangents = sphere_log(rows, points)
    angles = torch.acos(points @ rows.T)
    torch.testing.assert_close(tangents.norm(dim=2), angles, atol=1e-4, rtol=1e-4)
    along = (tangents * points[:, None]).sum(dim=2)
    torch.testing.assert_close(along, torch.zeros_like(along), atol=1e-5, rtol=0)
    rows.requires_grad_(True)
    poles = torch.cat([points, -points])
    sphere_log(torch.cat([rows, points]), poles).square().sum().backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())


def test_the_logarithm_of_a_point_at_itself_and_at_its_antipode_is_finite() -> None:
    """The products of unit vectors along the axes are exactly 1 and -1."""
    axes = torch.eye(3)
    tangents = sphere_log(torch.cat([axes, -axes]), axes)
    assert bool(tangents.isfinite().all())
    torch.testing.assert_close(tangents.diagonal().T, torch.zeros(3, 3), atol=2e-3, rtol=0)


def test_transport_is_zero_for_a_permutation_and_not_for_a_point() -> None:
    rng = torch.Generator().manual_seed(0)
    samples, points = (F.normalize(torch.randn(n, 5, generator=rng), dim=1) for n in (8, 4))
    slices = torch.randn(4, 5, 6, generator=rng)
    shuffled = samples[torch.randperm(8, generator=rng)]
    assert float(tangent_transport(shuffled, samples, points, slices)) == pytest.approx(0, abs=1e-9)
    collapsed = samples[:1].expand(8, 5)
    assert float(tangent_transport(collapsed, samples, points, slices)) > 0.1


def test_one_client_at_rate_one_is_taken_as_it_is(tmp_path: Path) -> None:
    """A convex combination of one model is that model, which is what averaging gives."""
    one = {"federation__participation": 0.25, "federation__num_rounds": 1}
    runs = [
        all_tensors(train(tiny_setup(tiny_config(spec, **one, **fields)), tmp_path / spec))
        for spec, fields in (("simclr", {}), ("simclr+fedu2", {"method__fedu2__weight": 0.0}))
    ]
    torch.testing.assert_close(*runs)
