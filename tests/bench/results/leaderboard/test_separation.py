"""Tests between lines and what they show: variances, ties, power, and which line is best."""

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.separation import Separation
from fedbench.bench.results.leaderboard.statistics import NO_SPREAD
from tests.bench.results.conftest import rank, seeds_of

RNG = np.random.default_rng(7)
BASE = np.array([0.50, 0.52, 0.47, 0.51, 0.49])
FAR = BASE - [0.10, 0.11, 0.09, 0.12, 0.10]
CLOSE = BASE - [0.01, -0.02, 0.02, -0.01, 0.02]
X = BASE.tolist()
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


@pytest.mark.parametrize("other", [1.0, 0.9])
def test_values_without_spread_are_not_tested(other: float) -> None:
    """Three equal values do not say how far a fourth could be; 0.1 + 0.2 is 0.3 here."""
    assert of([1.0] * 3, [other] * 3).places == []
    assert of([0.3] * 3, [0.3, 0.1 + 0.2, 0.3]).places == []
    standings, group = standings_of({"a": [1.0] * 3, "b": [other] * 3})
    assert set(standings.values()) == {"untested"}
    columns = ("ties", "best", "p_best", "detectable", "ci95_low", "ci95_high")
    assert group.frame[[*columns]].isna().all(axis=None)
    assert NO_SPREAD in group.note


def test_lines_without_spread_beside_others_have_the_variance_of_all() -> None:
    """Welch's own variances would be 0, and the interval of the difference a point."""
    tests = of([1.0] * 7, [0.99] * 7, WIDE)
    assert tests.welch
    half = stats.t.ppf(0.975, 18) * np.sqrt(np.var(WIDE, ddof=1) * 6 / 18 * 2 / 7)
    assert tests.interval(0, 1) == pytest.approx((0.01 - half, 0.01 + half))
    t = (1 - np.mean(WIDE)) / np.sqrt(
        np.var(WIDE, ddof=1) / 7
    )  # Welch's: only one of the two varies
    assert tests.p(0, 2) == pytest.approx(2 * stats.t.sf(t, 6))


@pytest.mark.parametrize(("factor", "p"), [(2.5, 0.0424), (2.2, 0.0658)])
def test_variances_are_unequal_at_five_percent(factor: float, p: float) -> None:
    narrow = [i / 10 for i in range(7)]
    wide = [factor * value for value in narrow]
    assert stats.levene(narrow, wide, center="median").pvalue == pytest.approx(p, abs=1e-4)
    assert of(narrow, wide).welch is (p < 0.05)


def test_all_tests_against_the_first_share_the_level_of_what_is_detectable() -> None:
    samples = {"simclr": X, "byol": Y, "spectral": [0.3, 0.33, 0.31]}
    (group,) = rank(seeds_of(samples)).groups
    expected = of(*samples.values()).detectable(0, 1, tests=2)
    assert group.entries[1].detectable == pytest.approx(expected)


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


@pytest.mark.parametrize(
    ("shift", "p", "ties", "standings"),
    [(0.245, 0.0399, "ab", ("first", "worse")), (0.22, 0.0544, "aa", ("unclear", "unclear"))],
)
def test_lines_are_told_apart_at_five_percent(
    shift: float, p: float, ties: str, standings: tuple[str, str]
) -> None:
    """Deviation 0.1 over 3 seeds: t = shift / (0.1 sqrt(2 / 3)), 3.0006 and 2.694 at 4 degrees."""
    first = [0.5, 0.6, 0.7]
    (group,) = rank(seeds_of({"simclr": first, "byol": [v - shift for v in first]})).groups
    assert group.entries[1].p_best == pytest.approx(p, abs=1e-4)
    assert "".join(entry.ties for entry in group.entries) == ties
    assert tuple(entry.standing for entry in group.entries) == standings


def test_lines_tie_with_the_best_that_they_are_not_told_from() -> None:
    samples = [(BASE - shift).tolist() for shift in (0, 0.01, 0.2, 0.21, 0.4)]
    assert [*of(*samples, [0.1, 0.1]).groups().items()] == [
        (0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c"),
    ]  # fmt: skip


def standings_of(values: Mapping[str, ArrayLike]) -> tuple[dict[str, str], Group]:
    (group,) = rank(
        seeds_of({spec: np.asarray(given).tolist() for spec, given in values.items()})
    ).groups
    return dict(zip(group.frame.method, group.frame.standing, strict=True)), group


def test_best_is_marked_where_some_line_is_told_from_the_first() -> None:
    values: dict[str, ArrayLike] = {"a": BASE, "b": CLOSE, "c": FAR, "d": [0.2, 0.2]}
    standings, group = standings_of(values)
    assert standings == {"a": "first", "b": "alike", "c": "worse", "d": "untested"}
    _, close, far, _ = group.frame.detectable
    assert close == pytest.approx(far)  # one variance, equal seeds
    assert f"{close * 100:.1f} points" in group.note


def test_no_best_is_marked_where_nothing_is_told_apart() -> None:
    noisy = [[0.5, 0.6, 0.4], [0.55, 0.4, 0.45], [0.3, 0.5, 0.35]]
    standings, _ = standings_of(dict(zip("abc", noisy, strict=True)))
    assert set(standings.values()) == {"unclear"}
    standings, group = standings_of({"a": [0.5, 0.6], "b": [0.1, 0.1]})
    assert set(standings.values()) == {"untested"}
    assert group.frame.detectable.isna().all()


def test_a_difference_that_only_the_adjustment_hides_is_unclear() -> None:
    hidden = BASE - 0.03
    others: dict[str, ArrayLike] = {f"close{i}": BASE - i * 1e-5 for i in range(1, 5)}
    values = {"a": BASE, **others, "hidden": hidden, "below": BASE - 0.031, "far": BASE - 0.2}
    # All variances are equal: a pooled sd of one sample, with 4 degrees from each of 8 lines.
    error = np.std(BASE, ddof=1) * np.sqrt(2 / 5)
    p = 2 * stats.t.sf(0.03 / error, 32)
    assert 0.05 / 7 < p < 0.05
    standings, _ = standings_of(values)
    assert (standings["hidden"], standings["below"]) == ("unclear", "unclear")
    assert {standings[name] for name in others} == {"alike"}
    assert standings["far"] == "worse"
