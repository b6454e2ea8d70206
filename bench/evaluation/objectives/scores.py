"""Label-free scores by name: alignment, spread and spectrum of all clients' images together.

`RankMe` circulates with and without centring, of singular values and of eigenvalues, and with terms
added before the logarithm; the docstrings say which is meant here. Nothing is added: shares below
1e-6 of the total, the rounding of single precision, are left out.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.bench.evaluation.metrics import register
from fedbench.bench.evaluation.objectives.base import (
    TEMPERATURE,
    DirectionProducts,
    Directions,
    Frequencies,
    Moments,
    Objective,
    Pairs,
    Projections,
    Slices,
    Statistic,
    Sums,
    ViewScatter,
    noise_variance,
    score_of_sums,
    separation,
    symmetric,
    triangle,
)
from fedbench.bench.evaluation.objectives.names import GROUP, OF_CLIENTS, SHIPPED
from fedbench.bench.system.errors import ConfigError, PluginError, UnknownNameError
from fedbench.bench.system.plugins import load, load_all
from fedbench.bench.system.seeding import generator

ALWAYS = ("participation-ratio",)
"""Objectives of every run; `evaluation.objectives` names further ones."""


class GlobalAlign(Objective):
    """Mean cosine between an image and its view."""

    name = "global-align"
    metric = score_of_sums("global_align", "objective_view")
    formula = "mean_x s(x, view(x))"
    source = "Wang & Isola 2020, https://arxiv.org/abs/2005.10242, as a cosine"
    statistics = (Pairs(),)
    sees_contraction = True

    def combine(self, sums: Sums) -> float | None:
        count, cosines = sums["pairs"].tolist()
        return float(cosines / count)


class GlobalRho(Objective):
    """Mean cosine distance between two images, each paired with itself too."""

    name = "global-rho"
    metric = score_of_sums("global_rho")
    formula = "1 - |mean_x u(x)|^2"
    source = "ours"
    statistics = (Pairs(), Directions())
    sees_contraction = True

    def combine(self, sums: Sums) -> float | None:
        return rho(sums)


class GlobalSep(Objective):
    """Spread between images against spread between views of one image."""

    name = "global-sep"
    metric = score_of_sums("global_sep", "objective_view")
    formula = "1 - (1 - global-align) / global-rho"
    source = "ours"
    statistics = (Pairs(), Directions())

    def combine(self, sums: Sums) -> float | None:
        count, cosines = sums["pairs"].tolist()
        return separation(rho(sums), 1 - cosines / count)


class GlobalUniformity(Objective):
    """Minus the log of the mean of exp(s(x, y) / 0.2) over all pairs of images of all clients.

    The logarithm is outside of the mean, unlike in the objective's own uniformity, so the two are
    different numbers even for one client. Estimated from 1,024 random frequencies, the same in
    every run. Where directions fill the sphere that is 0.01 to 0.08 off, and nearly as much for
    all encoders of one dimension d: +0.07 at d = 16, -0.04 at 64, -0.02 at 128, +0.02 at 512. So
    values compare between encoders of the same d.
    """

    name = "global-unif"
    metric = score_of_sums("global_unif")
    formula = "-log mean_{x, y} exp(s(x, y) / 0.2)"
    source = "Wang & Isola 2020, https://arxiv.org/abs/2005.10242; random features: ours"
    sees_contraction = True

    statistics = (Pairs(), Frequencies())

    def combine(self, sums: Sums) -> float | None:
        count = sums["pairs"][0]
        kernel = float((sums["frequencies"] / count).square().sum(dim=0).mean())  # E |psi(w)|^2
        kernel -= 2 * noise_variance(sums, "frequencies") / float(count) ** 2
        return -math.log(kernel) - 1 / TEMPERATURE if kernel > 0 else None


def rho(sums: Sums) -> float:
    """Return the mean cosine distance between two images, in [0, 1] unless there is noise."""
    count = sums["pairs"][0]
    mean: Tensor = sums["directions"] / count
    noise = len(mean) * noise_variance(sums, "directions") / float(count) ** 2
    return max(0.0, 1 - float(mean.square().sum()) + noise)


class SigReg(Objective):
    """Distance of unit projections, times sqrt(d), from independent normals.

    The Epps-Pulley statistic, weighted by exp(-t^2 / 2), with 17 knots on [-5, 5] and the mean over
    256 directions. 0.409 for a collapsed encoder at the centre; it also grows where directions
    share a mean. A distance to one target, which other methods do not have; LeJEPA selects by its
    training loss, of which this is a part.
    """

    name = "sigreg"
    metric = score_of_sums("sigreg", better="lower")
    formula = "mean_a int |mean_x exp(i t a.z) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt, z = sqrt(d) u"
    source = "Balestriero & LeCun 2025, https://arxiv.org/abs/2511.08544, algorithm 1"
    statistics = (Pairs(), Slices())
    sees_contraction = True

    def combine(self, sums: Sums) -> float | None:
        cosine, sine = sums["slices"] / sums["pairs"][0]  # (knots, directions) each
        knots = torch.tensor(Slices.knots, dtype=torch.float64, device=cosine.device)[:, None]
        normal = (-knots.square() / 2).exp()
        distance = ((cosine - normal).square() + sine.square()) * normal
        # Both signs of a knot, except that the trapezoid rule halves the last; that at 0 is 0.
        step = Slices.knots[0]
        weights = torch.full_like(knots, 2 * step)
        weights[-1] = step
        value = float((weights * distance).sum(dim=0).mean())
        noise = 2 * noise_variance(sums, "slices") / float(sums["pairs"][0]) ** 2
        return value - noise * float((weights * normal).sum())


CLUSTERS = 32
STEPS = 5


class Assignments(Statistic):
    """For each centroid that the server has sent: the images nearest to it and their sum."""

    name = "assignments"
    meaning = "images of each of 32 clusters, and their summed unit projections"

    repeated = True

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        unit, centroids = projections.unit, shared["centroids"]
        nearest = (centroids.square().sum(dim=1) - 2 * unit @ centroids.T).argmin(dim=1)
        rows = torch.cat([torch.ones_like(unit[:, :1]), unit], dim=1)
        return unit.new_zeros(CLUSTERS, rows.shape[1]).index_add_(0, nearest, rows)


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


class TurnProducts(Statistic):
    """Products of encoder features of turned images, with a constant, and features by turn."""

    name = "turn-products"
    meaning = "summed products of features at four quarter turns, and features by turn"

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        features = _turned(projections)
        flat = features.flatten(0, 1)
        return torch.cat([triangle(flat.T @ flat), features.sum(dim=0).T.flatten()])


class TurnHits(Statistic):
    """Turned images, and those whose turn a fit to all other images tells."""

    name = "turn-hits"
    meaning = "turned images, and those that are told right"
    repeated = True

    def of(self, projections: Projections, shared: Sums) -> Tensor:
        features, weights = _turned(projections), shared["weights"]
        own = features @ shared["inverse"] @ features.mT  # (n, 4, 4), an image's part in its fit
        turns = torch.eye(4, dtype=features.dtype, device=features.device)
        # Least squares without an image: (I - H)^-1 (fitted - H y), as one update of rank 4. The
        # last term is for an image without which nothing is left.
        rest = turns - own + 1e-9 * turns
        told = torch.linalg.solve(rest, features @ weights - own @ turns)
        hits = told.argmax(dim=2) == torch.arange(4, device=told.device)
        return torch.stack([hits.new_tensor(hits.numel(), dtype=told.dtype), hits.sum()])


class RotationProbe(Objective):
    """Share of quarter turns that a ridge regression tells from the encoder's features.

    Each image is held out: its turns are told by the fit to all others, in closed form. The penalty
    is 1e-3 of the features' mean square, and the constant has none. The paper trains a linear
    classifier. Not comparable between methods: rotpred and orchestra learn turns.
    """

    name = "rotation-probe"
    metric = score_of_sums("rotation_probe")
    formula = "accuracy of a ridge regression of quarter turns on encoder features, image held out"
    source = "Reed et al. 2021, https://arxiv.org/abs/2009.07724; sums and ridge: ours"
    statistics = (TurnProducts(), TurnHits())
    exchanges: ClassVar[int] = 2
    turns = True

    def answer(self, sums: Sums, shared: Sums) -> Sums:
        """Return the inverse of the penalised products, (D + 1, D + 1), and the weights."""
        vector = sums["turn-products"]
        dim = (math.isqrt(81 + 8 * len(vector)) - 9) // 2  # of d (d + 1) / 2 + 4 d numbers
        products = symmetric(vector[: -4 * dim])
        penalty = products.diagonal().clone()
        penalty[:-1] = max(1e-3 * float(penalty[:-1].mean()), 1e-30)
        penalty[-1] = 0
        inverse = torch.linalg.inv(products + penalty.diag())
        return {"inverse": inverse, "weights": inverse @ vector[-4 * dim :].view(dim, 4)}

    def combine(self, sums: Sums) -> float | None:
        count, hits = sums["turn-hits"].tolist()
        return float(hits / count)


def _turned(projections: Projections) -> Tensor:
    """Return features of turned images with a constant behind them, (n, 4, D + 1)."""
    assert projections.turned is not None
    return torch.nn.functional.pad(projections.turned, (0, 1), value=1.0)


_ROUNDING = 1e-12
"""Shares of the second moment up to here are single precision's rounding."""


