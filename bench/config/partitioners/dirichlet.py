"""Dirichlet draws, and rounding of proportions to whole numbers of images.

Concentrations of 0.001 per class are common here. A Dirichlet drawn through plain gammas underflows
at that scale, so values stay in logarithms until images are counted.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SINKHORN_TOLERANCE = 1e-3
"""Largest relative error of a client's total at which scaling stops."""

_MAX_SCALINGS = 1000
_MAX_CELL_UPDATES = 500_000_000
_MIN_CONCENTRATION = 1e-200


def log_dirichlet(
    rng: np.random.Generator, concentration: float, shape: tuple[int, int], axis: int
) -> FloatArray:
    """Logarithms, finite, of symmetric Dirichlet draws along one axis of a matrix.

    A Gamma(a) variate is a Gamma(a + 1) variate times U^(1/a), and log U is minus an exponential
    variate: neither factor underflows in logarithms. The concentration of every component is above
    0; below 1e-200 the draw is one-hot anyway.
    """
    a = max(concentration, _MIN_CONCENTRATION)
    log_gamma: FloatArray = np.log(rng.standard_gamma(a + 1.0, shape))
    log_gamma -= rng.standard_exponential(shape) / a
    log_gamma -= _log_sum_exp(log_gamma, axis)
    return log_gamma


def sinkhorn(log_weights: FloatArray, row_totals: FloatArray, col_totals: FloatArray) -> FloatArray:
    """Scale rows and columns until the matrix has the given totals; rows are exact at the end.

    Stops when row totals were right to `SINKHORN_TOLERANCE` after a scaling of the columns, and
    after at most 1000 scalings, fewer for more than 500,000 cells: extreme concentrations converge
    slowly, and `round_to_totals` makes the totals exact in any case. `log_weights` (K, C) are
    finite, and overwritten; the totals (K,) and (C,) are positive and have one sum.
    """
    log_rows = np.log(row_totals)[:, None]  # (K, 1)
    log_cols = np.log(col_totals)[None, :]  # (1, C)
    budget = max(10, min(_MAX_SCALINGS, _MAX_CELL_UPDATES // log_weights.size))
    for _ in range(budget):
        log_weights += log_cols - _log_sum_exp(log_weights, 0)
        excess = _log_sum_exp(log_weights, 1) - log_rows  # (K, 1)
        log_weights -= excess
        if float(np.abs(np.expm1(excess)).max()) <= SINKHORN_TOLERANCE:
            break
    return np.exp(log_weights, out=log_weights)


def round_to_totals(quotas: FloatArray, row_totals: IntArray, col_totals: IntArray) -> IntArray:
    """Return whole numbers near `quotas` (K, C) with exactly the given row and column sums.

    Each row is rounded by largest remainders, first among the classes that it already holds:
    rounding from 0.5 up would give a client single images of several further classes, and the
    classes per client, which papers report, would rise by a tenth. Then units move from the fullest
    to the emptiest column: in rows that hold both classes, starting where rounding had moved the
    other way; if there is no such row, the smallest holdings move as a whole.
    """
    counts = np.floor(quotas).astype(np.int64)
    missing = row_totals - counts.sum(axis=1)  # (K,) between 0 and C
    rank = counts - quotas  # minus the remainder
    rank -= counts > 0
    order = np.argsort(rank, axis=1, kind="stable")
    del rank
    takes = np.arange(quotas.shape[1])[None, :] < missing[:, None]
    rows, ranks = np.nonzero(takes)
    counts[rows, order[rows, ranks]] += 1
    del order, takes

    surplus = counts.sum(axis=0) - col_totals
    while surplus.any():
        source, sink = int(surplus.argmax()), int(surplus.argmin())
        wanted = int(min(surplus[source], -surplus[sink]))
        shared = np.flatnonzero((counts[:, source] > 0) & (counts[:, sink] > 0))
        if shared.size:
            gained = counts[shared, sink] - quotas[shared, sink]
            lost = counts[shared, source] - quotas[shared, source]
            rows = shared[np.argsort(gained - lost, kind="stable")][:wanted]
            units = np.minimum(counts[rows, source], -(-wanted // rows.size))
        else:
            holders = np.flatnonzero(counts[:, source])
            rows = holders[np.argsort(counts[holders, source], kind="stable")][:wanted]
            units = counts[rows, source]
        units = np.diff(np.minimum(np.cumsum(units), wanted), prepend=0)
        counts[rows, source] -= units
        counts[rows, sink] += units
        surplus[source] -= units.sum()
        surplus[sink] += units.sum()
    return counts


def largest_remainder(rng: np.random.Generator, shares: FloatArray, total: int) -> IntArray:
    """Split `total` units in proportion to `shares` (K,); equal remainders are ordered at random.

    So clients with low numbers are not favoured. Each count is within one unit of its exact share.
    """
    quotas = shares * (total / shares.sum())
    counts: IntArray = np.floor(quotas).astype(np.int64)
    left = total - int(counts.sum())
    if left > 0:
        order = np.lexsort((rng.random(len(shares)), counts - quotas))
        counts[order[:left]] += 1
    return counts


def _log_sum_exp(values: FloatArray, axis: int) -> FloatArray:
    peak = values.max(axis=axis, keepdims=True)
    result: FloatArray = peak + np.log(np.exp(values - peak).sum(axis=axis, keepdims=True))
    return result
