"""Score by which a study ranks its trials, and its comparison with encoders before training.

A collapsed encoder scores 0 and one before training little more, so that a search whose settings do
not learn prefers the trial that moved least. The outcome of a search is therefore compared with
encoders before training of other seeds: did any trial leave their noise?
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedbench.bench.evaluation.objectives.accumulator import bytes_sent
from fedbench.bench.evaluation.objectives.base import BYTES, Objective
from fedbench.bench.evaluation.objectives.names import DEFAULT, GATE, OF_CLIENTS, ClientObjective
from fedbench.bench.evaluation.objectives.scores import ALWAYS, objectives, with_noise
from fedbench.bench.evaluation.shrinkage import SHARES, shrinkage
from fedbench.bench.results.leaderboard.statistics import MIN_FOR_INTERVAL, mean, sample_std
from fedbench.bench.system.errors import ConfigError, UnknownNameError

_DIM = 128
_PARTS = {"sep": ("align", "rho")}

SHRUNK, NARROW, LEAST_SPREAD, LEAST_DIRECTIONS = 0.1, 0.25, 0.05, 2.0
"""Limits of the gate; conventions, not measured: shares of the untrained encoder's rho and
participation ratio, the least spread of projections, and the least participation ratio."""

NUM_SEEDS = 5  # encoders before training that are measured, of consecutive seeds

SPREAD = (*SHARES, "rho", "delta_views", "sep")
"""Figures that trials record besides the objective, and that encoders before training have too."""

MOVEMENT, LEAST_MOVEMENT = "relative_movement", 0.1
"""Distance that a trial's weights moved, in shares of their length; below it, a best trial tends to
be one that learnt little. Found on one study, held up on others:
leaderboards/studies/equivalence."""


@dataclass(frozen=True)
class Scoring:
    """The objective of a study."""

    name: str = DEFAULT  # with `+gate` if trials are refused that did not learn

    def __post_init__(self) -> None:
        if self._plain not in (known := names()):
            raise UnknownNameError("objective", self._plain, known, f"; each may end in {GATE}")

    @property
    def _plain(self) -> str:
        return self.name.removesuffix(GATE)

    @property
    def gated(self) -> bool:
        """Return True if trials that did not learn are refused."""
        return self.name.endswith(GATE)

    @property
    def is_default(self) -> bool:
        """Return True for the default objective, with its gate or without."""
        return self._plain == DEFAULT

    @cached_property
    def objective(self) -> ClientObjective | Objective:
        """The objective, without its gate."""
        return OF_CLIENTS.get(self._plain) or objectives()[self._plain]

    def of(self, figures: Mapping[str, float | None]) -> float | None:
        """Return the score of an encoder, more is better; None if undefined, or `ranked`."""
        terms = None if self.objective.ranked else self.objective.terms(figures)
        return None if terms is None else sum(terms)

    @property
    def objectives(self) -> list[str]:
        """Return `evaluation.objectives` by which runs compute it."""
        usual = {*OF_CLIENTS, *ALWAYS}
        return [] if self._plain in usual else [self._plain]

    def check_noise(self, multiplier: float | None) -> None:
        """Refuse an objective to whose sums noise gives no epsilon, where there is noise."""
        allowed = [objective.name for objective in with_noise(objectives().values())]
        if multiplier is None or self._plain in allowed:
            return
        raise ConfigError(
            f"objective {self._plain!r}: evaluation.objective_noise gives no epsilon to its parts,"
            f" which are no bounded sums; use {', '.join(allowed)}"
        )

    def scores(self, encoders: Sequence[Mapping[str, float]]) -> list[float]:
        """Return the scores of the encoders that have one."""
        return [score for figures in encoders if (score := self.of(figures)) is not None]

    def refusal(
        self, figures: Mapping[str, float], untrained: Sequence[Mapping[str, float]]
    ) -> str | None:
        """Say why the gate refuses an encoder beside untrained ones; None if it passes."""
        if not self.gated:
            return None
        before = means(untrained, ("rho", "sep", "participation_ratio"))

        def below(name: str, share: float, least: float) -> bool:
            return figures.get(name, math.inf) < max(least, share * before.get(name, 0.0))

        if below("rho", SHRUNK, 0.0) or below("projection_std_ratio", 0.0, LEAST_SPREAD):
            return "shrunk"
        if below("participation_ratio", NARROW, LEAST_DIRECTIONS):
            return "narrow"
        learned = figures.get("sep", -math.inf) > before.get("sep", -math.inf)
        return None if learned else "unlearned"


def names() -> list[str]:
    """Return the names that `--objective` takes, without those with a gate."""
    return [*OF_CLIENTS, *objectives()]


def metrics() -> list[str]:
    """Return the metrics of all objectives in rows."""
    per_client = [name for one in OF_CLIENTS.values() for name in one.metrics]
    shared = [objective.metric.name for objective in objectives().values()]
    return list(dict.fromkeys([*per_client, *shared]))


def means(encoders: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return the mean of each figure over the encoders that have it, if any has."""
    found = {name: mean([one[name] for one in encoders if name in one]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def noise_limit(objectives: Sequence[float]) -> float | None:
    """Return the largest objective that one more encoder before training reaches in 39 of 40 draws.

    The upper end of Student's 95 % prediction interval for a further draw of a normal quantity;
    None below three values.
    """
    centre, std = mean(objectives), sample_std(objectives)
    if centre is None or std is None or len(objectives) < MIN_FOR_INTERVAL:
        return None
    from scipy.special import stdtrit

    n = len(objectives)
    return centre + float(stdtrit(n - 1, 0.975)) * std * math.sqrt(1 + 1 / n)


def shrinkage_of(trial: Mapping[str, Any], untrained: Sequence[Mapping[str, float]]) -> str:
    """Describe how a trial's encoder has shrunk since its start; empty if it has not."""
    return shrinkage(trial["spread"], means(untrained, SPREAD))


def objective_records() -> list[dict[str, Any]]:
    """Return a record for each objective: meaning, source, what a client sends and how much."""
    records: list[dict[str, Any]] = []
    for name, one in OF_CLIENTS.items():
        # A client sends align, rho, unif or its loss, and a 1 to count; sep takes align and rho.
        sent = {part for metric in one.metrics for part in _PARTS.get(metric, (metric,))}
        records.append(
            {
                "name": name,
                "metric": " + ".join(one.metrics),
                "better": "lower" if one.metrics == ("final_loss",) else "higher",
                "over": "clients",
                "formula": one.formula,
                "source": one.source
                + (", refuted by leaderboards/studies/confirmation" if one.refuted else ""),
                "sends": [f"{part} of each client" for part in sorted(sent)],
                "exchanges": 1,
                "bytes": BYTES * (len(sent) + 1),
                "sensitivity": None,
                "sees_contraction": one.sees_contraction,
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
                "bytes": bytes_sent(objective, _DIM),
                "sensitivity": math.hypot(*known) if len(known) == len(bounds) else None,
                "sees_contraction": objective.sees_contraction,
            }
        )
    return records
