"""Sums of all objectives over clients, one client at a time."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fedbench.bench.evaluation.metrics import ENCODERS, Metric, register
from fedbench.bench.evaluation.objectives.base import (
    BYTES,
    Objective,
    Projections,
    Statistic,
    Sums,
)
from fedbench.bench.evaluation.objectives.noise import GaussianNoise, epsilon, with_noise

OBJECTIVE_BYTES = register(
    Metric(
        "objective_bytes",
        unit="bytes",
        better="lower",
        reads=("objective_clients", "objective_noise", *ENCODERS),
    )
)
OBJECTIVE_EPSILON = register(
    Metric(
        "objective_epsilon",
        better="lower",
        reads=("objective_clients", "objective_noise", *ENCODERS),
    )
)
KEPT = 10_000
"""Images of all clients together that objectives with several exchanges are computed on, at most;
an equal share of every client."""


class Accumulator:
    """Adds up what clients send, and gives the values.

    Memory does not grow with the number of clients, but for at most `KEPT` projections.

    Args:
        objectives: what is computed.
        num_clients: clients that will be added.
        noise: added to the sums; only objectives that it leaves an epsilon are then computed.
    """

    def __init__(
        self,
        objectives: Collection[Objective],
        num_clients: int,
        noise: GaussianNoise | None = None,
    ) -> None:
        self._objectives = objectives if noise is None else with_noise(objectives)
        self._noise = noise
        self._share = max(1, KEPT // max(1, num_clients))
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._sums: dict[str, Tensor] = {}
        self._dim = self._clients = 0

    def add(self, clean: Tensor, view: Tensor) -> None:
        """Add a client's projections of its images and of one view of each, (n, d), n >= 1."""
        projections = Projections(clean, view)
        for statistic in _statistics(self._single):
            part = statistic.of(projections, {})
            known = self._sums.get(statistic.name)
            self._sums[statistic.name] = part if known is None else known + part
        if any(objective.exchanges > 1 for objective in self._objectives):
            self._kept.append((clean[: self._share], view[: self._share]))
        self._dim = clean.shape[1]
        self._clients += 1

    def values(self) -> dict[str, float]:
        """Return metric -> value, without those that are undefined; empty without clients.

        `objective_bytes` is what all clients send for all of them, each statistic once;
        `objective_epsilon` what the scoring costs with noise.
        """
        if not self._clients:
            return {}
        found = {}
        sums: Sums = {name: value.cpu() for name, value in self._sums.items()}
        if self._noise is not None:
            sums = self._noise.add(sums, _statistics(self._single), self._dim)
            found[OBJECTIVE_EPSILON.name] = epsilon(self._noise.multiplier)
        for objective in self._objectives:
            value = objective.combine(
                sums if objective.exchanges == 1 else self._exchange(objective)
            )
            if value is not None:
                found[objective.metric.name] = value
        numbers = sum(s.numbers(self._dim) for s in _statistics(self._single))
        numbers += sum(o.numbers(self._dim) for o in self._objectives if o.exchanges > 1)
        found[OBJECTIVE_BYTES.name] = float(BYTES * numbers * self._clients)
        return found

    @property
    def _single(self) -> list[Objective]:
        return [objective for objective in self._objectives if objective.exchanges == 1]

    def _exchange(self, objective: Objective) -> Sums:
        """Return the sums of the last exchange of an objective that has several."""
        shared: Sums = {}
        sums: dict[str, Tensor] = {}
        clients = [Projections(clean, view) for clean, view in self._kept]
        for step in range(objective.exchanges):
            if step:
                shared = objective.answer(sums, shared)
            for statistic in objective.statistics:
                if statistic.repeated == bool(step):
                    parts = [statistic.of(projections, shared) for projections in clients]
                    sums[statistic.name] = torch.stack(parts).sum(dim=0)
        return sums


def _statistics(objectives: Collection[Objective]) -> list[Statistic]:
    """Return the statistics of some objectives, each once."""
    named = {s.name: s for objective in objectives for s in objective.statistics}
    return list(named.values())
