"""Tests between the lines of a class: which differ, which tie, and what their seeds could show.

Two lines are compared unpaired, since seeds have no effect that two methods share. The variance is
pooled over the lines of the class, or, where Brown and Forsythe's test finds variances unequal,
each line has its own (Welch). The tests against one line are adjusted for their number by Holm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedbench.bench.results.leaderboard.statistics import (
    LEVEL,
    MIN_FOR_INTERVAL,
    holm,
    negligible,
    sample_std,
)

POWER = 0.8
"""Probability with which a detectable difference is found."""


class Separation:
    """Tests between samples; those of fewer than three values are left out of everything.

    Args:
        samples: the values of each line over its seeds, by the line's place, best first.

    Attributes:
        welch: True if variances are unequal, so that none is pooled.
    """

    def __init__(self, samples: Mapping[int, Sequence[float]]) -> None:
        self._samples = {i: v for i, v in samples.items() if len(v) >= MIN_FOR_INTERVAL}
        self._variance: dict[int, float] = {}
        self.welch = False
        if len(self._samples) > 1:
            from scipy.stats import levene

            stds = {i: sample_std(v) or 0.0 for i, v in self._samples.items()}
            self._variance = {i: std**2 for i, std in stds.items()}
            if not all(negligible(stds[i], v) for i, v in self._samples.items()):
                p = float(levene(*self._samples.values(), center="median").pvalue)
                self.welch = p <= LEVEL  # False where it is undefined

    @property
    def places(self) -> list[int]:
        """Places of the lines that can be tested."""
        return [*self._samples]

    def p(self, first: int, other: int) -> float:
        """Return the two-sided p-value of a difference between two lines, not adjusted."""
        from scipy.stats import t

        x, y = self._samples[first], self._samples[other]
        difference = math.fsum(x) / len(x) - math.fsum(y) / len(y)
        error, df = self._error(first, other)
        if negligible(error, (*x, *y)):
            return float(negligible(difference, (*x, *y)))
        return float(2 * t.sf(abs(difference) / error, df))

    def adjusted(self, first: int, others: Sequence[int]) -> dict[int, float]:
        """Return the p-values of some lines against one, adjusted for their number by Holm."""
        return dict(zip(others, holm([self.p(first, i) for i in others]), strict=True))

    def detectable(self, first: int, other: int, tests: int) -> float:
        """Return the smallest difference of means that a test finds with probability 0.8.

        Args:
            first: place of a line.
            other: place of another.
            tests: number of tests that share the level, as in the first step of Holm's rule.
        """
        from scipy.special import nctdtrinc
        from scipy.stats import t

        error, df = self._error(first, other)
        limit = float(t.isf(LEVEL / (2 * tests), df))
        return error * float(nctdtrinc(df, 1 - POWER, limit))

    def groups(self) -> dict[int, str]:
        """Return a letter for each line: lines that are not told from the first of a group tie.

        The best line leads group a, with all that the tests do not tell from it; the best of the
        others leads group b, and so on.
        """
        letters: dict[int, str] = {}
        left, number = self.places, 0
        while left:
            first, *others = left
            p = self.adjusted(first, others)
            tied = [first, *(i for i in others if p[i] > LEVEL)]
            letters |= dict.fromkeys(tied, _letter(number))
            left, number = [i for i in left if i not in letters], number + 1
        return letters

    def _error(self, first: int, other: int) -> tuple[float, float]:
        """Return the standard error of a difference of two means, and its degrees of freedom."""
        n, m = len(self._samples[first]), len(self._samples[other])
        if self.welch:
            a, b = self._variance[first] / n, self._variance[other] / m
            total = a + b
            if total == 0:
                return 0.0, n + m - 2
            return math.sqrt(total), total**2 / (a**2 / (n - 1) + b**2 / (m - 1))
        df = sum(len(v) - 1 for v in self._samples.values())
        pooled = math.fsum(self._variance[i] * (len(v) - 1) for i, v in self._samples.items()) / df
        return math.sqrt(pooled * (1 / n + 1 / m)), df


def _letter(number: int) -> str:
    """Return a to z, then aa, ab and so on."""
    number, last = divmod(number, 26)
    return (_letter(number - 1) if number else "") + chr(ord("a") + last)
