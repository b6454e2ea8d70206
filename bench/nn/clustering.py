"""Clustering of unit vectors: Sinkhorn, local and global clusters of equal mass, private centroids.

Source of Sinkhorn, `cluster_locally` and `cluster_globally`: Lubana et al. 2022,
https://arxiv.org/abs/2205.11506, algorithms 1 and 2, with the constants of its release; the global
step is there called a surrogate of Genevay et al. 2019.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.nn.budget import LEVELS, ClusterBudget
from fedbench.bench.nn.recorder import Recorder
from fedbench.bench.system import first_use

_CHECK_EVERY = 10
_SAFE_EXPONENT = 75.0  # exp(-75) / K is a normal float32 for K up to 10^5
_LOW_NOISE = 10  # at so many times the noise's norm, noise moves a mean by a tenth of the radius
_SPLIT = 3  # a node is split if its count is at least this many times the least


@torch.no_grad()
def sinkhorn(
    scores: Tensor, *, strength: float = 25.0, max_iterations: int = 100, tolerance: float = 1e-2
) -> Tensor:
    """Assign samples to clusters softly, so that all clusters get the same mass.

    Scales columns and rows of softmax(strength * scores) in turn, as two vectors around that
    kernel, in a type that holds its smallest value.

    Scores (N, K) are similarities of samples and clusters in [-1, 1], `strength` in (0, 300] is the
    inverse of the entropic regulariser. Scaling ends after `max_iterations`, or when the summed
    relative change of the rows' scales is below the tolerance, which is checked in the first
    iteration and every tenth after it, as in the release. Returns (N, K), non-negative, without a
    gradient; rows sum to 1, columns to about N / K.
    """
    if 2 * strength > _SAFE_EXPONENT:
        kernel = (scores.double() * strength).softmax(dim=1)
    else:
        kernel = (scores * strength).softmax(dim=1)
    scaling = _Scaling(kernel, Recorder(kernel.device, recorded=False))
    scaling.rows[0].fill_(1 / len(kernel))
    scaling.run(max_iterations, tolerance)
    kernel.mul_(scaling.columns)
    return kernel.div_(kernel.sum(dim=1, keepdim=True)).to(scores.dtype)


class _Scaling:
    """Scales of the rows and columns of a kernel (N, K), in memory that stays where it is.

    Attributes:
        rows: two of (N,), which iterations read and write in turn; the first are read first.
        columns: (K,), times K for mass 1 / K.
    """

    def __init__(self, kernel: Tensor, record: Recorder) -> None:
        n, k = kernel.shape
        self.rows = kernel.new_empty(n), kernel.new_empty(n)
        self.columns = kernel.new_empty(k)
        self._change = kernel.new_empty(())
        self._kernel, self._turned, self._record = kernel, kernel.T, record

    def run(self, max_iterations: int, tolerance: float) -> int:
        """Scale columns and rows in turn; return which of `rows` were written last."""
        for first in (0, *range(1, max_iterations, _CHECK_EVERY)):
            times = min(_CHECK_EVERY, max_iterations - first) if first else 1
            read, ended = first % 2, (first + times - 1) % _CHECK_EVERY == 0
            self._record(f"{times} scalings from {read}", partial(self._scale, read, times))
            if ended and float(self._change) < tolerance:
                break
        return int((first + times) % 2)

    def _scale(self, read: int, times: int) -> None:
        """Scale some times, and sum up how much the last time has changed the rows' scales."""
        n, k = self._kernel.shape
        for _ in range(times):
            old, new = self.rows[read], self.rows[1 - read]
            torch.mv(self._turned, old, out=self.columns).reciprocal_()
            torch.addmv(old, self._kernel, self.columns, beta=0, alpha=n / k, out=new).reciprocal_()
            read = 1 - read
        self._change.copy_((old / new - 1).abs_().sum())


@dataclass(frozen=True)
class LocalClusters:
    """Unit centroids (L, d), and the number of images behind each, (L,) int64.

    A cluster that got no row has size 1, since its centroid is a single row.
    """

    centroids: Tensor
    sizes: Tensor


