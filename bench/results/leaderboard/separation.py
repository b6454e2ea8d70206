"""Tests between the entries of a class: which differ, which tie, and what their seeds could show.

Two entries are compared unpaired, since seeds have no effect that two methods share. The variance
is pooled over the entries of the class, or, where Brown and Forsythe's test finds variances
unequal, each entry has its own (Welch), unless neither of the two varies. The tests against one
entry are adjusted for their number by Holm.

Where no entry of the class varies over its seeds, nothing is tested: a variance of 0 is no estimate
of what another seed would do.

A test that rejects nothing may lack the seeds to reject anything. An entry that it does not tell
from the first counts as unclear, and not as alike, if no entry of the class is told from the first,
or if it or a better placed entry differs but for the adjustment to the number of tests.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.results.leaderboard.statistics import (
    LEVEL,
    MIN_FOR_INTERVAL,
    NO_SPREAD,
    brown_forsythe_p,
    holm,
    mean,
    sample_std,
    varies,
    welch_error,
)

POWER = 0.8
"""Probability with which a detectable difference is found."""

STANDINGS = {
    "first": True,  # and the test tells some other entry from it
    "alike": True,  # no sign of a difference from the first, here or better placed
    "unclear": True,  # not told from the first, for want of seeds
    "worse": False,  # told from the first, or diverged
    "untested": None,  # fewer than three seeds, or no spread
}
"""Places of an entry beside the first of its class -> whether it is one of the best."""


class Separation:
    """Tests between samples; those of fewer than three values are left out of everything.

    If none of the others varies, they are left out too.

    Args:
        samples: the values of each entry over its seeds, by its place, best first.

    Attributes:
        places: those of the entries that can be tested.
        welch: True if variances are unequal, so that none is pooled.
    """

    def __init__(self, samples: Mapping[int, Sequence[float]]) -> None:
        enough = {i: v for i, v in samples.items() if len(v) >= MIN_FOR_INTERVAL}
        self._samples = enough if any(map(varies, enough.values())) else {}
        self.places = [*self._samples]
        self._means = {i: mean(v) or 0.0 for i, v in self._samples.items()}
        stds = {i: sample_std(v) or 0.0 for i, v in self._samples.items()}
        self._degrees = sum(len(v) - 1 for v in self._samples.values())
        self.welch = False
        if len(self._samples) > 1:
            sums = (stds[i] ** 2 * (len(v) - 1) for i, v in self._samples.items())
            self._pooled = math.fsum(sums) / self._degrees
            self.welch = brown_forsythe_p([*self._samples.values()]) <= LEVEL

    def p(self, first: int, other: int) -> float:
        """Return the two-sided p-value of a difference between two entries, not adjusted."""
        from scipy.special import stdtr

        difference = self._means[first] - self._means[other]
        error, df = self._error(first, other)
        return float(2 * stdtr(df, -abs(difference) / error))

    def adjusted(self, first: int, others: Sequence[int]) -> dict[int, float]:
        """Return the p-values of some entries against one, adjusted for their number by Holm."""
        return dict(zip(others, holm([self.p(first, i) for i in others]), strict=True))

    def detectable(self, first: int, other: int, tests: int) -> float:
        """Return the smallest difference of means that a test finds with probability 0.8.

        `tests` share the level, as in the first step of Holm's rule.
        """
        from scipy.special import nctdtrinc, stdtrit

        error, df = self._error(first, other)
        # A difference of the wrong sign, which the other tail stands for, is not counted as found.
        limit = -float(stdtrit(df, LEVEL / (2 * tests)))
        return error * float(nctdtrinc(df, 1 - POWER, limit))

    def interval(self, first: int, other: int) -> tuple[float, float]:
        """Return the 95 % interval of the difference of two means, first minus other."""
        from scipy.special import stdtrit

        error, df = self._error(first, other)
        half = float(stdtrit(df, 1 - LEVEL / 2)) * error
        difference = self._means[first] - self._means[other]
        return difference - half, difference + half

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
        a, b = self._samples[first], self._samples[other]
        if self.welch and (varies(a) or varies(b)):
            return welch_error(a, b)
        return math.sqrt(self._pooled * (1 / len(a) + 1 / len(b))), self._degrees


def _letter(number: int) -> str:
    """Return a to z, then aa, ab and so on."""
    number, last = divmod(number, 26)
    return (_letter(number - 1) if number else "") + chr(ord("a") + last)


def tested(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the ranked entries of a class with the tests between them, and what these can show.

    Columns `ties`, `best`, `p_best`, `detectable` and `standing` are added.
    """
    counted = frame["rank"].notna() & (frame.num_diverged == 0)
    samples = enumerate(zip(frame["values"], counted, strict=True))
    tests = Separation({i: values for i, (values, counts) in samples if counts})
    letters, others = tests.groups(), tests.places[1:]
    p = tests.adjusted(0, others) if 0 in letters and others else {}
    detectable = {i: tests.detectable(0, i, len(others)) for i in p}
    # Places before the first entry that differs but for the adjustment; none if no entry is told.
    told = any(value <= LEVEL for value in p.values())
    alike = range(min(i for i in p if tests.p(0, i) <= LEVEL)) if told else range(0)

    def standing(place: int, diverged: int) -> str:
        if diverged or p.get(place, 1.0) <= LEVEL:
            return "worse"
        if not p or place not in letters:
            return "untested"
        if place not in alike:
            return "unclear"
        return "alike" if place else "first"

    standings = [standing(i, diverged) for i, diverged in enumerate(frame.num_diverged)]
    places = range(len(frame))
    columns = {
        "ties": [*map(letters.get, places)],
        "best": [STANDINGS[each] if p else None for each in standings],
        "p_best": [*map(p.get, places)],
        "detectable": [*map(detectable.get, places)],
        "standing": standings,
    }
    found = pd.DataFrame(columns, frame.index, dtype=object)
    frame = pd.concat([frame.astype(object), found], axis="columns")
    if not p:
        enough = counted & (frame.n_seeds >= MIN_FOR_INTERVAL)
        testable = enough.iloc[0] and enough.sum() > 1
        why = NO_SPREAD if testable else "fewer than 3 seeds of the first or the others"
        return frame, "" if len(frame) < 2 else f"Not tested: {why}."
    counts = [frame.n_seeds.iloc[i] for i in (0, *p)]
    number = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
    test = f"{'Welch' if tests.welch else 't'} test over {number} seeds"
    return frame, _note(frame.iloc[0], Counter(standings), p, test, detectable.values())


def _note(
    first: Any, times: Counter[str], p: Mapping[int, float], test: str, detectable: Any
) -> str:
    percent = is_accuracy(first.metric)
    ends = (min(detectable), max(detectable))
    sizes = dict.fromkeys(f"{d * 100:.1f}" if percent else f"{d:.3f}" for d in ends)
    size = f"{' to '.join(sizes)}{' points' * percent}"
    finest = f"it finds a difference of {size} with probability 0.8"
    num_told = sum(value <= LEVEL for value in p.values())
    if not num_told:
        others = "the other method" if len(p) == 1 else f"any of the other {len(p)}"
        return f"No best is marked: a {test} does not tell {others} from the first; {finest}."
    note = f"Best: {first.label}"
    if alike := times["alike"]:
        note += f", and {alike} that a {test} does not tell from it"
    else:
        note += f", told from {num_told} by a {test}"
    if unclear := times["unclear"]:
        note += f"; {unclear} unclear for want of seeds"
    return f"{note}; {finest}."
