"""Tests between lines: pooled and own variances, ties, and what is found with probability 0.8."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedbench.bench.results.leaderboard.separation import Separation

RNG = np.random.default_rng(7)
X = [0.50, 0.52, 0.47, 0.51, 0.49]
Y = [0.46, 0.49, 0.43, 0.47]
WIDE = [0.0, 1.0, 0.1, 0.9, 0.5, 0.05, 0.95]


def of(*samples: list[float]) -> Separation:
    return Separation(dict(enumerate(samples)))


def test_two_lines_are_students_and_welchs_test() -> None:
    assert of(X, Y).p(0, 1) == pytest.approx(stats.ttest_ind(X, Y).pvalue)
    assert stats.levene(X, WIDE, center="median").pvalue < 0.05
    unequal = of(X, WIDE)
    assert unequal.welch
    assert unequal.p(0, 1) == pytest.approx(stats.ttest_ind(X, WIDE, equal_var=False).pvalue)


def test_the_variance_is_pooled_over_all_lines_with_three_seeds() -> None:
    """(n1 + n2 + n3 - 3) degrees of freedom; a line of two seeds is left out."""
    third = [0.3, 0.33, 0.31]
    tests = of(X, Y, third, [0.1, 0.9])
    assert tests.places == [0, 1, 2]
    squares = sum((len(v) - 1) * np.var(v, ddof=1) for v in (X, Y, third))
    error = np.sqrt(squares / 9 * (1 / 5 + 1 / 4))
    t = (np.mean(X) - np.mean(Y)) / error
    assert tests.p(0, 1) == pytest.approx(2 * stats.t.sf(t, 9))


def test_equal_values_are_never_told_apart_and_constant_ones_always() -> None:
    assert of([0.5] * 3, [0.5] * 3).p(0, 1) == 1
    assert of([0.5] * 3, [0.4] * 3).p(0, 1) == 0


@pytest.mark.parametrize("other", [Y, WIDE])
def test_the_detectable_difference_is_found_with_probability_four_fifths(
    other: list[float],
) -> None:
    """20,000 draws of two normal samples: the share has a standard error of 0.003."""
    tests = of(X, other)
    size = tests.detectable(0, 1, tests=3)
    n, m = len(X), len(other)
    spreads = (np.std(X, ddof=1), np.std(other, ddof=1))
    if not tests.welch:
        pooled = np.sqrt(((n - 1) * spreads[0] ** 2 + (m - 1) * spreads[1] ** 2) / (n + m - 2))
        spreads = (pooled, pooled)
    a = RNG.normal(size, spreads[0], (20_000, n))
    b = RNG.normal(0, spreads[1], (20_000, m))
    p = stats.ttest_ind(a, b, axis=1, equal_var=not tests.welch).pvalue
    # Welch's degrees of freedom are those of the samples, which vary.
    assert np.mean(p <= 0.05 / 3) == pytest.approx(0.8, abs=0.015 if not tests.welch else 0.1)


def test_lines_tie_with_the_best_that_they_are_not_told_from() -> None:
    base = np.array(X)
    samples = [(base - shift).tolist() for shift in (0, 0.01, 0.2, 0.21, 0.4)]
    assert [*of(*samples, [0.1, 0.1]).groups().items()] == [
        (0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c"),
    ]  # fmt: skip
