"""Private clustering: the noise that is claimed, a tree grown apart, and its two ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from fedbench.bench.nn import clustering
from fedbench.bench.nn.budget import LEVELS, ClusterBudget
from fedbench.bench.nn.clustering import cluster_privately, noisy_count, noisy_sum, random_units
from fedbench.bench.system.seeding import generator


@dataclass(frozen=True)
class Noise(ClusterBudget):
    """A budget whose noise is given, not calibrated."""

    std: float = 0.0
    parameter: float = 30.0

    @property
    def sum_std(self) -> float:
        return self.std

    @property
    def count_parameter(self) -> float:
        return self.parameter


def noise(std: float, parameter: float = 30.0) -> Noise:
    return Noise(1.0, 1e-3, std, parameter)


def groups(n: int, dim: int, num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit rows around `num` random directions, (n, dim), and the directions."""
    rng = generator(seed, "rows")
    true = random_units(num, dim, rng)
    spread = 0.5 * torch.randn(n, dim, generator=rng) / math.sqrt(dim)
    return F.normalize(true[torch.arange(n) % num] + spread, dim=1), true


def cosine(found: Tensor, true: Tensor) -> float:
    return float((true @ found.T).amax(dim=1).mean())


@pytest.mark.parametrize("epsilon", [0.8, 10.0])
def test_sums_get_gaussian_noise_of_the_claimed_scale(epsilon: float) -> None:
    budget, rng = ClusterBudget(epsilon, 1e-3), generator(0, "noise")
    points = groups(30, 100, 3)[0].double()
    draws = torch.stack([noisy_sum(points, budget.sum_std, rng) for _ in range(200)])
    noise = (draws - points.sum(dim=0)).flatten()  # 20,000 numbers
    # The standard deviation of a sample's standard deviation is sigma / sqrt(2 n): 0.5 %.
    assert float(noise.std()) == pytest.approx(budget.sum_std, rel=0.02)
    assert stats.kstest(noise.numpy() / budget.sum_std, "norm").pvalue > 0.01
    rows = noise.view(200, 100)
    assert abs(float((rows[:, :-1] * rows[:, 1:]).mean())) < 0.05 * budget.sum_std**2


@pytest.mark.parametrize("parameter", [ClusterBudget(1.0, 1e-3).count_parameter, 0.7])
def test_counts_get_two_sided_geometric_noise(parameter: float) -> None:
    """P(k) = tanh(a / 2) exp(-a |k|), and its variance is 2 e^-a / (1 - e^-a)^2."""
    rng, points = generator(0, "noise"), torch.zeros(17, 3)
    draws = torch.tensor([noisy_count(points, parameter, rng) - 17 for _ in range(20_000)])
    q = math.exp(-parameter)
    assert float(draws.double().var()) == pytest.approx(2 * q / (1 - q) ** 2, rel=0.06)
    reach = math.ceil(1 / parameter)
    inner = torch.arange(-reach, reach + 1)
    expected = 20_000 * math.tanh(parameter / 2) * torch.exp(-parameter * inner.abs().double())
    seen = torch.stack([(draws == k).sum() for k in inner.tolist()]).double()
    rest = torch.tensor([20_000.0])
    seen, expected = (torch.cat([x, rest.double() - x.sum()]) for x in (seen, expected))
    assert stats.chisquare(seen.numpy(), expected.numpy()).pvalue > 0.01


def test_leaves_are_those_of_a_tree_grown_apart() -> None:
    """With exact counts: split what has three times the least, drop what has less than it."""
    rows, _ = groups(200, 32, 5)
    points, std = rows.double(), 1e-3
    found = list(clustering._leaves(points, 8, noise(std), generator(0, "tree")))
    rng = generator(0, "tree")
    bits = (points @ torch.randn(32, LEVELS - 1, dtype=torch.float64, generator=rng) >= 0).tolist()
    least = max(1, min(int(10 * math.sqrt(32) * std), 200 // 16))
    assert least == 1
    expected = []

    def grow(members: list[int], depth: int) -> None:
        if len(members) >= 3 * least and depth < LEVELS - 1:
            sides = [[i for i in members if bits[i][depth] is side] for side in (False, True)]
            kept = [side for side in sides if len(side) >= least]
            for side in kept:
                grow(side, depth + 1)
        else:
            expected.append(members)

    grow(list(range(200)), 0)
    assert sum(map(len, expected)) == 200
    assert sorted(count for _, count in found) == sorted(map(len, expected))
    means = torch.stack([points[members].mean(dim=0) for members in expected])
    distances = torch.cdist(torch.stack([mean for mean, _ in found]), means)
    assert float(distances.amin(dim=1).max()) < 6 * std * math.sqrt(32)
    assert len(set(distances.argmin(dim=1).tolist())) == len(found)


def test_small_nodes_are_dropped() -> None:
    """160 rows, L = 8, much noise on sums: the least is 160 // 16 = 10."""
    rows, _ = groups(160, 32, 5)
    leaves = list(clustering._leaves(rows.double(), 8, noise(5.0), generator(0, "tree")))
    counts = [count for _, count in leaves]
    assert min(counts) >= 10
    assert 0 < sum(counts) <= 160
    assert all(float(mean.norm()) <= 1 + 1e-12 for mean, _ in leaves)


def test_with_a_huge_budget_it_finds_the_groups() -> None:
    rows, true = groups(400, 64, 8)
    found = cluster_privately(rows, 8, noise(0.01), generator(0, "client"))
    assert cosine(found, true) > 0.9


def test_with_the_papers_budgets_little_is_left() -> None:
    """128 rows of 512 numbers: nearly random at epsilon 1, half-way at 10."""
    rows, true = groups(128, 512, 8)
    mean = {}
    for epsilon in (1.0, 10.0):
        budget = ClusterBudget(epsilon, 1e-3)
        each = [cluster_privately(rows, 8, budget, generator(s, "client")) for s in range(5)]
        mean[epsilon] = sum(cosine(found, true) for found in each) / 5
    chance = cosine(random_units(8, 512, generator(0, "random")), true)
    assert chance < mean[1.0] < 0.25 < 0.4 < mean[10.0] < 0.7


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_always_as_many_unit_centroids_as_asked_for(n: int) -> None:
    rows, _ = groups(n, 16, 4)
    budget = ClusterBudget(1.0, 1e-3)
    found = cluster_privately(rows, 8, budget, generator(0, "client"))
    assert found.shape == (8, 16)
    assert found.dtype == rows.dtype
    torch.testing.assert_close(found.norm(dim=1), torch.ones(8))
    assert torch.equal(found, cluster_privately(rows, 8, budget, generator(0, "client")))
    assert not torch.equal(found, cluster_privately(rows, 8, budget, generator(1, "client")))


def test_long_rows_are_cut_to_the_unit_ball() -> None:
    rows, _ = groups(50, 16, 4)
    budget = noise(0.1)
    a = cluster_privately(rows, 4, budget, generator(0, "client"))
    b = cluster_privately(rows * 100, 4, budget, generator(0, "client"))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_random_units_know_nothing() -> None:
    units = random_units(4_000, 3, generator(0, "units"))
    torch.testing.assert_close(units.norm(dim=1), torch.ones(4_000))
    assert float(units.mean(dim=0).abs().max()) < 0.04  # 4 / sqrt(3 * 4000)
    # On a sphere in 3 dimensions every coordinate is uniform in [-1, 1] (Archimedes).
    assert stats.kstest(units[:, 0].numpy(), "uniform", args=(-1, 2)).pvalue > 0.01
