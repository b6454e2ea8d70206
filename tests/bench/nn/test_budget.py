"""Privacy accounting against closed forms and the library's other accountants."""

import math
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm

from fedbench.bench.execution.guarantees import client_epsilon
from fedbench.bench.nn.budget import LEVELS, ClusterBudget
from fedbench.bench.system.errors import ResourceError


def exact_epsilon(std: float, parameter: float, delta: float, times: int) -> float:
    """Epsilon without discretisation: a count's loss is +-a, so counts are binomial, sums normal.

    With k of n = 21 * times counts at +a, which has probability 1 / (1 + exp(-a)) each, their loss
    is l = a (2 k - n), and the sums' loss is normal with mean mu^2 / 2 and variance mu^2, where
    mu = sqrt(times) / std. Then delta = sum_k P(k) delta_gauss(epsilon - l), with Balle and Wang's
    delta_gauss(x) = Phi(mu / 2 - x / mu) - exp(x) Phi(-mu / 2 - x / mu).
    """
    n, mu = LEVELS * times, math.sqrt(times) / std
    ups = np.arange(n + 1)
    log_p = binom.logpmf(ups, n, 1 / (1 + math.exp(-parameter)))

    def log_delta(epsilon: float) -> float:
        x = epsilon - parameter * (2 * ups - n)
        first = norm.logcdf(mu / 2 - x / mu)
        second = x + norm.logcdf(-mu / 2 - x / mu)
        ratio = np.exp(np.minimum(second - first, -1e-300))
        return float(logsumexp(log_p + first + np.log1p(-ratio)))

    return float(brentq(lambda e: log_delta(e) - math.log(delta), 0, 400))


@pytest.mark.parametrize("epsilon", [0.8, 1.0, 10.0])
def test_the_noise_of_a_clustering_keeps_its_budget_and_wastes_little(epsilon: float) -> None:
    budget = ClusterBudget(epsilon, 1e-3)
    exact = exact_epsilon(budget.sum_std, budget.count_parameter, 1e-3, 1)
    assert 0.998 * epsilon < exact <= epsilon
    assert budget.composed(1) <= epsilon
    assert budget.count_parameter == pytest.approx(1 / (20 * budget.sum_std))


@pytest.mark.parametrize(("epsilon", "times"), [(0.8, 20), (1.0, 41)])
def test_composition_over_rounds(epsilon: float, times: int) -> None:
    budget = ClusterBudget(epsilon, 1e-3)
    exact = exact_epsilon(budget.sum_std, budget.count_parameter, 1e-3, times)
    assert exact <= budget.composed(times) <= 1.005 * exact  # rounded up, never down
    assert budget.composed(times) < times * epsilon  # what adding up would give, with times * delta


def test_epsilon_of_sampled_clients_lies_below_renyis_bound_and_above_no_rounds() -> None:
    epsilon = client_epsilon(1.0, 1e-5, {0.1: 50})
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    renyi = rdp.RdpAccountant()
    renyi.compose(event, 50)
    bound = renyi.get_epsilon(1e-5)
    assert epsilon is not None
    assert 0.8 * bound < epsilon <= bound
    always = client_epsilon(1.0, 1e-5, {1.0: 50})
    assert always is not None
    assert epsilon < always / 2
    assert client_epsilon(1.0, 1e-5, {}) == 0.0


def test_no_noise_gives_no_bound() -> None:
    assert client_epsilon(0.0, 1e-5, {0.5: 3}) is None


def test_a_missing_accountant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ResourceError, match="dp-accounting"):
        client_epsilon(1.0, 1e-5, {1.0: 7})
