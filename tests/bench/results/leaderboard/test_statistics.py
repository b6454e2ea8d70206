import math

import numpy as np
import pytest
from scipy import stats

from fedbench.bench.results.leaderboard.statistics import (
    brown_forsythe_p,
    correlation,
    friedman_p,
    holm,
    mean,
    nemenyi_difference,
    pareto_front,
    rounded,
    sample_std,
    slope,
    summarize,
    t_interval,
    welch_error,
)
from fedbench.bench.results.leaderboard.studies import correlate


def test_against_closed_forms() -> None:
    # 1, 2, 3: mean 2, squared deviations 1 + 0 + 1 over n - 1 = 2, so std 1. With 2 degrees of
    # freedom t has the quantile function t(p) = (2p - 1) sqrt(2 / (4p(1 - p))).
    assert mean([1, 2, 3]) == 2
    assert sample_std([1, 2, 3]) == 1
    p = 0.975
    half = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))) / math.sqrt(3)
    assert t_interval([1, 2, 3]) == pytest.approx((2 - half, 2 + half))
    three = summarize([1, 2, 3])
    assert (three.ci95_low, three.ci95_high) == pytest.approx((2 - half, 2 + half))


def test_equal_variances_against_scipy() -> None:
    rng = np.random.default_rng(1)
    for sizes, scales in (((3, 3), (1, 1)), ((3, 4, 7), (1, 5, 2)), ((5, 5), (0.0, 1.0))):
        samples = [rng.normal(0.4, s, size=n).tolist() for n, s in zip(sizes, scales, strict=True)]
        expected = stats.levene(*samples, center="median").pvalue
        assert brown_forsythe_p(samples) == pytest.approx(expected)
    # All distances to medians are 1, or 1 and 2: nothing varies within a sample.
    assert brown_forsythe_p([[0, 0, 2, 2], [1, 1, 3, 3]]) == 1
    assert brown_forsythe_p([[0, 0, 2, 2], [0, 0, 4, 4]]) == 0
    counts = ([41, 41, 44, 44], [57, 57, 60, 60])  # right answers of 298: again all distances alike
    assert brown_forsythe_p([[count / 298 for count in each] for each in counts]) == 1


def test_the_error_of_a_difference_against_scipy() -> None:
    a, b = [0.41, 0.43, 0.48], [0.35, 0.36, 0.36, 0.41]
    error, df = welch_error(a, b)
    test = stats.ttest_ind(a, b, equal_var=False)
    assert (df, np.mean(a) - np.mean(b)) == pytest.approx((test.df, test.statistic * error))
    assert welch_error([0.25] * 3, [0.5] * 4) == (0.0, 5)  # by hand: nothing varies


def test_the_mean_does_not_depend_on_order() -> None:
    values = [1e16, 1.0, -1e16, 3.0]
    assert mean(values) == mean(values[::-1]) == 1.0


