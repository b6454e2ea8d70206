from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedbench.bench.results.statistics import (
    mean,
    pearson,
    sample_std,
    spearman,
    summarize,
    t_interval,
)


def test_against_closed_forms() -> None:
    # 1, 2, 3: mean 2, squared deviations 1 + 0 + 1 over n - 1 = 2, so std 1. With 2 degrees of
    # freedom t has the quantile function t(p) = (2p - 1) sqrt(2 / (4p(1 - p))).
    assert mean([1, 2, 3]) == 2
    assert sample_std([1, 2, 3]) == 1
    p = 0.975
    half = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))) / math.sqrt(3)
    assert t_interval([1, 2, 3]) == pytest.approx((2 - half, 2 + half))
    assert summarize([1, 2, 3]).half_width == pytest.approx(half)


def test_against_scipy() -> None:
    values = np.random.default_rng(0).normal(0.4, 0.01, size=7).tolist()
    expected = stats.t.interval(0.9, 6, loc=np.mean(values), scale=stats.sem(values))
    assert t_interval(values, 0.9) == pytest.approx(expected)
    assert sample_std(values) == pytest.approx(np.std(values, ddof=1))


def test_small_samples_claim_nothing() -> None:
    assert (mean([]), sample_std([]), t_interval([])) == (None, None, None)
    assert (mean([0.5]), sample_std([0.5])) == (0.5, None)
    two = summarize([0.1, 0.3])
    assert two.descriptive
    assert two.std == pytest.approx(math.sqrt(0.02))
    assert (two.ci95_low, two.ci95_high, two.half_width) == (None, None, None)
    assert not summarize([1, 1, 1]).descriptive
    assert t_interval([1, 1, 1]) == (1, 1)


def test_the_mean_does_not_depend_on_order() -> None:
    values = [1e16, 1.0, -1e16, 3.0]
    assert mean(values) == mean(values[::-1]) == 1.0


def test_correlations() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]
    # cov = sum dx dy = (-1.5)(-6.5) + (-.5)(-3.5) + .5*1.5 + 1.5*8.5 = 25; |dx|² = 5, |dy|² = 129
    assert pearson(x, y) == pytest.approx(25 / math.sqrt(5 * 129))
    assert spearman(x, y) == pytest.approx(1)
    # Ranks with a tie: (1, 2.5, 2.5, 4) against (1, 2, 3, 4) gives cov 4.5, norms 4.5 and 5.
    assert spearman([1, 2, 2, 3], x) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert pearson([1, 2], [1, 2]) is None
    assert pearson([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2, 3], [2, 2, 2]) is None
    with pytest.raises(ValueError, match="pairs, got 3 and 2 values"):
        pearson([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="pairs"):
        spearman([1], [1, 2])
