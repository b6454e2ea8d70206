"""Tests between the entries of a class: which differ, which tie, and what their seeds could show.

Two entries are compared unpaired, since seeds have no effect that two methods share. The variance
is pooled over the entries of the class, or, where Brown and Forsythe's test finds variances
unequal, each entry has its own (Welch). The tests against one entry are adjusted for their number
by Holm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedbench.bench.results.leaderboard.statistics import (
    LEVEL,
    MIN_FOR_INTERVAL,
    brown_forsythe_p,
    holm,
    negligible,
    sample_std,
)

POWER = 0.8
"""Probability with which a detectable difference is found."""


class Separation:
    """Tests between samples; those of fewer than three values are left out of everything.

    Args:
        samples: the values of each entry over its seeds, by its place, best first.

    Attributes:
        welch: True if variances are unequal, so that none is pooled.
    """

    def __init__(self, samples: Mapping[int, Sequence[float]]) -> None:
        self._samples = {i: v for i, v in samples.items() if len(v) >= MIN_FOR_INTERVAL}
        self._means = {i: math.fsum(v) / len(v) for i, v in self._samples.items()}
        self._largest = {i: max(map(abs, v)) for i, v in self._samples.items()}
        self._variance: dict[int, float] = {}
        self.welch = False
        if len(self._samples) > 1:
            stds = {i: sample_std(v) or 0.0 for i, v in self._samples.items()}
            self._variance = {i: std**2 for i, std in stds.items()}
            degrees = {i: len(v) - 1 for i, v in self._samples.items()}
            self._degrees = sum(degrees.values())
            sums = (self._variance[i] * degrees[i] for i in degrees)
            self._pooled = math.fsum(sums) / self._degrees
            if not all(negligible(stds[i], v) for i, v in self._samples.items()):
                self.welch = brown_forsythe_p([*self._samples.values()]) <= LEVEL

    @property
    def places(self) -> list[int]:
        """Places of the entries that can be tested."""
        return [*self._samples]

    def p(self, first: int, other: int) -> float:
        """Return the two-sided p-value of a difference between two entries, not adjusted."""
        from scipy.special import stdtr

        difference = self._means[first] - self._means[other]
        error, df = self._error(first, other)
        scale = (self._largest[first], self._largest[other])
        if negligible(error, scale):
            return float(negligible(difference, scale))
        return float(2 * stdtr(df, -abs(difference) / error))

    def adjusted(self, first: int, others: Sequence[int]) -> dict[int, float]:
        """Return the p-values of some entries against one, adjusted for their number by Holm."""
        return dict(zip(others, holm([self.p(first, i) for i in others]), strict=True))

    def detectable(self, first: int, other: int, tests: int) -> float:
        """Return the smallest difference of means that a test finds with probability 0.8.

        Args:
            first: place of an entry.
            other: place of another.
            tests: number of tests that share the level, as in the first step of Holm's rule.
        """
        from scipy.special import nctdtrinc, stdtrit

        error, df = self._error(first, other)
        limit = -float(stdtrit(df, LEVEL / (2 * tests)))
        return error * float(nctdtrinc(df, 1 - POWER, limit))

    def groups(self) -> dict[int, str]:
        """Return a letter for each entry: entries that are not told from the first of a group tie.

        The best entry leads group a, with all that the tests do not tell from it; the best of the
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
        return math.sqrt(self._pooled * (1 / n + 1 / m)), self._degrees


def _letter(number: int) -> str:
    """Return a to z, then aa, ab and so on."""
    number, last = divmod(number, 26)
    return (_letter(number - 1) if number else "") + chr(ord("a") + last)
