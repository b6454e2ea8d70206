"""Sums over images that several objectives share."""

import math
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.bench.evaluation.objectives.base import Projections, Statistic, Sums, triangle
from fedbench.bench.system.seeding import generator

TEMPERATURE = 0.2
"""Of similarities in the global uniformity: the default of `evaluation.objective_temperature`."""


class Pairs(Statistic):
    """Number of images, and the summed cosine of image and view."""

    name = "pairs"
    meaning = "images, summed cosine of image and view"
    sensitivity = math.sqrt(2)

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        unit, view = projections.unit, projections.unit_view
        return torch.stack([unit.new_tensor(float(len(unit))), (unit * view).sum()])


class Directions(Statistic):
    """Sum of unit projections."""

    name = "directions"
    meaning = "summed unit projections"
    sensitivity = 1.0

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        return projections.unit.sum(dim=0)


class DirectionProducts(Statistic):
    """Upper triangle of the sum of u u^T over unit projections u."""

    name = "direction-products"
    meaning = "summed products of unit projections, upper triangle"
    sensitivity = 1.0  # |u u^T|_F = |u|^2, its off-diagonals times sqrt(2)

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        return triangle(projections.unit.T @ projections.unit)

    def noise_scale(self, dim: int) -> Tensor:
        """Return 1 for the diagonal and 1 / sqrt(2) for the rest, which stands for two entries."""
        off = torch.full((dim, dim), math.sqrt(0.5), dtype=torch.float64)
        return triangle(off.fill_diagonal_(1.0))


class Moments(Statistic):
    """Sum of projections z, and upper triangle of the sum of z z^T."""

    name = "moments"
    meaning = "summed projections and their summed products, upper triangle"

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        z = projections.clean
        return torch.cat([z.sum(dim=0), triangle(z.T @ z)])


class ViewScatter(Statistic):
    """Moments of the mean of image and view, and the scatter of the two around it."""

    name = "view-scatter"
    meaning = "moments of the mean of image and view, and scatter around it, upper triangles"

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        mean = (projections.clean + projections.view) / 2
        half = (projections.clean - projections.view) / 2
        within = 2 * (half.T @ half)  # two views at +half and -half
        return torch.cat([mean.sum(dim=0), triangle(mean.T @ mean), triangle(within)])


class Frequencies(Statistic):
    """Sums of cos and sin of unit projections along shared random frequencies.

    The frequencies are normal with variance 1 / 0.2, so that |mean of exp(i w u)|^2 is, on
    average over them, the mean over all pairs of images of exp((s - 1) / 0.2).
    """

    name = "frequencies"
    meaning = "summed cos and sin at 1,024 shared random frequencies"
    sensitivity = math.sqrt(1024)
    # Of isotropic directions 256 frequencies err eight times as much, and 4,096 no less.
    count: ClassVar[int] = 1024

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        unit = projections.unit
        drawn = _normal("objective-frequencies", unit.shape[1], self.count).to(unit.device)
        phases = unit @ drawn / math.sqrt(TEMPERATURE)  # (n, count)
        return torch.stack([phases.cos().sum(dim=0), phases.sin().sum(dim=0)])


class Slices(Statistic):
    """Sums of cos and sin of unit projections, times sqrt(d), along random directions at 8 knots.

    By symmetry of the knots the positive ones of a trapezoid rule with 17 on [-5, 5] are enough.
    """

    name = "slices"
    meaning = "summed cos and sin along 256 shared random directions at 8 knots"
    sensitivity = math.sqrt(256 * 8)
    directions: ClassVar[int] = 256
    knots: ClassVar[tuple[float, ...]] = tuple(0.625 * k for k in range(1, 9))

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        unit = projections.unit
        drawn = _normal("objective-slices", unit.shape[1], self.directions).to(unit.device)
        # Along a direction unit vectors have variance 1 / d, and would be as far from a normal of
        # variance 1 whatever the encoder.
        values = math.sqrt(unit.shape[1]) * (unit @ (drawn / drawn.norm(dim=0)))  # (n, S)
        # cos and sin of multiples of one angle, by the formula for sums of angles.
        cosine, sine = (values * self.knots[0]).cos(), (values * self.knots[0]).sin()
        c, s = cosine, sine
        sums = []
        for _ in self.knots:
            sums.append(torch.stack([c.sum(dim=0), s.sum(dim=0)]))
            c, s = c * cosine - s * sine, s * cosine + c * sine
        return torch.stack(sums, dim=1)


@cache
def _normal(purpose: str, dim: int, count: int) -> Tensor:
    """Return standard normal draws, float64 (dim, count), equal on every machine."""
    return torch.randn(dim, count, dtype=torch.float64, generator=generator(0, purpose, dim))
