"""Means with intervals, tests and correlations; None where the sample is too small for them."""

import math
from collections.abc import Sequence
from statistics import linear_regression, median
from typing import NamedTuple

MIN_FOR_INTERVAL = 3
"""With fewer values a spread is only described: no interval, no test, no correlation."""

NO_SPREAD = "all seeds of a line have one value, so that nothing says what a further one would give"
"""Why values of three seeds and more have no interval and no test."""

LEVEL = 0.05
"""Significance level of every test."""

_BITS = 30


def rounded(value: float) -> float:
    """Round to 30 binary digits, so that equal counts of right answers compare as equal.

    A mean of S accuracies on n test images is k / (n S), but its double may be off by 2^-53 of its
    power of two. The nearest border between two rounded values, an odd multiple of 2^-31, is at
    least 2^-31 / (n S) away from it, so equal counts are rounded alike while n S < 2^22 (42,000
    images under 100 seeds). Unequal ones differ by 1 / (n S) at least, and stay unequal while
    n S < 2^29. The resolution is 0.9e-9 to 1.9e-9 of the value; an infinite value stays.

    >>> rounded(3 * (273 / 298) / 3) == rounded((272 / 298 + 274 / 298 + 273 / 298) / 3)
    True
    """
    if math.isinf(value):
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, _BITS)), exponent - _BITS)


class Summary(NamedTuple):
    """Mean, sample standard deviation and 95 % t-interval of `n` values; null where undefined."""

    n: int
    mean: float | None
    std: float | None
    ci95_low: float | None
    ci95_high: float | None


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, exactly rounded, so independent of order; None for no values."""
    return math.fsum(values) / len(values) if values else None


def sample_std(values: Sequence[float]) -> float | None:
    """Standard deviation with n - 1 in the denominator; None for fewer than two values."""
    centre = mean(values)
    if centre is None or len(values) < 2:
        return None
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval for the mean of roughly normal values; None below three values."""
    centre, std = mean(values), sample_std(values)
    if centre is None or std is None or len(values) < MIN_FOR_INTERVAL:
        return None
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 0.975))
    half = quantile * std / math.sqrt(len(values))
    return centre - half, centre + half


def welch_error(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Welch's standard error of mean(a) - mean(b), and its degrees of freedom.

    Each side has two values or more.
    """
    first, second = ((sample_std(values) or 0.0) ** 2 / len(values) for values in (a, b))
    total = first + second
    if total == 0:
        return 0.0, len(a) + len(b) - 2
    return math.sqrt(total), total**2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))


def summarize(values: Sequence[float]) -> Summary:
    """Return mean, standard deviation and interval in one record.

    Values that are all alike have no interval: one of no width would say that nothing is unsure.
    """
    low, high = (t_interval(values) if varies(values) else None) or (None, None)
    return Summary(len(values), mean(values), sample_std(values), low, high)


def correlation(
    x: Sequence[float], y: Sequence[float], *, ranks: bool = False
) -> tuple[float | None, float | None, float | None]:
    """Correlation in [-1, 1] with the ends of its 95 % interval by Fisher's z.

    It is linear, or of `ranks` of `rounded` values, ties averaged, with the wider error of Bonett
    and Wright 2000. None below three pairs or when one side is constant; the interval needs four
    pairs and a correlation other than 1 and -1.
    """
    if ranks:
        x, y = [*map(rounded, x)], [*map(rounded, y)]
    if len(x) < MIN_FOR_INTERVAL or len({*x}) == 1 or len({*y}) == 1:
        return None, None, None
    from scipy.stats import pearsonr, spearmanr

    r = float(spearmanr(x, y).statistic if ranks else pearsonr(x, y).statistic)
    if len(x) < 4 or abs(r) >= 1:
        return r, None, None
    variance = (1 + r * r / 2 if ranks else 1.0) / (len(x) - 3)
    half = 1.959963984540054 * math.sqrt(variance)  # the normal quantile of 0.975
    return r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def negligible(value: float, values: Sequence[float]) -> bool:
    """Return True if a difference or spread of some values is no more than their rounding."""
    return abs(value) <= 2.0**-_BITS * max(map(abs, values))


def varies(values: Sequence[float]) -> bool:
    """Return True if values differ by more than their rounding."""
    return not negligible(sample_std(values) or 0.0, values or [0.0])


def brown_forsythe_p(samples: Sequence[Sequence[float]]) -> float:
    """p-value of equal variances: an analysis of variance of distances to medians.

    Source: Brown and Forsythe 1974, https://doi.org/10.1080/01621459.1974.10482955. It is
    `scipy.stats.levene`, whose import takes half a second of every leaderboard.

    Args:
        samples: two or more, of three or more values, not all of them constant.
    """
    from scipy.special import fdtrc

    distances = [[abs(v - median(sample)) for v in sample] for sample in samples]
    n, k = sum(map(len, distances)), len(distances)
    total = math.fsum(d for each in distances for d in each) / n
    means = [math.fsum(each) / len(each) for each in distances]
    between = math.fsum(len(e) * (m - total) ** 2 for e, m in zip(distances, means, strict=True))
    within = math.fsum((d - m) ** 2 for e, m in zip(distances, means, strict=True) for d in e)
    everything = [value for sample in samples for value in sample]
    if negligible(math.sqrt(within), everything):  # of [0, 0, 1, 1] all distances are alike
        return float(negligible(math.sqrt(between), everything))
    return float(fdtrc(k - 1, n - k, (n - k) / (k - 1) * between / within))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number by Holm's step-down rule, in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def friedman_p(table: Sequence[Sequence[float]]) -> float | None:
    """p-value of Friedman's test that all methods are alike, corrected for ties.

    Args:
        table: a `rounded` score for every method (columns) in every task (rows).

    Returns:
        None with fewer than 3 methods or tasks, or when every task ties all methods.
    """
    if len(table) < 3 or len(table[0]) < 3 or all(len({*row}) == 1 for row in table):
        return None
    from scipy.stats import friedmanchisquare

    return float(friedmanchisquare(*zip(*table, strict=True)).pvalue)


def nemenyi_difference(num_methods: int, num_tasks: int) -> float:
    """Mean ranks further apart than this differ at the 5 % level (Demšar 2006, section 3.2.2)."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - LEVEL, num_methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(num_methods * (num_methods + 1) / (6 * num_tasks))


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Least-squares slope of y over x; None unless x has two different values."""
    return linear_regression(x, y).slope if len(set(x)) > 1 else None


def pareto_front(costs: Sequence[float | None], scores: Sequence[float | None]) -> list[bool]:
    """Mark points such that no other is at most as costly and at least as good, and one of both.

    Args:
        costs: lower is better; None = not known, and not marked. Compared `rounded`.
        scores: higher is better; likewise.

    >>> pareto_front([1, 2, 2, 3], [0.5, 0.4, 0.7, 0.7])
    [True, False, True, False]
    """
    known = {
        i: (rounded(cost), rounded(score))
        for i, (cost, score) in enumerate(zip(costs, scores, strict=True))
        if cost is not None and score is not None
    }
    beaten = {
        i
        for i, point in known.items()
        if any(c <= point[0] and s >= point[1] and (c, s) != point for c, s in known.values())
    }
    return [i in known and i not in beaten for i in range(len(costs))]
