"""Scores of the spectrum of projections: how many directions are used, and how evenly.

`RankMe` circulates with and without centring, of singular values and of eigenvalues, and with terms
added before the logarithm; the docstrings say which is meant here. Nothing is added: shares below
1e-6 of the total, the rounding of single precision, are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.bench.evaluation.objectives.base import (
    Objective,
    Sums,
    noise_variance,
    score_of_sums,
    symmetric,
)
from fedbench.bench.evaluation.objectives.statistics import (
    DirectionProducts,
    Directions,
    Moments,
    Pairs,
    ViewScatter,
)

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
        return participation_ratio(covariance, noise)


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
        matrix = symmetric(sums["direction-products"], _side(sums["direction-products"]))
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
        dim = next(d for d in range(1, len(vector) + 1) if d + d * (d + 1) >= len(vector))
        size = dim * (dim + 1) // 2
        mean = vector[:dim] / count
        products, within = vector[dim : dim + size], vector[dim + size :]
        if count < 2:
            return None
        between = symmetric(products, dim) - count * torch.outer(mean, mean)
        return lidar(between / (count - 1), symmetric(within, dim) / count)


def second_moment(sums: Sums) -> Tensor:
    """Return the mean of z z^T, (d, d)."""
    count, vector = sums["pairs"][0], sums["moments"]
    dim = next(d for d in range(1, len(vector) + 1) if d + d * (d + 1) // 2 >= len(vector))
    return symmetric(vector[dim:], dim) / count


def covariance(sums: Sums) -> Tensor:
    """Return the covariance of the projections, (d, d); zeros if only rounding is left."""
    moment = second_moment(sums)
    mean = sums["moments"][: len(moment)] / sums["pairs"][0]
    return _centred(moment, mean)


def direction_covariance(sums: Sums) -> Tensor:
    """Return the covariance of the unit projections, (d, d)."""
    mean = sums["directions"] / sums["pairs"][0]
    moment = symmetric(sums["direction-products"], len(mean)) / sums["pairs"][0]
    return _centred(moment, mean)


def spectrum(matrix: Tensor) -> Tensor:
    """Return the eigenvalues of a symmetric matrix, at least 0, from the largest."""
    values: Tensor = torch.linalg.eigvalsh(matrix.cpu()).clamp_min(0).flip(0)
    return values


def entropy_rank(values: Tensor) -> float:
    """Return exp of the entropy of values >= 0 over their sum; 1 if all are 0."""
    total = values.square().sum().sqrt()
    kept = values[values > 1e-6 * total]
    if len(kept) == 0:
        return 1.0
    share = kept / kept.sum()
    return float(torch.exp(-(share * share.log()).sum()))


def over_largest(values: Tensor) -> float:
    """Return the sum of values >= 0 over the first, the largest; 1 if all are 0."""
    return float(values.sum() / values[0]) if values[0] > 0 else 1.0


def participation_ratio(matrix: Tensor, noise: float = 0.0) -> float | None:
    """Return tr(C)^2 / |C|_F^2 of a covariance; 1 if it is 0.

    Args:
        matrix: C.
        noise: what noise adds to |C|_F^2 on average; None is returned if nothing else is left.
    """
    squares = float(matrix.square().sum()) - noise
    if squares <= 0:
        return None if noise else 1.0
    return float(matrix.diagonal().sum()) ** 2 / squares


def decay(eigenvalues: Tensor, low: int, high: int) -> tuple[float, float]:
    """Fit log lambda_j = c - alpha log j, weighted by 1 / j, over indices low to high - 1 from 0.

    Returns:
        alpha, and the weighted R^2.
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
    """Return the effective rank of the eigenvalues of (S_w + c I)^-1 S_b.

    Args:
        between: S_b, (d, d).
        within: S_w, (d, d).
        share: c as a share of the mean variance of `within`.
        least: c is at least this.

    Returns:
        At least 1; 1 where images coincide; None where only views do.
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


def _side(triangle: Tensor) -> int:
    """Return d for a vector of d (d + 1) / 2 numbers."""
    return int(((8 * len(triangle) + 1) ** 0.5 - 1) / 2)