class RankMe(Objective):
    """Effective rank of the projections, not centred."""

    name = "rankme"
    metric = score_of_sums("rankme")
    formula = "exp(-sum p log p), p = sigma / sum sigma, sigma singular values of projections"
    source = "Garrido et al. 2023, https://arxiv.org/abs/2210.02885, without its epsilon"
    statistics = (Pairs(), Moments())
    sees_contraction = True

    def combine(self, sums: Sums) -> float | None:
        return entropy_rank(spectrum(second_moment(sums)).sqrt())


class RankMeCentred(Objective):
    """Effective rank of the projections minus their mean."""

    name = "rankme-centred"
    metric = score_of_sums("rankme_centred")
    formula = "as rankme, of projections minus their mean"
    source = "Roy & Vetterli 2007, EUSIPCO, 'The effective rank'"
    statistics = (Pairs(), Moments())

    def combine(self, sums: Sums) -> float | None:
        return entropy_rank(spectrum(covariance(sums)).sqrt())


class StableRank(Objective):
    """Energy of the projections over that of their strongest direction."""

    name = "stable-rank"
    metric = score_of_sums("stable_rank")
    formula = "|Z|_F^2 / sigma_1^2"
    source = "Tsitsulin et al. 2023, https://arxiv.org/abs/2305.16562"
    statistics = (Pairs(), Moments())
    sees_contraction = True

    def combine(self, sums: Sums) -> float | None:
        return over_largest(spectrum(second_moment(sums)))


