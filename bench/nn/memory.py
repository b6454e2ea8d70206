"""A client's memory of projections, and what is made of it: fields and calls of the clustering."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedbench.bench.errors import PluginError
from fedbench.bench.net import Net
from fedbench.bench.nn.clustering import cluster_globally, cluster_locally
from fedbench.bench.nn.private_clustering import cluster_privately, random_units
from fedbench.bench.privacy import ClusterBudget
from fedbench.bench.sharing import Extra


class Memory(nn.Module):
    """The newest rows of a client's round, (size, dim); only rows that were pushed come out.

    Its buffers are not persistent: they are no tensors of the run, so neither sent nor stored.

    Args:
        size: most rows that it holds.
        dim: length of a row.
    """

    rows: Tensor
    places: Tensor

    @classmethod
    def of(cls, net: Net) -> Memory:
        """The part `memory` of a net.

        Raises:
            PluginError: if it is no memory.
        """
        part = net["memory"]
        if not isinstance(part, Memory):
            raise PluginError(f"the part 'memory' is a {type(part).__name__}, not a Memory")
        return part

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, dim), persistent=False)
        self.register_buffer("places", torch.zeros(size, dtype=torch.int64), persistent=False)
        self.reset(size)

    def reset(self, capacity: int) -> None:
        """Forget everything; from now on hold at most `capacity` rows, and at most `size`."""
        self.capacity, self._count, self._next = min(capacity, len(self.rows)), 0, 0
        self._held: Tensor | None = None

    def hold(self, rows: Tensor) -> None:
        """Hold exactly these rows (n, dim), one an image, however many, until the next `reset`."""
        self._held = rows

    def push(self, rows: Tensor, images: Tensor) -> None:
        """Add rows, the last one being the newest; the oldest make room.

        Args:
            rows: (n, dim).
            images: of which of the client's images each of them is, (n,) int64.
        """
        if self.capacity:
            rows, images = rows[-self.capacity :], images[-self.capacity :]
            at = torch.arange(self._next, self._next + len(rows), device=rows.device)
            self.rows[at % self.capacity] = rows
            self.places[at % self.capacity] = images
            self._next = (self._next + len(rows)) % self.capacity
            self._count = min(self._count + len(rows), self.capacity)

    def valid(self) -> Tensor:
        """The rows held, (min(pushed, capacity), dim), in no particular order."""
        return self.rows[: self._count] if self._held is None else self._held

    def images(self) -> Tensor:
        """Of which image each of the rows held is, (n,) int64."""
        return self.places[: self._count] if self._held is None else torch.arange(len(self._held))

    def newest(self) -> Tensor:
        """Which of the rows held are the newest of their image, (images,) int64 ascending."""
        start = self._next if self._held is None and self._count == self.capacity else 0
        held = self.images().tolist()
        last = {held[at]: at for at in (*range(start, len(held)), *range(start))}
        return torch.tensor(sorted(last.values()), dtype=torch.int64)


class ClusterFields(BaseModel):
    """The hyperparameters of both clusterings, for a method to inherit, and how they are used."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_local_clusters: int = Field(8, ge=1, description="L; the paper: 8, CIFAR-100 16")
    representations: Literal["centroids", "memory", "private", "random"] = Field(
        "centroids",
        description="what goes up; memory: the rows themselves, the ideal case; private: centroids"
        " under differential privacy; random: unit vectors that know nothing, a control",
    )
    epsilon: float = Field(
        1.0, gt=0, le=100, description="private: budget of a client's images in one round"
    )
    delta: float = Field(1e-3, gt=0, lt=1, description="private: the same")
    strict_k_anonymity: bool = Field(
        False,
        description="every centroid stands for n // L >= 2 images, each with its newest row",
    )
    sinkhorn_strength: float = Field(25.0, gt=0, le=300, description="inverse regulariser")
    local_iterations: int = Field(5, ge=1, description="of local clustering")
    global_steps: int = Field(500, ge=1, description="of global clustering, per round")
    global_lr: float = Field(0.01, gt=0, description="its learning rate")
    global_momentum: float = Field(0.9, ge=0, lt=1, description="its momentum")
    global_weight_decay: float = Field(1e-4, ge=0, description="its weight decay")

    def declared(self) -> dict[str, Extra]:
        """What `to_send` sends, for `Needs.extras`."""
        if self.representations == "private":
            return {"centroids": Extra(budget=ClusterBudget(self.epsilon, self.delta))}
        if self.representations == "random":
            return {"centroids": Extra()}
        whole = self.representations == "memory"
        rows = Extra(per_sample=True) if whole else Extra(group_size="min_cluster_size")
        return {self.sent_name: rows, "min_cluster_size": Extra()}

    @property
    def sent_name(self) -> str:
        """Under which name rows or centroids go up."""
        return "memory" if self.representations == "memory" else "centroids"

    def to_send(self, memory: Memory, rng: torch.Generator) -> dict[str, Tensor]:
        """What a client sends of its rows (n, d): nothing when there are too few of them.

        Otherwise, as `sent_name`, (L, d) centroids or all rows, and `min_cluster_size` (1,): how
        many images the smallest cluster has. L is at most n // 2, but a single row makes one
        cluster unless `strict_k_anonymity`, which uses one row of each image. Private and random
        centroids are always L, whatever the client holds, and no size goes with them.
        """
        rows, images = memory.valid(), memory.images()
        if self.representations == "private":
            budget = ClusterBudget(self.epsilon, self.delta)
            return {"centroids": cluster_privately(rows, self.num_local_clusters, budget, rng)}
        if self.representations == "random":
            units = random_units(self.num_local_clusters, rows.shape[1], rng)
            return {"centroids": units.to(rows)}
        whole = self.representations == "memory"
        if self.strict_k_anonymity and not whole:
            chosen = memory.newest().to(rows.device)
            rows, images = rows[chosen], images[chosen]
        if len(rows) < (2 if self.strict_k_anonymity and not whole else 1):
            return {}
        if whole:
            return {"memory": rows, "min_cluster_size": rows.new_ones(1)}
        local = cluster_locally(
            rows,
            min(self.num_local_clusters, max(1, len(rows) // 2)),
            rng,
            iterations=self.local_iterations,
            strength=self.sinkhorn_strength,
            strict=self.strict_k_anonymity,
            images=images,
        )
        smallest = local.sizes.min().to(rows.dtype).view(1)
        return {"centroids": local.centroids, "min_cluster_size": smallest}

    def moved_centroids(self, points: Tensor, centroids: Tensor, temperature: float) -> Tensor:
        """Global centroids (G, d) after clustering what clients sent, (N, d)."""
        return cluster_globally(
            points.to(centroids.device),
            centroids,
            temperature=temperature,
            strength=self.sinkhorn_strength,
            steps=self.global_steps,
            lr=self.global_lr,
            momentum=self.global_momentum,
            weight_decay=self.global_weight_decay,
        )
