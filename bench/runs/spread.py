"""Spread of seeds: how far two runs of one configuration may differ for no other reason.

Rounding differs between numeric platforms and grows over the rounds, until two runs of one seed
differ at most as two seeds do. A stored value x and a repeated one y then are two draws from the
distribution over seeds, with a standard deviation s that is estimated with v degrees of freedom,
and (y - x) / (s sqrt(2)) has Student's t distribution. The limit of |y - x| is its quantile at a
level of 5 % over all metrics (Bonferroni), at most 4, times s sqrt(2). Without that bound three
seeds would allow ten standard deviations, and more stored seeds could make the check laxer.

An encoder before training has the same weights everywhere: its accuracies may differ by 1 % of the
test images.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.results.leaderboard.comparability import class_of
from fedbench.bench.results.leaderboard.statistics import rounded
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import entry_id

LEVEL = 0.05
"""Probability that a run which differs like another seed exceeds a limit."""
WIDEST = 0.05
"""Largest limit of an accuracy that says anything: 5 points; a convention."""
_MIN_SEEDS = 3
_LARGEST_QUANTILE = 4.0
_UNTRAINED, _SHARE_OF_IMAGES = "untrained_", 0.01
ELSEWHERE = re.compile(r"_(local|train)_")  # accuracies on other images than the test split


@dataclass(frozen=True)
class Spread:
    """One metric of a stored run and of its repetition, and how far they may differ.

    Attributes:
        metric: column, or key of `metrics_json`.
        stored, now: its two values.
        sd: standard deviation of a single run; 0 for an encoder before training.
        limit: largest difference that is within the spread.
        source: seeds or test images that the standard deviation comes from.
    """

    metric: str
    stored: float
    now: float
    sd: float
    limit: float
    source: str

    @property
    def within(self) -> bool:
        """Return True if the values differ by no more than the limit."""
        return rounded(abs(self.now - self.stored)) <= rounded(self.limit)

    @property
    def too_wide(self) -> bool:
        """Return True for an accuracy whose limit allows more than 5 points."""
        return is_accuracy(self.metric) and self.limit > WIDEST

    def as_dict(self) -> dict[str, Any]:
        """Part of the output of `fedbench reproduce --json`."""
        return asdict(self) | {"within": self.within}


def spreads(row: Row, again: Row, rows: Sequence[Row], num_test: int) -> tuple[Spread, ...]:
    """Compare accuracies on the test split and the objective of a run and its repetition.

    The standard deviation is over seeds of the same configuration if the store has 3 or more, else,
    of an accuracy, the binomial standard error of one run. An objective without seeds is left out.
    """
    now = again.metrics
    values = {
        name: (before, now[name])
        for name, before in row.metrics.items()
        if name == "objective" or (is_accuracy(name) and not ELSEWHERE.search(name))
        if name in now
    }
    estimates = {
        name: estimate
        for name, pair in values.items()
        if not name.startswith(_UNTRAINED)
        if (estimate := _estimate(row, name, pair, rows, num_test)) is not None
    }
    trained = tuple(
        Spread(name, *values[name], sd, _quantile(degrees, len(estimates)) * sd * 2**0.5, source)
        for name, (sd, degrees, source) in estimates.items()
    )
    untrained = tuple(
        Spread(name, *pair, 0.0, _SHARE_OF_IMAGES, f"1 % of {num_test:,} test images")
        for name, pair in values.items()
        if name.startswith(_UNTRAINED)
    )
    return trained + untrained


def _quantile(degrees: float, num_metrics: int) -> float:
    from scipy import stats  # imported here: it takes half a second

    return min(_LARGEST_QUANTILE, float(stats.t.ppf(1 - LEVEL / num_metrics / 2, degrees)))


def _estimate(
    row: Row, metric: str, pair: tuple[float, float], rows: Sequence[Row], num_test: int
) -> tuple[float, float, str] | None:
    """Return standard deviation, degrees of freedom, and source; None if nothing tells."""
    entry, identity = entry_id(row), class_of(row, metric)
    seeds: dict[int, float] = {}
    for other in sorted(rows, key=lambda other: other.finished_at):
        alike = entry_id(other) == entry and class_of(other, metric) == identity
        if alike and other.status == "ok" and (value := other.metrics.get(metric)) is not None:
            seeds.setdefault(other.seed, value)
    number = len(seeds)
    if number >= _MIN_SEEDS and (deviation := statistics.stdev(seeds.values())) > 0:
        return deviation, number - 1, f"{number} seeds of this configuration"
    if not is_accuracy(metric):
        return None
    share = min(max(sum(pair) / 2, 0.0), 1.0)
    error = math.sqrt(share * (1 - share) / num_test)
    return error, math.inf, f"binomial, {num_test:,} test images"
