"""Sinkhorn and clusterings against slow independent loops and closed forms; private noise."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from fedbench.bench.nn import clustering
from fedbench.bench.nn.budget import LEVELS, ClusterBudget
from fedbench.bench.nn.clustering import (
    assign_evenly,
    cluster_globally,
    cluster_locally,
    cluster_privately,
    noisy_count,
    noisy_sum,
    random_units,
    sinkhorn,
)
from fedbench.bench.system.seeding import generator
from tests.specs import unit


def slow_sinkhorn(scores: Tensor, strength: float, iterations: int, tolerance: float) -> Tensor:
    """Sinkhorn on logarithms in Python floats, with both marginals written out."""
    n, k = scores.shape
    logits = [[strength * float(scores[i, j]) for j in range(k)] for i in range(n)]

    def logsumexp(values: list[float]) -> float:
        top = max(values)
        return top + math.log(sum(math.exp(v - top) for v in values))

    for i in range(n):  # softmax of each row
        total = logsumexp(logits[i])
        logits[i] = [value - total for value in logits[i]]
    f, g = [-math.log(n)] * n, [0.0] * k  # samples, clusters
    for iteration in range(iterations):
        g = [-math.log(k) - logsumexp([logits[i][j] + f[i] for i in range(n)]) for j in range(k)]
        new = [-math.log(n) - logsumexp([logits[i][j] + g[j] for j in range(k)]) for i in range(n)]
        change = sum(abs(math.exp(a - b) - 1) for a, b in zip(f, new, strict=True))
        f = new
        if iteration % 10 == 0 and change < tolerance:
            break
    return torch.tensor(
        [[n * math.exp(logits[i][j] + f[i] + g[j]) for j in range(k)] for i in range(n)]
    )


@pytest.mark.parametrize(("iterations", "tolerance"), [(1, 1e-2), (10, 1e-2), (100, 1e-2)])
@pytest.mark.parametrize("strength", [1.0, 25.0, 37.5, 38.0, 250.0])
def test_sinkhorn_equals_a_loop_on_logarithms(
    strength: float, iterations: int, tolerance: float
) -> None:
    scores = unit(13, 6) @ unit(4, 6, name="c").T
    fast = sinkhorn(scores, strength=strength, max_iterations=iterations, tolerance=tolerance)
    slow = slow_sinkhorn(scores, strength, iterations, tolerance)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


def test_scores_at_the_ends_stay_finite() -> None:
    """All samples are at one cluster, opposite to the other: exp(-600) fits float64 only."""
    scores = torch.tensor([[1.0, -1.0]]).repeat(4, 1)
    q = sinkhorn(scores, strength=300.0)
    torch.testing.assert_close(q, torch.full((4, 2), 0.5))


def test_rows_may_have_gradients() -> None:
    rows, centres = unit(13, 6).requires_grad_(), unit(4, 6, name="c")
    q = sinkhorn(rows @ centres.T)
    assert not q.requires_grad
    assert torch.equal(q, sinkhorn(rows.detach() @ centres.T))
    found, expected = (
        cluster_locally(x, 4, generator(0, "rng")).centroids for x in (rows, rows.detach())
    )
    assert torch.equal(found, expected)


def best_even_total(scores: Tensor) -> float:
    """Maximum over every assignment whose sizes differ by at most one."""
    n, k = scores.shape
    totals = []
    for owners in itertools.product(range(k), repeat=n):
        sizes = [owners.count(j) for j in range(k)]
        if max(sizes) - min(sizes) <= 1:
            totals.append(sum(float(scores[i, j]) for i, j in enumerate(owners)))
    return max(totals)


@pytest.mark.parametrize(("n", "k"), [(6, 3), (7, 3), (8, 3), (5, 2), (4, 4), (3, 1)])
def test_even_assignment_is_the_best_of_all(n: int, k: int) -> None:
    scores = torch.randn(n, k, generator=generator(0, "scores", n, k))
    assigned = assign_evenly(scores)
    sizes = torch.bincount(assigned, minlength=k)
    assert int(sizes.max()) - int(sizes.min()) <= 1
    total = float(scores[torch.arange(n), assigned].sum())
    assert total == pytest.approx(best_even_total(scores), abs=1e-5)


def test_strict_clusters_have_at_least_n_over_l_rows_where_others_do_not() -> None:
    crowd = F.normalize(unit(1, 8).repeat(19, 1) + 1e-3 * unit(19, 8, name="e"), dim=1)
    rows = torch.cat([crowd, -crowd[:1]])  # one row far from all the others
    free = cluster_locally(rows, 4, generator(1, "rng"))
    strict = cluster_locally(rows, 4, generator(1, "rng"), strict=True)
    assert int(free.sizes.min()) < 5
    assert strict.sizes.tolist() == [5, 5, 5, 5]
    for clusters in (free, strict):
        torch.testing.assert_close(clusters.centroids.norm(dim=1), torch.ones(4))


def test_local_clustering_equals_a_loop() -> None:
    rows, _ = groups(24, 8, 5)
    rng = generator(2, "rng")
    fast = cluster_locally(rows, 6, generator(2, "rng"), iterations=3)
    centroids = [rows[i] for i in torch.randperm(24, generator=rng)[:6].tolist()]
    for _ in range(3):
        scores = torch.stack([torch.stack([row @ c for c in centroids]) for row in rows])
        assigned = slow_sinkhorn(scores, 25.0, 10, 1e-2).argmax(dim=1).tolist()
        members = [[rows[i] for i in range(24) if assigned[i] == j] for j in range(6)]
        assert all(members), "choose other rows: this loop has no fallback"
        sums = [torch.stack(group).sum(dim=0) for group in members]
        centroids = [group / group.norm() for group in sums]
    assert fast.sizes.tolist() == [len(group) for group in members]
    torch.testing.assert_close(fast.centroids, torch.stack(centroids), rtol=1e-5, atol=1e-6)


def test_an_empty_cluster_takes_one_row_and_says_so() -> None:
    """Equal rows all go to the cluster with the lowest index; the other one is left empty."""
    rows = unit(1, 4).repeat(6, 1)
    clusters = cluster_locally(rows, 2, generator(0, "rng"))
    assert sorted(clusters.sizes.tolist()) == [1, 6]
    torch.testing.assert_close(clusters.centroids, rows[:2])


@pytest.mark.parametrize("strength", [25.0, 25.1, 30.0, 37.5, 38.0, 300.0])
def test_global_clustering_at_every_strength(strength: float) -> None:
    """Opposite points have scores at both ends of [-1, 1], where exponentials are most extreme."""
    points = torch.cat([torch.ones(30, 8), -torch.ones(2, 8)])
    start = torch.stack([torch.ones(8), -torch.ones(8)])
    ends = [
        cluster_globally(p, c, strength=strength, temperature=0.02, steps=5)
        for p, c in ((points, start), (points.double(), start.double()))
    ]
    assert bool(ends[0].isfinite().all())
    torch.testing.assert_close(ends[0], ends[1].float(), rtol=0, atol=1e-5)


def noise(std: float) -> Any:
    """Return a budget with given instead of calibrated noise; counts stay exact."""
    return SimpleNamespace(sum_std=std, count_parameter=30.0)


def groups(n: int, dim: int, num: int) -> tuple[Tensor, Tensor]:
    """Unit rows around `num` random directions, (n, dim), and the directions."""
    rng = generator(0, "rows")
    true = random_units(num, dim, rng)
    spread = 0.5 * torch.randn(n, dim, generator=rng) / math.sqrt(dim)
    return F.normalize(true[torch.arange(n) % num] + spread, dim=1), true


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


def test_leaves_are_those_of_an_independent_tree() -> None:
    """Counts are exact: split nodes of three times the minimum, drop those below it."""
    rows, _ = groups(200, 32, 5)
    points, std = rows.double(), 1e-3
    leaves = list(clustering._leaves(points, 8, noise(std), generator(0, "tree")))
    rng = generator(0, "tree")
    bits = (points @ torch.randn(32, LEVELS - 1, dtype=torch.float64, generator=rng) >= 0).tolist()
    least = max(1, min(int(10 * math.sqrt(32) * std), 200 // 16))
    assert least == 1
    expected = []

    def grow(members: list[int], depth: int) -> None:
        if len(members) >= 3 * least and depth < LEVELS - 1:
            sides = [[i for i in members if bits[i][depth] is side] for side in (False, True)]
            large = [side for side in sides if len(side) >= least]
            for side in large:
                grow(side, depth + 1)
        else:
            expected.append(members)

    grow(list(range(200)), 0)
    assert sum(map(len, expected)) == 200
    assert sorted(count for _, count in leaves) == sorted(map(len, expected))
    means = torch.stack([points[members].mean(dim=0) for members in expected])
    distances = torch.cdist(torch.stack([mean for mean, _ in leaves]), means)
    assert float(distances.amin(dim=1).max()) < 6 * std * math.sqrt(32)
    assert len(set(distances.argmin(dim=1).tolist())) == len(leaves)


def test_with_a_huge_budget_it_finds_the_groups() -> None:
    rows, true = groups(400, 64, 8)
    centroids = cluster_privately(rows, 8, noise(0.01), generator(0, "client"))
    assert float((true @ centroids.T).amax(dim=1).mean()) > 0.9


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_always_as_many_unit_centroids_as_asked_for(n: int) -> None:
    rows, _ = groups(n, 16, 4)
    budget = ClusterBudget(1.0, 1e-3)
    centroids = cluster_privately(rows, 8, budget, generator(0, "client"))
    assert centroids.shape == (8, 16)
    assert centroids.dtype == rows.dtype
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(8))
    assert torch.equal(centroids, cluster_privately(rows, 8, budget, generator(0, "client")))
    assert not torch.equal(centroids, cluster_privately(rows, 8, budget, generator(1, "client")))


def test_long_rows_are_cut_to_the_unit_ball() -> None:
    rows, _ = groups(50, 16, 4)
    budget = noise(0.1)
    a = cluster_privately(rows, 4, budget, generator(0, "client"))
    b = cluster_privately(rows * 100, 4, budget, generator(0, "client"))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_random_units_are_uniform() -> None:
    units = random_units(4_000, 3, generator(0, "units"))
    torch.testing.assert_close(units.norm(dim=1), torch.ones(4_000))
    assert float(units.mean(dim=0).abs().max()) < 0.04  # 4 / sqrt(3 * 4000)
    # On a sphere in 3 dimensions every coordinate is uniform in [-1, 1] (Archimedes).
    assert stats.kstest(units[:, 0].numpy(), "uniform", args=(-1, 2)).pvalue > 0.01