def cluster_locally(
    rows: Tensor,
    num_clusters: int,
    rng: torch.Generator,
    *,
    iterations: int = 5,
    strength: float = 25.0,
    strict: bool = False,
    images: Tensor | None = None,
) -> LocalClusters:
    """Cluster a client's rows into clusters of about equal size.

    Each iteration assigns rows by their largest entry after Sinkhorn (10 scalings) and takes
    normalised means. Sizes may still differ, and a cluster may be empty; it then takes over a
    random row. `strict` assigns optimally under the constraint that sizes are n / L rounded down or
    up, so that a centroid always stands for at least that many rows: a deviation from the source.

    Rows (n, d) are unit vectors, L is in 1…n, and `rng` draws the rows that centroids start from,
    on the CPU. `images`, (n,), tell which image each row is of, so that sizes count images; None =
    all rows are of different ones.
    """
    centroids = rows[torch.randperm(len(rows), generator=rng)[:num_clusters].tolist()]  # (L, d)
    for _ in range(iterations):
        scores = rows @ centroids.T  # (n, L)
        if strict:
            assigned = assign_evenly(scores)  # (n,)
        else:
            assigned = sinkhorn(scores, strength=strength, max_iterations=10).argmax(dim=1)
        sizes = torch.bincount(assigned, minlength=num_clusters)  # (L,)
        sums = torch.zeros_like(centroids).index_add_(0, assigned, rows)
        empty = sizes == 0
        if bool(empty.any()):
            drawn = torch.randperm(len(rows), generator=rng)[: int(empty.sum())]
            sums[empty] = rows[drawn.tolist()]
        centroids = F.normalize(sums, dim=1)
    if images is not None:  # two rows of one image count once
        pairs = torch.stack([assigned, images.to(assigned.device)]).unique(dim=1)
        sizes = torch.bincount(pairs[0], minlength=num_clusters)
    return LocalClusters(centroids, sizes.clamp(min=1))


def assign_evenly(scores: Tensor) -> Tensor:
    """Assign rows to clusters with the largest total score at sizes that differ by at most one.

    A linear assignment of rows to slots: every cluster has n // L slots that must be filled and
    one that may be; dummies take the optional slots that stay free, and fit nowhere else. Returns
    the cluster of each row, (n,) int64, for scores (n, L) with n >= L.
    """
    from scipy.optimize import linear_sum_assignment

    n, num_clusters = scores.shape
    least, more = divmod(n, num_clusters)
    owner = np.concatenate([np.repeat(np.arange(num_clusters), least), np.arange(num_clusters)])
    dummies = np.zeros((num_clusters - more, len(owner)))
    table = scores.detach().double().cpu().numpy()[:, owner]
    # More than any exchange of rows can gain.
    dummies[:, : num_clusters * least] = -(1.0 + 4.0 * float(np.abs(table).sum()))
    _, slots = linear_sum_assignment(np.concatenate([table, dummies]), maximize=True)
    return torch.from_numpy(owner[slots[:n]]).to(scores.device)


@torch.no_grad()
def cluster_globally(
    points: Tensor,
    centroids: Tensor,
    *,
    temperature: float = 0.1,
    strength: float = 25.0,
    steps: int = 500,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
) -> Tensor:
    """Move the global centroids towards clusters of equal mass of the clients' centroids.

    Full-batch gradient descent on -mean_i cos(Q_i, P_i), where P = softmax(points centroidsᵀ /
    temperature) and Q is the constant Sinkhorn assignment of the same scores; rows are brought back
    to norm 1 after each step. The gradient is written out, so that a step costs two matrix
    products. A client's weight is its number of points, however many images it holds.

    Deviation: the release starts from centroids that are not normalised.

    Points (N, d), N >= 1, are unit vectors; centroids (G, d), where to start, are normalised first.
    Sinkhorn makes at most 100 scalings. Returns unit centroids, (G, d); no argument changes.
    """
    settings = temperature, strength, lr, momentum, weight_decay
    like = centroids.dtype, centroids.device

    def cluster(moves: "_Moves") -> Tensor:
        return moves.run(F.normalize(points, dim=1), F.normalize(centroids, dim=1), steps)

    def plain() -> Tensor:
        return cluster(_Moves(points.shape, centroids, settings, recorded=False))

    if points.device.type == "cpu":
        return plain()
    return first_use.checked(
        first_use.RECORDED_CLUSTERING,
        lambda: cluster(_recorded_moves(points.shape, centroids.shape, *like, settings)),
        plain,
        lambda moved: {"centroids": [moved]},
        dict,
        first_use.TOLERANCE["fp32"],
        refusals=RuntimeError,
        refused=first_use.RECORDED_CLUSTERING,
    )


