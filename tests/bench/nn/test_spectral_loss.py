"""The spectral contrastive loss against a slow loop and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn.losses import clip_length, clipped_spectral_contrast, spectral_contrast
from fedbench.bench.system.seeding import generator


def draw(*shape: int, purpose: str = "z") -> Tensor:
    return torch.randn(*shape, generator=generator(0, purpose))


def slow_spectral(z1: Tensor, z2: Tensor) -> float:
    a, b = z1.tolist(), z2.tolist()
    attract, repel = 0.0, 0.0
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product = sum(s * t for s, t in zip(x, y, strict=True))
            if i == j:
                attract -= 2 * product / len(a)
            else:
                repel += product**2 / (len(a) * (len(a) - 1))
    return attract + repel


def slow_clip(z: Tensor, longest: float) -> Tensor:
    rows = []
    for row in z:
        length = math.sqrt(sum(float(x) ** 2 for x in row))
        rows.append(row * longest / length if length > longest else row)
    return torch.stack(rows)


def test_equals_a_double_loop() -> None:
    z1, z2 = draw(6, 4), draw(6, 4, purpose="z2")
    assert spectral_contrast(z1, z2).item() == pytest.approx(slow_spectral(z1, z2), rel=1e-5)


def test_two_pairs_by_hand() -> None:
    z1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    z2 = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    # own products 0.6 and 0: -2 x 0.3; others 1 and 0.8: (1 + 0.64) / 2.
    assert spectral_contrast(z1, z2).item() == pytest.approx(-0.6 + 0.82)


def test_unit_vectors_that_all_coincide_cost_minus_one() -> None:
    z = torch.tensor([[0.6, 0.8]]).expand(5, 2)
    assert spectral_contrast(z, z).item() == pytest.approx(-1)


def test_orthonormal_pairs_cost_minus_two() -> None:
    assert spectral_contrast(torch.eye(4), torch.eye(4)).item() == pytest.approx(-2)


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_clipped_equals_the_slow_way(mu: float) -> None:
    z1, z2 = draw(6, 4), draw(6, 4, purpose="z2")
    clipped = slow_clip(z1, math.sqrt(mu)), slow_clip(z2, math.sqrt(mu))
    expected = slow_spectral(*clipped) / mu
    assert clipped_spectral_contrast(z1, z2, mu).item() == pytest.approx(expected, rel=1e-5)
    # Long vectors that all coincide: products are mu, so (-2 mu + mu^2) / mu.
    far = torch.tensor([[60.0, 80.0]]).expand(5, 2)
    assert clipped_spectral_contrast(far, far, mu).item() == pytest.approx(-2 + mu)


def test_clipping_leaves_short_vectors_and_their_gradient_untouched() -> None:
    z = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0]], requires_grad=True)
    clipped = clip_length(z, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([[0.0, 0.0], [0.3, 0.4], [0.6, 0.8]]))
    clipped.sum().backward()
    assert z.grad is not None
    torch.testing.assert_close(z.grad[:2], torch.ones(2, 2))
    # The long one may only turn: its gradient is orthogonal to it.
    assert float(z.grad[2] @ z[2].detach()) == pytest.approx(0, abs=1e-6)
