"""Dirichlet draws against closed forms; scaling and rounding against slow loops."""

import numpy as np
import pytest

from fedbench.bench.config.partitioners.dirichlet import (
    largest_remainder,
    log_dirichlet,
    round_to_totals,
    sinkhorn,
)


@pytest.mark.parametrize("a", [0.05, 0.5, 20.0])
def test_log_dirichlet_has_the_moments_of_a_dirichlet(a: float) -> None:
    draws = np.exp(log_dirichlet(np.random.default_rng(0), a, (20_000, 4), axis=1))
    np.testing.assert_allclose(draws.sum(axis=1), 1)
    # mean 1/4; variance (1/4)(3/4) / (4a + 1); 20,000 draws of values in [0, 1]: error < 0.5/141
    np.testing.assert_allclose(draws.mean(axis=0), 0.25, atol=4 * 0.0036)
    np.testing.assert_allclose(draws.var(axis=0), 0.1875 / (4 * a + 1), atol=0.006)


@pytest.mark.parametrize("a", [5e-324, 1e-12, 1e-3, 1e300])
def test_log_dirichlet_survives_any_concentration(a: float) -> None:
    logs = log_dirichlet(np.random.default_rng(0), a, (50, 30), axis=0)
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs).sum(axis=0), 1)


def test_sinkhorn_equals_plain_scaling() -> None:
    rng = np.random.default_rng(1)
    weights = rng.gamma(1.0, size=(7, 4))
    rows, cols = np.array([1.0, 2, 3, 4, 5, 6, 7]), np.array([4.0, 6, 8, 10])
    reference = weights.copy()
    for _ in range(500):
        for c in range(4):
            reference[:, c] *= cols[c] / reference[:, c].sum()
        for k in range(7):
            reference[k] *= rows[k] / reference[k].sum()
    result = sinkhorn(np.log(weights), rows, cols)
    np.testing.assert_allclose(result.sum(axis=1), rows, rtol=1e-12)
    np.testing.assert_allclose(result.sum(axis=0), cols, rtol=2e-3)
    np.testing.assert_allclose(result, reference, rtol=5e-3)


@pytest.mark.parametrize("alpha", [1e-4, 0.03, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_rounding_meets_all_totals_and_stays_near(alpha: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.full(40, 25) + (np.arange(40) < 7)
    cols = np.bincount(rng.integers(0, 6, rows.sum()), minlength=6)
    quotas = sinkhorn(log_dirichlet(rng, alpha, (40, 6), 0), rows.astype(float), cols.astype(float))
    counts = round_to_totals(quotas, rows, cols)
    assert counts.min() >= 0
    np.testing.assert_array_equal(counts.sum(axis=1), rows)
    np.testing.assert_array_equal(counts.sum(axis=0), cols)
    unsettled = np.abs(quotas.sum(axis=0) - cols).max()  # what scaling left to the rounding
    assert np.abs(counts - quotas).max() <= 3 + unsettled


def test_rounding_keeps_whole_numbers_and_repairs_columns_without_shared_rows() -> None:
    whole = np.array([[3.0, 0, 2], [1, 4, 0]])
    np.testing.assert_array_equal(
        round_to_totals(whole, np.array([5, 5]), np.array([4, 4, 2])), whole
    )
    # One-hot rows whose columns are off by 2: the smallest holding of class 0 moves to class 1.
    onehot = np.array([[9.0, 0], [2, 0], [0, 5]])
    counts = round_to_totals(onehot, np.array([9, 2, 5]), np.array([9, 7]))
    assert counts.tolist() == [[9, 0], [0, 2], [0, 5]]


def test_largest_remainder_equals_a_slow_loop() -> None:
    rng = np.random.default_rng(2)
    for total in (0, 1, 17, 1000):
        shares = rng.random(12)
        exact = [total * s / shares.sum() for s in shares]
        slow = [int(e) for e in exact]
        while sum(slow) < total:
            k = max(range(12), key=lambda i: exact[i] - slow[i])
            slow[k] += 1
        assert largest_remainder(rng, shares, total).tolist() == slow


def test_largest_remainder_breaks_ties_at_random() -> None:
    rng = np.random.default_rng(3)
    sums = sum(largest_remainder(rng, np.ones(10), 3) for _ in range(2000))
    # every client 2000 * 3 / 10 = 600 times, standard deviation sqrt(2000 * .3 * .7) = 20.5
    np.testing.assert_allclose(sums, 600, atol=5 * 20.5)
