"""Interface of label-free objectives: sums over a client's images, and a score of the global sums.

A client sends sums over its images and nothing else, so that the server may add them under secure
aggregation. `Statistic.of` is that sum; `Objective.combine` sees sums over all clients only, hence
its value is that of the pooled images.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.metrics import SCORES, Metric
from fedbench.bench.system.seeding import generator

Sums = Mapping[str, Tensor]
"""Statistic's name -> float64 sum over all images, of its shape."""

VARIANCE = ".variance"
"""Ending of the entry of noisy sums that has the variance of a sum's noise (`noise_variance`)."""

BYTES = 8
"""Bytes of a number: sums travel in double precision, since centring cancels digits."""


class Projections:
    """Projections of some images and of one augmented view of each, (n, d), n >= 1, finite.

    `turned`, (n, 4, D), are the encoder's own features of each image at its four quarter turns, of
    an objective that has `turns`.
    """

    def __init__(self, clean: Tensor, view: Tensor, turned: Tensor | None = None) -> None:
        self.clean, self.view = clean.double(), view.double()
        self.turned = None if turned is None else turned.double()

    @cached_property
    def unit(self) -> Tensor:
        """Rows of `clean` at length 1; a row of zeros stays."""
        return F.normalize(self.clean, dim=1)

    @cached_property
    def unit_view(self) -> Tensor:
        """Rows of `view` at length 1."""
        return F.normalize(self.view, dim=1)


class Statistic(ABC):
    """A sum over images."""

    name: ClassVar[str]  # in messages and listings
    meaning: ClassVar[str]  # one line
    sensitivity: ClassVar[float | None] = None  # most that one image changes it; None = unbounded
    repeated: ClassVar[bool] = False  # whether it is sent in every exchange but the first

    @abstractmethod
    def of(self, projections: Projections, shared: Sums) -> Tensor:
        """Return the sum over a client's images; `shared` is what the server has sent so far."""

    def noise_scale(self, dim: int) -> Tensor:
        """Return each number's factor of the noise; `sensitivity` is of numbers over these."""
        return torch.ones((), dtype=torch.float64)


def score_of_sums(
    name: str, *reads: str, better: Literal["higher", "lower", "near 1"] = "higher"
) -> Metric:
    """Return the metric of an objective by its name in rows.

    `reads` are further fields of the evaluation: `objective_view` where it uses the view.
    """
    return Metric(name, better=better, reads=(*SCORES, "objective_noise", *reads))


class Objective(ABC):
    """A label-free score; its docstring's first line is shown in listings."""

    name: ClassVar[str]  # on the command line
    metric: ClassVar[Metric]  # the value in rows; see `score_of_sums`
    formula: ClassVar[str]  # one line of plain text
    source: ClassVar[str]  # where it is from; `ours` for our own
    statistics: ClassVar[tuple[Statistic, ...]]  # what clients send
    exchanges: ClassVar[int] = 1  # times that clients send; the server answers between them
    turns: ClassVar[bool] = False  # whether it needs `Projections.turned`; then exchanges > 1
    sees_contraction: ClassVar[bool] = False  # whether shrinking all projections changes it
    trained = ranked = False  # as in `ClientObjective`

    @property
    def metrics(self) -> tuple[str, ...]:
        """The name in rows of its value."""
        return (self.metric.name,)

    def terms(self, figures: Mapping[str, float | None]) -> list[float] | None:
        """Return its value, more is better; None if that is undefined."""
        value = figures.get(self.metric.name)
        return None if value is None else [self.metric.score(value)]

    @abstractmethod
    def combine(self, sums: Sums) -> float | None:
        """Return the value; None where it is undefined, as for collapsed projections."""

    def answer(self, sums: Sums, shared: Sums) -> Sums:
        """Return what the server sends before the next exchange.

        `sums` are of the exchange that has ended; `shared` is what it sent before that one.
        """
        raise NotImplementedError(f"objective {self.name!r} has one exchange")


def noise_variance(sums: Sums, name: str) -> float:
    """Return the variance of the noise on a sum, to be taken out of its squares; 0 without any."""
    return float(sums[name + VARIANCE]) if name + VARIANCE in sums else 0.0


_COINCIDE = 1e-12
"""Mean cosine distances up to here are rounding of projections in single precision."""


def separation(rho: float, delta: float) -> float | None:
    """SEP: 1 - delta / rho, at most 1; None where all projections of each client coincide."""
    return 1 - delta / rho if rho > _COINCIDE else None


def triangle(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix (d, d) as a vector of d (d + 1) / 2."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix), device=matrix.device)
    return matrix[rows, columns]


def symmetric(vector: Tensor) -> Tensor:
    """Return the symmetric matrix (d, d) of an upper triangle, d (d + 1) / 2 numbers."""
    dim = math.isqrt(2 * len(vector))
    matrix = vector.new_zeros(dim, dim)
    rows, columns = torch.triu_indices(dim, dim, device=vector.device)
    matrix[rows, columns] = vector
    return matrix + matrix.T - matrix.diag().diag()


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