class _Moves:
    """The steps of `cluster_globally` on tensors that stay where they are.

    A step is some hundred short kernels, most of them Sinkhorn's, and a GPU waits for Python
    between them. Recorded, it waits only where the host asks whether Sinkhorn has ended.
    """

    def __init__(
        self, points: torch.Size, like: Tensor, settings: tuple[float, ...], *, recorded: bool
    ) -> None:
        self._temperature, self._strength, self._lr, self._momentum, self._decay = settings
        num, dim = points
        self._points, self._turned = like.new_empty(num, dim), like.new_empty(dim, num)
        self._c, self._velocity = torch.empty_like(like), torch.empty_like(like)  # (G, d)
        self._scores, self._mixed = (like.new_empty(len(like), num) for _ in range(2))
        wide = 3 * self._strength > _SAFE_EXPONENT
        self._kernel = torch.empty_like(self._scores, dtype=torch.double if wide else None)
        self._record = Recorder(like.device, recorded=recorded)
        self._scaling = _Scaling(self._kernel.T, self._record)
        self._ones = like.new_ones(len(like))

    def run(self, points: Tensor, centroids: Tensor, steps: int) -> Tensor:
        """Return unit centroids (G, d) moved towards unit points (N, d)."""
        self._points.copy_(points)
        self._turned.copy_(points.T)  # products are fastest when nothing is strided
        self._c.copy_(centroids)
        self._velocity.zero_()
        for _ in range(steps):
            self._record("scores", self._score)
            written = self._scaling.run(100, 1e-2)
            self._record(f"move from {written}", partial(self._move, self._scaling.rows[written]))
        return self._c.clone()

    def _score(self) -> None:
        torch.mm(self._c, self._turned, out=self._scores)  # (G, N), and so is all that follows
        kernel = _powers(self._scores, self._strength, self._kernel)
        if kernel is not self._kernel:
            self._kernel.copy_(kernel)
        first = self._scaling.rows[0]  # (N,)
        torch.mv(self._kernel.T, self._ones.to(self._kernel), out=first)
        first.mul_(len(first)).reciprocal_()

    def _move(self, samples: Tensor) -> None:
        num, scores, ones, c = len(samples), self._scores, self._ones, self._c
        q = self._kernel.mul_(self._scaling.columns[:, None]).mul_(samples).to(scores.dtype)
        p = _powers(scores, 1 / self._temperature, scores).to(scores.dtype)
        # The cosine sees neither q's nor p's length. d cos / d p = (q - cos p) / |p| for unit q and
        # p, and softmax's gradient is p times that, less p . (d cos / d p), which is 0.
        torch.mul(q, p, out=self._mixed)
        p2, q2 = p.square_(), q.square_()
        dot, p_sum, q_sum = (torch.mv(matrix.T, ones) for matrix in (self._mixed, p2, q2))  # (N,)
        scale = (p_sum.rsqrt() * q_sum.rsqrt_()).mul_(-1 / (num * self._temperature))
        slope = self._mixed.mul_(scale).sub_(p2.mul_(dot.mul_(scale).div_(p_sum)))
        self._velocity.addmm_(slope, self._points, beta=self._momentum).add_(c, alpha=self._decay)
        c.sub_(self._velocity, alpha=self._lr)
        c.div_(torch.linalg.vector_norm(c, dim=1, keepdim=True))


@lru_cache(maxsize=1)  # the rounds of a run have mostly as many points
def _recorded_moves(
    points: torch.Size,
    centroids: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    settings: tuple[float, ...],
) -> _Moves:
    like = torch.empty(centroids, dtype=dtype, device=device)
    return _Moves(points, like, settings, recorded=True)


