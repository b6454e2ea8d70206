"""Interface of label-free objectives: sums over a client's images, and a score of the global sums.

A client sends sums over its images and nothing else, so that the server may add them under secure
aggregation. `Statistic.of` is that sum; `Objective.combine` sees sums over all clients only, hence
its value is that of the pooled images.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.metrics import SCORES, Metric

Sums = Mapping[str, Tensor]
"""Statistic's name -> float64 sum over all images, of its shape."""

VARIANCE = ".variance"
"""Ending of the entry of noisy sums that has the variance of a sum's noise (`noise_variance`)."""

BYTES = 8
"""Bytes of a number: sums travel in double precision, since centring cancels digits."""


class Projections:
    """Projections of some images and of one augmented view of each, (n, d), n >= 1, finite."""

    def __init__(self, clean: Tensor, view: Tensor) -> None:
        self.clean, self.view = clean.double(), view.double()

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
