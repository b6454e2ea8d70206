"""Clustering of a client's rows under differential privacy, with a hash tree as coreset.

Source: Chang et al. 2021, Locally private k-means in one round, https://arxiv.org/abs/2104.09734,
and the central-model variant that its authors released, run on each client: that is what Lubana et
al. 2022 (https://arxiv.org/abs/2205.11506, table 7) call local differential privacy. Constants are
the release's. Deviations: counts are accounted exactly (see `bench.privacy`); centroids come back
with norm 1, and always as many as asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.privacy import LEVELS, ClusterBudget

_LOW_NOISE = 10  # at so many times the noise's norm, noise moves a mean by a tenth of the radius
_SPLIT = 3  # a node is split if it has so many times the least


def cluster_privately(
    rows: Tensor, num_clusters: int, budget: ClusterBudget, rng: torch.Generator
) -> Tensor:
    """Unit centroids that differ little, in distribution, with and without any one row.

    The rows' random hash bits span a tree. A node is kept if its noisy count is large enough; the
    noisy mean of each leaf counts as many times as its noisy count in a k-means, which no longer
    sees the rows. What is drawn from `rng` is a simulation of noise: neither the generator nor
    floating-point Gaussian numbers withstand an adversary.

    Args:
        rows: (n, d), n >= 0; a row longer than 1 is cut to 1.
        num_clusters: L, at least 1.
        budget: epsilon and delta of this one call.
        rng: every draw, on the CPU.

    Returns:
        (num_clusters, d); leaves are repeated where there are fewer.
    """
    points = rows.detach().cpu().double()
    points = points / points.norm(dim=1, keepdim=True).clamp(min=1)
    coreset = list(_leaves(points, num_clusters, budget, rng))
    means = torch.stack([mean for mean, _ in coreset])  # (leaves, d)
    weights = torch.tensor([weight for _, weight in coreset])
    centres = _weighted_k_means(means, weights, num_clusters, rng)
    centres = centres.repeat(math.ceil(num_clusters / len(centres)), 1)[:num_clusters]
    return F.normalize(centres, dim=1).to(rows)


def random_units(num: int, dim: int, rng: torch.Generator) -> Tensor:
    """Directions drawn evenly, (num, dim): centroids that know nothing."""
    return F.normalize(torch.randn(num, dim, generator=rng), dim=1)


def noisy_sum(points: Tensor, std: float, rng: torch.Generator) -> Tensor:
    """The sum of (n, d) points with Gaussian noise of this standard deviation, (d,) float64."""
    noise = torch.randn(points.shape[1], dtype=torch.float64, generator=rng)
    return points.sum(dim=0) + std * noise


def noisy_count(points: Tensor, parameter: float, rng: torch.Generator) -> int:
    """Their number plus noise k with P(k) proportional to exp(-parameter |k|)."""
    trials = torch.empty(2, dtype=torch.float64).geometric_(-math.expm1(-parameter), generator=rng)
    return len(points) + int(trials[0] - trials[1])


def _leaves(
    points: Tensor, num_clusters: int, budget: ClusterBudget, rng: torch.Generator
) -> Iterator[tuple[Tensor, int]]:
    """Noisy means within the unit ball, each (d,), with noisy counts of at least 1."""
    std, parameter = budget.sum_std, budget.count_parameter
    dim = points.shape[1]
    bits = points @ torch.randn(dim, LEVELS - 1, dtype=torch.float64, generator=rng) >= 0
    total = noisy_count(points, parameter, rng)
    least = max(1, min(int(_LOW_NOISE * math.sqrt(dim) * std), total // (2 * num_clusters)))
    level = [(torch.arange(len(points)), max(1, total))]  # rows of each node, noisy count
    for depth in range(LEVELS):
        children = []
        for index, count in level:
            kept = []
            if depth < LEVELS - 1 and count >= _SPLIT * least:
                for side in (False, True):
                    child = index[bits[index, depth] == side]
                    number = noisy_count(child, parameter, rng)
                    if number >= least:
                        kept.append((child, number))
            if kept:
                children += kept
            else:
                mean = noisy_sum(points[index], std, rng) / count
                yield mean / mean.norm().clamp(min=1), count
        level = children


def _weighted_k_means(
    points: Tensor, weights: Tensor, num_clusters: int, rng: torch.Generator
) -> Tensor:
    from sklearn.cluster import KMeans

    if len(points) <= num_clusters:
        return points
    seed = int(torch.randint(2**31 - 1, (1,), generator=rng))
    found = KMeans(num_clusters, n_init=1, random_state=seed)
    centres = found.fit(points.numpy(), sample_weight=weights.double().numpy()).cluster_centers_
    return torch.from_numpy(centres)