def _powers(scores: Tensor, factor: float, out: Tensor) -> Tensor:
    """Return exp(factor * scores), (G, N), up to one positive factor per column.

    Scores are in [-1, 1]. The result lies in the memory of `out` if its type can hold such powers
    times the scales that Sinkhorn finds for them, up to exp(3 * factor); else it is float64.
    """
    if 3 * factor > _SAFE_EXPONENT:
        return scores.double().mul(factor).softmax(dim=0)
    return torch.mul(scores, factor, out=out).exp_()


def cluster_privately(
    rows: Tensor, num_clusters: int, budget: ClusterBudget, rng: torch.Generator
) -> Tensor:
    """Make unit centroids whose distribution changes little when any one row is added or removed.

    The rows' random hash bits span a tree. A node stays if its noisy count is large enough; the
    noisy mean of each leaf, weighted by its noisy count, goes into a k-means, which no longer sees
    the rows. Draws from `rng` simulate the noise: neither the generator nor floating-point Gaussian
    numbers withstand an adversary.

    Rows (n, d), n >= 0, that are longer than 1 are cut to 1; centroids (L, d) are repeated if there
    are fewer than L >= 1. The budget is that of this one call, and `rng` makes every draw, on the
    CPU.
    """
    from sklearn.cluster import KMeans

    points = rows.detach().cpu().double()
    points = points / points.norm(dim=1, keepdim=True).clamp(min=1)
    coreset = list(_leaves(points, num_clusters, budget, rng))
    means = torch.stack([mean for mean, _ in coreset])  # (leaves, d)
    weights = torch.tensor([weight for _, weight in coreset])
    if len(means) > num_clusters:
        seed = int(torch.randint(2**31 - 1, (1,), generator=rng))
        k_means = KMeans(num_clusters, n_init=1, random_state=seed)
        k_means.fit(means.numpy(), sample_weight=weights.double().numpy())
        means = torch.from_numpy(k_means.cluster_centers_)
    centres = means.repeat(math.ceil(num_clusters / len(means)), 1)[:num_clusters]
    return F.normalize(centres, dim=1).to(rows)


def random_units(num: int, dim: int, rng: torch.Generator) -> Tensor:
    """Draw uniform directions, (num, dim): centroids without any information."""
    return F.normalize(torch.randn(num, dim, generator=rng), dim=1)


def noisy_sum(points: Tensor, std: float, rng: torch.Generator) -> Tensor:
    """Sum (n, d) points and add Gaussian noise of this standard deviation, (d,) float64."""
    noise = torch.randn(points.shape[1], dtype=torch.float64, generator=rng)
    return points.sum(dim=0) + std * noise


def noisy_count(points: Tensor, parameter: float, rng: torch.Generator) -> int:
    """Count points and add noise k with P(k) proportional to exp(-parameter |k|)."""
    trials = torch.empty(2, dtype=torch.float64).geometric_(-math.expm1(-parameter), generator=rng)
    return len(points) + int(trials[0] - trials[1])


def _leaves(
    points: Tensor, num_clusters: int, budget: ClusterBudget, rng: torch.Generator
) -> Iterator[tuple[Tensor, int]]:
    """Yield the leaves' noisy means within the unit ball, (d,), and noisy counts, at least 1."""
    std, parameter = budget.sum_std, budget.count_parameter
    dim = points.shape[1]
    bits = points @ torch.randn(dim, LEVELS - 1, dtype=torch.float64, generator=rng) >= 0
    total = noisy_count(points, parameter, rng)
    least = max(1, min(int(_LOW_NOISE * math.sqrt(dim) * std), total // (2 * num_clusters)))
    level = [(torch.arange(len(points)), max(1, total))]  # rows of each node, noisy count
    for depth in range(LEVELS):
        next_level = []
        for index, count in level:
            children = []
            if depth < LEVELS - 1 and count >= _SPLIT * least:
                for side in (False, True):
                    child = index[bits[index, depth] == side]
                    child_count = noisy_count(child, parameter, rng)
                    if child_count >= least:
                        children.append((child, child_count))
            next_level += children
            if not children:
                mean = noisy_sum(points[index], std, rng) / count
                yield mean / mean.norm().clamp(min=1), count
        level = next_level
