"""LeJEPA: SIGReg's closed forms, and sums over clients that are those of pooled images."""

from __future__ import annotations

import math

import pytest
import torch

from fedbench.methods.lejepa import sigreg, waves


def value_of(rows: torch.Tensor, directions: torch.Tensor) -> float:
    cosines, sines = waves(rows, directions)
    return float(sigreg(cosines.mean(dim=0), sines.mean(dim=0), 1))


@pytest.mark.parametrize(("projected", "expected"), [(0.0, 0.40205), (0.5, 0.6167), (1.0, 1.1860)])
def test_collapsed_embeddings(projected: float, expected: float) -> None:
    rows, direction = torch.full((4, 1), projected), torch.ones(1, 1)
    assert value_of(rows, direction) == pytest.approx(expected, abs=1e-4)
    assert value_of(-rows, direction) == pytest.approx(expected, abs=1e-4)


def test_normal_embeddings_do_not_depend_on_their_number() -> None:
    """The expectation is sum of w phi (1 - phi^2) = 1.052; widths add up to sqrt(2 pi) erf."""
    directions = torch.eye(1000)  # so many independent draws
    rng = torch.Generator().manual_seed(0)
    for size in (32, 256):
        rows = torch.randn(size, 1000, generator=rng)
        assert size * value_of(rows, directions) == pytest.approx(1.052, rel=0.1)
    nothing = torch.zeros(1, 17)
    knots = 3 / 16 * torch.arange(17)
    phi = torch.exp(-knots.square() / 2)
    # With phi' = phi - 1 in place of the means, the squared distance is 1 at every knot.
    total = float(sigreg(phi[None] - 1, nothing, 1))
    assert total == pytest.approx(math.sqrt(2 * math.pi) * math.erf(3 / math.sqrt(2)), abs=1e-3)