class NESum(Objective):
    """Total variance over that of the strongest direction."""

    name = "nesum"
    metric = score_of_sums("nesum")
    formula = "sum lambda / lambda_1, lambda eigenvalues of the covariance"
    source = "He & Ozay 2022, 'Exploring the gap between collapsed and whitened features'"
    statistics = (Pairs(), Moments())

    def combine(self, sums: Sums) -> float | None:
        return over_largest(spectrum(covariance(sums)))


class ParticipationRatio(Objective):
    """Number of directions that share the variance of unit projections."""

    name = "participation-ratio"
    metric = score_of_sums("participation_ratio")
    formula = "tr(C)^2 / |C|_F^2, C covariance of unit projections"
    source = "a standard of physics and neuroscience; Gao et al. 2017, doi:10.1101/214262"
    statistics = (Pairs(), Directions(), DirectionProducts())

    def combine(self, sums: Sums) -> float | None:
        covariance = direction_covariance(sums)
        noise = _noise_of_squares(sums, len(covariance)) / float(sums["pairs"][0]) ** 2
        squares = float(covariance.square().sum()) - noise
        if squares <= 0:
            return None if noise else 1.0
        return float(covariance.diagonal().sum()) ** 2 / squares


class AlphaReq(Objective):
    """Decay of the eigenvalues as a power of their index; 1 is said to be best.

    Least squares of the logarithms, weighted by 1 / index, over indices d / 12 to 0.8 d counted
    from 0. Undefined below 8 dimensions, where R^2 is under 0.9, or where the last eigenvalue is
    rounding. The range decides the value where spectra are bent: compare equal d only.
    """

    name = "alpha-req"
    metric = score_of_sums("alpha_req", better="near 1")
    formula = "alpha of lambda_j ~ j^-alpha; score -|alpha - 1|"
    source = "Agrawal et al. 2022, 'alpha-ReQ'; range and weights as in reptrix, scaled to d"
    statistics = (Pairs(), Moments())

    def combine(self, sums: Sums) -> float | None:
        eigenvalues = spectrum(covariance(sums))
        dim = len(eigenvalues)
        low, high = -(-dim // 12), int(0.8 * dim)
        if dim < 8 or eigenvalues[high - 1] < 1e-10 * eigenvalues[0]:
            return None
        alpha, fit = decay(eigenvalues, low, high)
        return alpha if fit >= 0.9 else None


class SelfClustering(Objective):
    """Squared cosines of all pairs of images, 0 for random directions and 1 for one direction."""

    name = "self-clustering"
    metric = score_of_sums("self_clustering", better="lower")
    formula = "(Q - E) / (n^2 - E), Q = sum_{x, y} s(x, y)^2, E = n + n (n - 1) / d"
    source = "Tsitsulin et al. 2023, https://arxiv.org/abs/2305.16562, with squares"
    statistics = (Pairs(), DirectionProducts())
    sees_contraction = True

    def combine(self, sums: Sums) -> float | None:
        count = float(sums["pairs"][0])
        matrix = symmetric(sums["direction-products"])
        dim = len(matrix)
        expected = count + count * (count - 1) / dim
        if count * count - expected <= 0:  # one image, or one dimension
            return None
        squares = float(matrix.square().sum()) - _noise_of_squares(sums, dim)
        return (squares - expected) / (count * count - expected)


class LiDAR(Objective):
    """Effective rank of the spread between images, in units of the spread between their views.

    Clean image and view are the two views of an image, and the same for all methods; the paper has
    50 of a method's own. The paper's constant is absolute and swallows the spread between views
    where projections contract; here it is 1e-4 of their mean variance.
    """

    name = "lidar"
    metric = score_of_sums("lidar", "objective_view")
    formula = "exp(entropy of eig(S_w^-1 S_b)), S_b between images, S_w between views"
    source = "Thilak et al. 2024, https://arxiv.org/abs/2312.04000"
    statistics = (Pairs(), ViewScatter())

    def combine(self, sums: Sums) -> float | None:
        count, vector = float(sums["pairs"][0]), sums["view-scatter"]
        dim = math.isqrt(len(vector) + 1) - 1  # of d + d (d + 1) numbers
        size = dim * (dim + 1) // 2
        mean = vector[:dim] / count
        products, within = vector[dim : dim + size], vector[dim + size :]
        if count < 2:
            return None
        between = symmetric(products) - count * torch.outer(mean, mean)
        return lidar(between / (count - 1), symmetric(within) / count)


def second_moment(sums: Sums) -> Tensor:
    """Return the mean of z z^T, (d, d)."""
    count, vector = sums["pairs"][0], sums["moments"]
    dim = math.isqrt(2 * len(vector)) - 1  # of d + d (d + 1) / 2 numbers
    return symmetric(vector[dim:]) / count


def covariance(sums: Sums) -> Tensor:
    """Return the covariance of the projections, (d, d); zeros if only rounding is left."""
    moment = second_moment(sums)
    mean = sums["moments"][: len(moment)] / sums["pairs"][0]
    return _centred(moment, mean)


def direction_covariance(sums: Sums) -> Tensor:
    """Return the covariance of the unit projections, (d, d)."""
    mean = sums["directions"] / sums["pairs"][0]
    moment = symmetric(sums["direction-products"]) / sums["pairs"][0]
    return _centred(moment, mean)


def spectrum(matrix: Tensor) -> Tensor:
    """Return the eigenvalues of a symmetric matrix, at least 0, from the largest."""
    values: Tensor = torch.linalg.eigvalsh(matrix.cpu()).clamp_min(0).flip(0)
    return values


def entropy_rank(values: Tensor) -> float:
    """Return exp of the entropy of values >= 0 over their sum; 1 if all are 0.

    Values below 1e-6 of their norm are left out: a square root lifts 1e-16, rounding, to 1e-8.
    """
    total = values.square().sum().sqrt()
    kept = values[values > 1e-6 * total]
    if len(kept) == 0:
        return 1.0
    share = kept / kept.sum()
    return float(torch.exp(-(share * share.log()).sum()))


def over_largest(values: Tensor) -> float:
    """Return the sum of values >= 0 over the first, the largest; 1 if all are 0."""
    return float(values.sum() / values[0]) if values[0] > 0 else 1.0


def decay(eigenvalues: Tensor, low: int, high: int) -> tuple[float, float]:
    """Fit log lambda_j = c - alpha log j, weighted by 1 / j, over `low` <= j < `high` from 0.

    Returns alpha, and the weighted R^2.
    """
    index = torch.arange(low + 1, high + 1, dtype=torch.float64)
    x, y, weight = index.log(), eigenvalues[low:high].log(), 1 / index
    weight = weight / weight.sum()
    x = x - (weight * x).sum()
    y = y - (weight * y).sum()
    slope = (weight * x * y).sum() / (weight * x * x).sum()
    total = (weight * y * y).sum()
    rest = (weight * (y - slope * x).square()).sum()
    return -float(slope), 1.0 if total == 0 else 1 - float(rest / total)


def lidar(between: Tensor, within: Tensor, share: float = 1e-4, least: float = 0.0) -> float | None:
    """Return the effective rank of the eigenvalues of (S_w + c I)^-1 S_b, both (d, d).

    c is the given share of the mean variance of S_w, and at least `least`. Returns at least 1; 1
    where images coincide; None where only views do.
    """
    if float(between.diagonal().sum()) <= 0:
        return 1.0
    constant = max(least, share * float(within.diagonal().mean()))
    if constant <= 0:
        return None
    values, vectors = torch.linalg.eigh(within.cpu())
    half = vectors / (values.clamp_min(0) + constant).sqrt()
    eigenvalues = spectrum(half.T @ between.cpu() @ half)
    share_of = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(torch.exp(-(share_of * share_of.log()).sum()))


def _noise_of_squares(sums: Sums, dim: int) -> float:
    """Return what noise adds to |sum u u^T|_F^2 on average: variance d (d + 1) / 2."""
    return noise_variance(sums, "direction-products") * dim * (dim + 1) / 2


def _centred(moment: Tensor, mean: Tensor) -> Tensor:
    matrix = moment - torch.outer(mean, mean)
    rounding = _ROUNDING * moment.diagonal().sum()
    return matrix if matrix.diagonal().sum() > rounding else torch.zeros_like(matrix)


@cache
def objectives() -> dict[str, Objective]:
    """Return every objective that is computed from sums, by name.

    A plugin that cannot be loaded, or whose name or metric is taken, is left out with a warning.
    """
    ours = [kind for kind in Objective.__subclasses__() if kind.__module__ == __name__]
    kinds = {kind.name: kind for kind in ours}
    found: dict[str, Objective] = {name: kinds[name]() for name in SHIPPED}
    for objective in found.values():
        register(objective.metric)

    def accept(point: EntryPoint) -> None:
        plugin = load(point)()
        if not isinstance(plugin, Objective):
            raise PluginError("it is no class of Objective")
        if plugin.name in {**OF_CLIENTS, **found}:
            raise PluginError(f"{plugin.name!r} is taken")
        register(plugin.metric)
        found[plugin.name] = plugin

    load_all(GROUP, accept)
    return found


def scored(names: Sequence[str], *, noise: bool = False) -> list[Objective]:
    """Return the objectives that a run computes, by `evaluation.objectives`, in order.

    The scale of noise depends on how many sums share it. So that it does not depend on `names`,
    with noise all objectives of fedbench that have an epsilon are computed.

    Raises:
        UnknownNameError: for a name of none.
        ConfigError: for one that noise gives no epsilon.
    """
    known = objectives()
    for name in names:
        if name not in known:
            more = "; every run has align, unif, rho, sep and the loss"
            raise UnknownNameError("objective of evaluation.objectives", name, known, more)
    asked = {*ALWAYS, *names, *(SHIPPED if noise else ())}
    found = [objective for name, objective in known.items() if name in asked]
    if not noise:
        return found
    bounded = with_noise(found)
    allowed = [objective.name for objective in bounded]
    if lost := [name for name in names if name not in allowed]:
        raise ConfigError(
            f"evaluation.objectives: evaluation.objective_noise gives no epsilon to {lost[0]!r},"
            f" which is of no bounded sums; a run with noise has {', '.join(allowed)}"
        )
    return bounded


def with_noise(objectives: Iterable[Objective]) -> list[Objective]:
    """Return the objectives that need bounded sums of one exchange alone."""
    single = [objective for objective in objectives if objective.exchanges == 1]
    return [one for one in single if all(s.sensitivity is not None for s in one.statistics)]
