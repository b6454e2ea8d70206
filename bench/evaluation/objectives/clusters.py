"""Share of the spread of directions that a global k-means explains."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedbench.bench.evaluation.objectives.base import (
    Objective,
    Projections,
    Statistic,
    Sums,
    score_of_sums,
)
from fedbench.bench.evaluation.objectives.spectrum import direction_covariance
from fedbench.bench.evaluation.objectives.statistics import DirectionProducts, Directions, Pairs
from fedbench.bench.system.seeding import generator

CLUSTERS = 32
STEPS = 5


class Assignments(Statistic):
    """For each centroid that the server has sent: the images nearest to it and their sum."""

    name = "assignments"
    meaning = "images of each of 32 clusters, and their summed unit projections"

    repeated = True

    def shape(self, dim: int) -> tuple[int, ...]:
        return (CLUSTERS, dim + 1)

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        unit, centroids = projections.unit, shared["centroids"]
        nearest = (centroids.square().sum(dim=1) - 2 * unit @ centroids.T).argmin(dim=1)
        rows = torch.cat([torch.ones_like(unit[:, :1]), unit], dim=1)
        return unit.new_zeros(self.shape(unit.shape[1])).index_add_(0, nearest, rows)


class Clusterability(Objective):
    """Variance between clusters over all variance of unit projections, after k-means.

    The server draws 32 centroids from the normal distribution with the images' mean and covariance;
    five steps of Lloyd's algorithm follow. Stands in for scores that need distances between single
    images (CLID, silhouettes), which are no sums.
    """

    name = "clusterability"
    metric = score_of_sums("clusterability")
    formula = "1 - within / total sum of squares, 32 clusters of unit projections"
    source = "ours, after Calinski & Harabasz 1974"
    statistics = (Pairs(), Directions(), DirectionProducts(), Assignments())
    exchanges: ClassVar[int] = 1 + STEPS + 1

    def answer(self, sums: Sums, shared: Sums) -> Sums:
        """Return centroids: drawn ones after the first exchange, then the clusters' means."""
        if "centroids" not in shared:
            mean = sums["directions"] / sums["pairs"][0]
            values, vectors = torch.linalg.eigh(direction_covariance(sums).cpu())
            dim = len(mean)
            draws = torch.randn(
                CLUSTERS, dim, dtype=torch.float64, generator=generator(0, "centroids", dim)
            )
            spread = draws * values.clamp_min(0).sqrt() @ vectors.T
            return {"centroids": mean + spread.to(mean.device)}
        count, total = sums["assignments"][:, :1], sums["assignments"][:, 1:]
        moved = torch.where(count > 0, total / count.clamp_min(1), shared["centroids"])
        return {"centroids": moved}

    def combine(self, sums: Sums) -> float | None:
        assigned, count = sums["assignments"], sums["pairs"][0]
        spread = count * direction_covariance(sums).diagonal().sum()
        if spread <= 0:
            return None
        sizes, total = assigned[:, 0].clamp_min(1), assigned[:, 1:]
        between = (total.square().sum(dim=1) / sizes).sum()
        mean = sums["directions"] / count
        return float((between - count * mean.square().sum()) / spread)