def test_correlations() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]
    # cov = sum dx dy = (-1.5)(-6.5) + (-.5)(-3.5) + .5*1.5 + 1.5*8.5 = 25; |dx|² = 5, |dy|² = 129
    assert correlation(x, y)[0] == pytest.approx(25 / math.sqrt(5 * 129))
    assert correlation(x, y, ranks=True)[0] == pytest.approx(1)
    # Ranks with a tie: (1, 2.5, 2.5, 4) against (1, 2, 3, 4) gives cov 4.5, norms 4.5 and 5.
    assert correlation([1, 2, 2, 3], x, ranks=True)[0] == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert correlation([1, 2, 3], [1, 3, 2])[0] == pytest.approx(0.5)
    assert correlation([1, 2, 3], [1, 3, 2])[1:] == (None, None)  # too few pairs
    assert correlation(x, x)[1:] == (None, None)  # no interval of 1
    for pair in (([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [2, 2, 2])):
        assert correlation(*pair) == correlation(*pair, ranks=True) == (None, None, None)


def test_intervals_of_correlations() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=12)
    y = x + rng.normal(size=12)
    result = stats.pearsonr(x, y)
    expected = (result.statistic, *result.confidence_interval(0.95))
    assert correlation(x.tolist(), y.tolist()) == pytest.approx(expected)
    # Six of eight ranks are off by one: rho = 1 - 6 * 6 / (8 * 63) = 13 / 14.
    # Bonett and Wright: z = 1.6479, se = sqrt((1 + 169 / 392) / 5) = 0.53500.
    swapped = [2, 1, 3, 5, 4, 6, 8, 7]
    low, high = math.tanh(1.647918 - 1.048581), math.tanh(1.647918 + 1.048581)
    found = correlate("knn_acc", [*zip(range(8), swapped, strict=True)])
    assert (found.pearson, found.spearman) == pytest.approx((13 / 14, 13 / 14))
    assert (found.spearman_low, found.spearman_high) == pytest.approx((low, high), abs=1e-5)
    half = 1.959964 / math.sqrt(5)
    assert found.pearson_low == pytest.approx(math.tanh(1.647918 - half), abs=1e-5)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.03, 0.04 times 3, 2, 1 is 0.03, 0.06, 0.04; the last is lifted to 0.06.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_many_tasks() -> None:
    # Demšar 2006, JMLR 7, table 5: q = 2.343, 2.569, 3.164 for 3, 4, 10 methods; with four on 14
    # sets his critical difference is 1.25.
    for methods, q in ((3, 2.343), (4, 2.569), (10, 3.164)):
        expected = q * math.sqrt(methods * (methods + 1) / (6 * 14))
        assert nemenyi_difference(methods, 14) == pytest.approx(expected, abs=1e-3)
    assert nemenyi_difference(4, 14) == pytest.approx(1.25, abs=5e-3)
    # Tasks that agree: chi² = 12 * 5 / (4 * 5) * (1 + 4 + 9 + 16) - 3 * 5 * 5 = 15.
    agree = [[0.9, 0.5, 0.4, 0.1]] * 5
    assert friedman_p(agree) == pytest.approx(stats.chi2.sf(15, 3))
    assert friedman_p(agree[:2]) is None
    assert friedman_p([[1, 1, 1]] * 5) is None


@pytest.mark.parametrize("images", [298, 1024, 5120, 10_000, 8192 * 5])
def test_equal_counts_tie_and_unequal_ones_do_not(images: int) -> None:
    """Means of accuracies are equal when their right answers are, whatever the last bit is."""
    rng = np.random.default_rng(images)
    for seeds in (3, 5, 10):
        for _ in range(200):
            counts = rng.integers(0, images + 1, seeds)
            total = int(counts.sum())
            parts = rng.multinomial(total, [1 / seeds] * seeds)
            first, second = (
                mean([int(count) / images for count in each]) or 0 for each in (counts, parts)
            )
            assert rounded(first) == rounded(second)
            assert correlation([first, second, 2], [1, 1, 2], ranks=True)[0] == pytest.approx(1)
            parts[0] += 1
            third = mean([int(count) / images for count in parts]) or 0
            assert rounded(third) > rounded(first)
    tied = (272 / 298 + 274 / 298 + 273 / 298, 3 * (273 / 298), 273 / 298 * 3)
    assert friedman_p([[*map(rounded, tied)]] * 5) is None
    assert pareto_front([1, 1], [third, third + 1e-16]) == [True, True]


def test_rounding_joins_last_bits_and_keeps_counts_of_many_images_apart() -> None:
    for eighths in range(1, 8):
        for off in (-math.inf, math.inf):
            assert rounded(math.nextafter(eighths / 8, off)) == eighths / 8
    assert rounded((2**27 + 1) / 2**28) > rounded(2**27 / 2**28)


def test_slope() -> None:
    assert slope([-1, 0, 2], [0.1, 0.2, 0.4]) == pytest.approx(0.1)
    assert slope([1, 1], [0.1, 0.2]) is None


def test_pareto_front() -> None:
    costs, scores = [1.0, 2.0, 2.0, 3.0, None, 0.0], [0.5, 0.4, 0.7, 0.7, 0.9, None]
    assert pareto_front(costs, scores) == [True, False, True, False, False, False]
    assert pareto_front([1.0, 1.0], [0.5, 0.5]) == [True, True]  # neither is better than the other
    assert pareto_front([1.0, 1.0], [0.4, 0.5]) == [False, True]
