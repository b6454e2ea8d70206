"""Alignment, spread and uniformity of all clients' images together."""

from __future__ import annotations

import math

from torch import Tensor

from fedbench.bench.evaluation.objectives.base import (
    Objective,
    Sums,
    noise_variance,
    score_of_sums,
)
from fedbench.bench.evaluation.objectives.statistics import (
    TEMPERATURE,
    Directions,
    Frequencies,
    Pairs,
)

COINCIDE = 1e-12
"""Mean cosine distances up to here are rounding of projections in single precision."""


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
        spread = rho(sums)
        return 1 - (1 - cosines / count) / spread if spread > COINCIDE else None


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
