"""Gaussian noise on the sums that objectives are computed from, and the privacy that it gives."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from fedbench.bench.evaluation.objectives.base import VARIANCE, Objective, Statistic, Sums
from fedbench.bench.system.seeding import generator

DELTA = 1e-5
"""At which the epsilon of a scoring is stated."""


class GaussianNoise:
    """Noise that the server, or secure aggregation, adds to the sums of one scoring.

    The protected unit is one image: epsilon holds for the sums of all clients with and without it,
    given the encoder. Each of S sums gets noise of standard deviation multiplier * sensitivity *
    sqrt(S), so that together they cost what one sum with noise multiplier * sensitivity would.
    Draws follow from the run's seed, as all others: this measures what noise does to a score, and
    whoever knows the seed can subtract it.

    Args:
        multiplier: standard deviation over sensitivity, > 0.
        seed: of the run.
        index: tells scorings of a run apart.
    """

    def __init__(self, multiplier: float, seed: int, *index: int) -> None:
        self.multiplier = multiplier
        self._generator = generator(seed, "objective-noise", *index)

    def add(self, sums: Sums, statistics: Collection[Statistic], dim: int) -> Sums:
        """Return noisy sums, and the variance of the noise of each by its name and `VARIANCE`."""
        noisy: dict[str, Tensor] = {}
        for statistic in statistics:
            assert statistic.sensitivity is not None
            std = self.multiplier * statistic.sensitivity * math.sqrt(len(statistics))
            shape = statistic.shape(dim)
            draws = torch.randn(shape, dtype=torch.float64, generator=self._generator)
            noisy[statistic.name] = sums[statistic.name] + std * statistic.noise_scale(dim) * draws
            noisy[statistic.name + VARIANCE] = torch.tensor(std**2, dtype=torch.float64)
        return noisy


def with_noise(objectives: Iterable[Objective]) -> list[Objective]:
    """Return the objectives that bounded sums of one exchange are enough for."""
    return [
        objective
        for objective in objectives
        if objective.exchanges == 1
        and all(statistic.sensitivity is not None for statistic in objective.statistics)
    ]


def epsilon(multiplier: float, scorings: int = 1, delta: float = DELTA) -> float:
    """Return the least epsilon of some scorings with noise, at a delta.

    Exact, from the two normal distributions that differ by one image: Balle & Wang 2018
    (https://arxiv.org/abs/1805.06530), theorem 8. Scorings add up as 1 / multiplier^2.

    >>> round(epsilon(3.73), 2)
    1.0
    >>> epsilon(2.0, scorings=4) == epsilon(1.0)
    True
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    shift = math.sqrt(scorings) / multiplier  # between the two, in standard deviations

    def excess(value: float) -> float:
        lost = norm.logcdf(-shift / 2 - value / shift) + value
        return float(norm.cdf(shift / 2 - value / shift) - math.exp(lost) - delta)

    if excess(0.0) <= 0:
        return 0.0
    bound = shift**2 / 2 + shift * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(excess, 0.0, bound, xtol=1e-12, rtol=1e-10))
