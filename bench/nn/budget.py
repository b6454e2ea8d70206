"""Privacy budgets of clusterings, accounted by the library dp-accounting.

The library is an extra (`fedbench-ssl[privacy]`), since it pins an old `attrs`; it is
imported only when a run asks for privacy.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from fedbench.bench.system.errors import ResourceError
from fedbench.bench.system.packages import install_extra

LEVELS = 21
"""Levels of the hash tree in private clustering, its root included: 20 hash bits."""

_COUNT_SHARE = 20.0  # counts get 20 times the noise of sums, as in the release
_INTERVAL = 1e-3  # of the discretised privacy loss, at most
_CLOSE = 1e-4  # relative; how far below the target epsilon the noise may end


def accountant(module: str) -> Any:
    """Import a module of dp-accounting, such as `.pld`; `ResourceError` if it is not installed."""
    try:
        return import_module(f"dp_accounting{module}")
    except ImportError as err:
        raise ResourceError(
            "differential privacy needs the accountant dp-accounting, which is not installed:"
            f" {install_extra('privacy')}"
        ) from err


@dataclass(frozen=True)
class ClusterBudget:
    """Privacy that one private clustering of a client's images may cost.

    One clustering releases a Gaussian sum of each leaf and a two-sided geometric count of each node
    on `LEVELS` levels; adding or removing an image changes one of them per kind and level, by 1.
    The exact loss of a node's count is +-a, more than that of continuous Laplace noise, by which
    the release of Chang et al. accounts for it.
    """

    epsilon: float  # of one clustering, > 0
    delta: float  # of one clustering, in (0, 1)

    @property
    def sum_std(self) -> float:
        """Standard deviation of the noise on each number of a sum of unit vectors."""
        return _sum_std(self.epsilon, self.delta)

    @property
    def count_parameter(self) -> float:
        """Parameter a of the counts' noise: P(k) is proportional to exp(-a |k|)."""
        return 1 / (_COUNT_SHARE * self.sum_std)

    def composed(self, times: int) -> float:
        """Return the epsilon of `times` clusterings of the same images together, at this delta."""
        return _epsilon(self.sum_std, self.delta, times)


@lru_cache
def _sum_std(epsilon: float, delta: float) -> float:
    """Search the least noise that keeps the budget, from the side that costs less."""
    from scipy.optimize import brentq

    low = float(accountant("").get_sigma_gaussian(epsilon, delta))  # as if counts were free
    high = low
    while _epsilon(high, delta, 1) > epsilon:
        high *= 2
    target = epsilon * (1 - _CLOSE / 2)

    def gap(std: float) -> float:
        return _epsilon(std, delta, 1) - target

    std = float(brentq(gap, low, high, rtol=1e-5)) if gap(high) < 0 else high
    while _epsilon(std, delta, 1) > epsilon:
        std *= 1 + _CLOSE / 4
    return std


@lru_cache
def _epsilon(std: float, delta: float, times: int) -> float:
    losses = accountant(".pld.privacy_loss_distribution")
    parameter = 1 / (_COUNT_SHARE * std)
    # A whole number of steps, so that rounding costs the counts nothing.
    step = parameter / math.ceil(parameter / _INTERVAL)
    sums = losses.from_gaussian_mechanism(std, value_discretization_interval=step)
    counts = losses.from_discrete_laplace_mechanism(parameter, value_discretization_interval=step)
    once = sums.compose(counts.self_compose(LEVELS))
    return float(once.self_compose(times).get_epsilon_for_delta(delta))
