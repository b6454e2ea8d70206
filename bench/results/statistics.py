"""Means with intervals, and correlations. Nothing is reported that the sample cannot carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_FOR_INTERVAL = 3
"""With fewer values a spread is only described: no interval, no correlation."""


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation and 95 % t-interval of `n` values; null where undefined."""

    n: int
    mean: float | None
    std: float | None
    ci95_low: float | None
    ci95_high: float | None

    @property
    def descriptive(self) -> bool:
        """True when there are too few values for an interval."""
        return self.n < MIN_FOR_INTERVAL

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval."""
        if self.ci95_low is None or self.ci95_high is None:
            return None
        return (self.ci95_high - self.ci95_low) / 2


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, exactly rounded, so independent of order; None for no values."""
    return math.fsum(values) / len(values) if values else None


def sample_std(values: Sequence[float]) -> float | None:
    """Standard deviation with n - 1 in the denominator; None for fewer than two values."""
    centre = mean(values)
    if centre is None or len(values) < 2:
        return None
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean, assuming roughly normal values; None below three values."""
    centre, std = mean(values), sample_std(values)
    if centre is None or std is None or len(values) < MIN_FOR_INTERVAL:
        return None
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 0.5 + confidence / 2))
    half = quantile * std / math.sqrt(len(values))
    return centre - half, centre + half


def summarize(values: Sequence[float]) -> Summary:
    """All of the above in one record."""
    low, high = t_interval(values) or (None, None)
    return Summary(len(values), mean(values), sample_std(values), low, high)


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Linear correlation in [-1, 1]; None below three pairs or when one side is constant.

    Raises:
        ValueError: when the two are of different length.
    """
    if len(x) != len(y):
        raise ValueError(f"correlation needs pairs, got {len(x)} and {len(y)} values")
    if len(x) < MIN_FOR_INTERVAL or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    from scipy.stats import pearsonr

    return float(pearsonr(x, y).statistic)


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Rank correlation in [-1, 1] with ties averaged; None as for `pearson`.

    Raises:
        ValueError: when the two are of different length.
    """
    if len(x) != len(y):
        raise ValueError(f"correlation needs pairs, got {len(x)} and {len(y)} values")
    if len(x) < MIN_FOR_INTERVAL or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)
