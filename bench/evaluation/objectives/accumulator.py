"""Sums of all objectives over clients, one client at a time, with Gaussian noise or without."""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from fedbench.bench.evaluation.metrics import ENCODERS, Metric, register
from fedbench.bench.evaluation.objectives.base import (
    BYTES,
    VARIANCE,
    Objective,
    Projections,
    Statistic,
    Sums,
)
from fedbench.bench.system.seeding import generator

DELTA = 1e-5
"""At which the epsilon of a scoring is stated."""


class GaussianNoise:
    """Noise that the server, or secure aggregation, adds to the sums of one scoring.

    The protected unit is one image: epsilon holds for the sums of all clients with and without it,
    given the encoder. Each of S sums gets noise of standard deviation multiplier * sensitivity *
    sqrt(S), so that together they cost what one sum with noise multiplier * sensitivity would.
    Draws follow from the run's seed, as all others: this measures what noise does to a score, and
    whoever knows the seed can subtract it. `index` tells runs and their scorings apart.
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
            plain = sums[statistic.name]
            draws = torch.randn(plain.shape, dtype=torch.float64, generator=self._generator)
            noisy[statistic.name] = plain + std * statistic.noise_scale(dim) * draws
            noisy[statistic.name + VARIANCE] = torch.tensor(std**2, dtype=torch.float64)
        return noisy


def epsilon(multiplier: float, scorings: int = 1) -> float:
    """Return the least epsilon of some scorings with noise, at `DELTA`.

    Exact, from the two normal distributions that differ by one image: Balle & Wang 2018
    (https://arxiv.org/abs/1805.06530), theorem 8. Scorings add up as 1 / multiplier^2.

    >>> round(epsilon(3.73), 2)
    1.0
    >>> epsilon(2.0, scorings=4) == epsilon(1.0), epsilon(1e5)
    (True, 0.0)
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    shift = math.sqrt(scorings) / multiplier  # between the two, in standard deviations

    def excess(value: float) -> float:
        lost = norm.logcdf(-shift / 2 - value / shift) + value
        return float(norm.cdf(shift / 2 - value / shift) - math.exp(lost) - DELTA)

    if excess(0.0) <= 0:
        return 0.0
    bound = shift**2 / 2 + shift * math.sqrt(2 * math.log(1 / DELTA))
    return float(brentq(excess, 0.0, bound, xtol=1e-12, rtol=1e-10))


_READS = ("objective_clients", "objective_noise", *ENCODERS)
OBJECTIVE_BYTES = register(Metric("objective_bytes", unit="bytes", better="lower", reads=_READS))
OBJECTIVE_EPSILON = register(Metric("objective_epsilon", better="lower", reads=_READS))
KEPT = 10_000
"""Images of all clients together that objectives with several exchanges are computed on, at most;
an equal share of every client."""


class Accumulator:
    """Adds up what clients send, and gives the values.

    Memory does not grow with the number of clients, but for at most `KEPT` projections. With noise
    on the sums all objectives have an epsilon (`scores.with_noise`).
    """

    def __init__(
        self,
        objectives: Collection[Objective],
        num_clients: int,
        noise: GaussianNoise | None = None,
    ) -> None:
        self._objectives = objectives
        sent = [s for one in objectives if one.exchanges == 1 for s in one.statistics]
        self._statistics = {statistic.name: statistic for statistic in sent}  # each once
        self._noise = noise
        self.share = max(1, KEPT // num_clients)  # kept of a client
        self.turns = any(objective.turns for objective in objectives)
        self._kept: list[Projections] = []
        self.sums: dict[str, Tensor] = {}
        self.dim = self._clients = 0

    def add(self, clean: Tensor, view: Tensor, turned: Tensor | None = None) -> None:
        """Add a client's projections of its images and of one view of each, (n, d), n >= 1.

        With `turns` also the encoder's features (n, 4, D) of at least the first `share` images.
        """
        projections = Projections(clean, view)
        parts = {name: each.of(projections, {}) for name, each in self._statistics.items()}
        if any(objective.exchanges > 1 for objective in self._objectives):
            # Copies: a view would keep all projections of the client.
            given = (clean, view) if turned is None else (clean, view, turned)
            self._kept.append(Projections(*(part[: self.share].clone() for part in given)))
        self.merge(parts, clean.shape[1])

    def merge(self, parts: Sums, dim: int) -> None:
        """Add a client's sums, over projections of `dim` numbers."""
        for name, part in parts.items():
            known = self.sums.get(name)
            self.sums[name] = part if known is None else known + part
        self.dim = dim
        self._clients += 1

    def values(self) -> dict[str, float]:
        """Return metric -> value, without those that are undefined, of at least one client.

        `objective_bytes` is what all clients send for all of them, each statistic once;
        `objective_epsilon` what the scoring costs with noise.
        """
        found = {}
        sums: Sums = {name: value.cpu() for name, value in self.sums.items()}
        if self._noise is not None:
            sums = self._noise.add(sums, self._statistics.values(), self.dim)
            found[OBJECTIVE_EPSILON.name] = epsilon(self._noise.multiplier)
        numbers = sum(value.numel() for value in self.sums.values())
        for objective in self._objectives:
            seen = sums
            if objective.exchanges > 1:
                seen, more = self._exchange(objective)
                numbers += more
            value = objective.combine(seen)
            if value is not None:
                found[objective.metric.name] = float(value)  # a plugin may give a tensor
        found[OBJECTIVE_BYTES.name] = float(BYTES * numbers * self._clients)
        return found

    def _exchange(self, objective: Objective) -> tuple[Sums, int]:
        """Return the sums of the last exchange, and how many numbers a client sent in all."""
        shared: Sums = {}
        numbers = 0
        sums: dict[str, Tensor] = {}
        for step in range(objective.exchanges):
            if step:
                shared = objective.answer(sums, shared)
            for statistic in objective.statistics:
                if statistic.repeated == bool(step):
                    parts = [statistic.of(projections, shared) for projections in self._kept]
                    sums[statistic.name] = torch.stack(parts).sum(dim=0)
                    numbers += parts[0].numel()
        return sums, numbers


def bytes_sent(objective: Objective, dim: int) -> int:
    """Return the bytes that a client sends for an objective of projections of `dim` numbers."""
    sums = Accumulator([objective], 1)
    sums.add(torch.ones(1, dim), torch.ones(1, dim), torch.ones(1, 4, dim))
    numbers = sum(value.numel() for value in sums.sums.values())
    return BYTES * (numbers if objective.exchanges == 1 else sums._exchange(objective)[1])
