"""Score by which a study ranks its trials: an objective by name, with or without a gate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedbench.bench.evaluation.objectives.base import BYTES, Objective
from fedbench.bench.evaluation.objectives.names import GATE
from fedbench.bench.evaluation.objectives.noise import with_noise
from fedbench.bench.evaluation.objectives.of_clients import DEFAULT, OF_CLIENTS
from fedbench.bench.evaluation.objectives.registry import DEFAULT as DEFAULT_OBJECTIVES
from fedbench.bench.evaluation.objectives.registry import objectives
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.system.errors import ConfigError, UnknownNameError

PER_CLIENT = {name: entry[0] for name, entry in OF_CLIENTS.items()}
_DIM = 128

SHRUNK, NARROW, LEAST_SPREAD, LEAST_DIRECTIONS = 0.1, 0.25, 0.05, 2.0
"""Limits of the gate; conventions, not measured: shares of the untrained encoder's rho and
participation ratio, the least spread of projections, and the least participation ratio."""


@dataclass(frozen=True)
class Scoring:
    """The objective of a study.

    Attributes:
        name: of the objective, with `+gate` if trials are refused that did not learn.

    Raises:
        UnknownNameError: for a name that does not exist.
    """

    name: str = DEFAULT

    def __post_init__(self) -> None:
        if self._plain not in {**PER_CLIENT, **objectives()}:
            more = f"; each may end in {GATE}"
            raise UnknownNameError("objective", self.name, names(), more)

    @property
    def _plain(self) -> str:
        return self.name.removesuffix(GATE)

    @property
    def gated(self) -> bool:
        """Return True if trials that did not learn are refused."""
        return self.name.endswith(GATE)

    @cached_property
    def metric(self) -> str:
        """Return the metric's name in rows."""
        found = self._objective
        return PER_CLIENT[self._plain] if found is None else found.metric.name

    @property
    def _objective(self) -> Objective | None:
        return None if self._plain in PER_CLIENT else objectives()[self._plain]

    def of(self, figures: Mapping[str, float | None]) -> float | None:
        """Return the score of an encoder, more is better; None if it is undefined."""
        value, found = figures.get(self.metric), self._objective
        return value if value is None or found is None else found.metric.score(value)

    @property
    def objectives(self) -> list[str]:
        """Return `evaluation.objectives` by which runs compute it."""
        usual = {*PER_CLIENT, *DEFAULT_OBJECTIVES}
        return [] if self._plain in usual else [self._plain]

    def check_noise(self, multiplier: float | None) -> None:
        """Refuse an objective to whose sums noise gives no epsilon, where there is noise.

        Raises:
            ConfigError: names the objectives that go with it.
        """
        allowed = [objective.name for objective in with_noise(objectives().values())]
        if multiplier is None or self._plain in allowed:
            return
        why = "are values of single clients" if self._objective is None else "are unbounded sums"
        raise ConfigError(
            f"objective {self._plain!r}: its parts {why}, to which"
            f" evaluation.objective_noise gives no epsilon; use {', '.join(allowed)}"
        )

    def scores(self, encoders: Sequence[Mapping[str, float]]) -> list[float]:
        """Return the scores of the encoders that have one."""
        return [score for figures in encoders if (score := self.of(figures)) is not None]

    def refusal(
        self, figures: Mapping[str, float], untrained: Sequence[Mapping[str, float]]
    ) -> str | None:
        """Say why the gate refuses an encoder; None if it passes, or if there is no gate.

        Args:
            figures: of the encoder.
            untrained: of encoders without training.
        """
        if not self.gated:
            return None
        before = {
            name: mean([one[name] for one in untrained if name in one])
            for name in ("rho", "sep", "participation_ratio")
        }
        rho, sep, directions = (figures.get(name) for name in before)
        spread = figures.get("projection_std_ratio")
        if _below(rho, before["rho"], SHRUNK) or (spread is not None and spread < LEAST_SPREAD):
            return "shrunk"
        if _below(directions, before["participation_ratio"], NARROW, LEAST_DIRECTIONS):
            return "narrow"
        learned = sep is not None and (before["sep"] is None or sep > before["sep"])
        return None if learned else "unlearned"


def names() -> list[str]:
    """Return the names that `--objective` takes, without those with a gate."""
    return [*PER_CLIENT, *objectives()]


def metrics() -> list[str]:
    """Return the metrics of all objectives in rows."""
    return [*PER_CLIENT.values(), *(objective.metric.name for objective in objectives().values())]


def _below(value: float | None, before: float | None, share: float, least: float = 0.0) -> bool:
    if value is None:
        return False
    return value < max(least, 0.0 if before is None else share * before)


def objective_records() -> list[dict[str, Any]]:
    """Return a record for each objective: meaning, source, what a client sends and how much."""
    records: list[dict[str, Any]] = []
    for name, (metric, formula, source, sees) in OF_CLIENTS.items():
        numbers = 3 if name == "sep" else 2  # the client's value or two of them, and a 1 to count
        records.append(
            {
                "name": name,
                "metric": metric,
                "better": "higher",
                "over": "clients",
                "formula": formula,
                "source": source,
                "sends": ["one value of each client"],
                "exchanges": 1,
                "bytes": BYTES * numbers,
                "sensitivity": None,
                "sees_contraction": sees,
            }
        )
    for name, objective in objectives().items():
        bounds = [statistic.sensitivity for statistic in objective.statistics]
        known = [bound for bound in bounds if bound is not None]
        records.append(
            {
                "name": name,
                "metric": objective.metric.name,
                "better": objective.metric.better,
                "over": "images",
                "summary": (inspect.getdoc(type(objective)) or "").partition("\n")[0],
                "formula": objective.formula,
                "source": objective.source,
                "sends": [statistic.meaning for statistic in objective.statistics],
                "exchanges": objective.exchanges,
                "bytes": BYTES * objective.numbers(_DIM),
                "sensitivity": math.hypot(*known) if len(known) == len(bounds) else None,
                "sees_contraction": objective.sees_contraction,
            }
        )
    return records
