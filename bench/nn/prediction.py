"""Losses of methods that predict one view's embedding from the other's, without negatives."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def negative_cosine(predictions: Tensor, wanted: Tensor) -> Tensor:
    """Minus the mean cosine similarity; no gradient reaches `wanted`.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, equation 3.

    Args:
        predictions: (B, d).
        wanted: (B, d); row i is what row i of `predictions` should point to.

    Returns:
        Scalar in [-1, 1]: -1 when all point the same way.
    """
    similarity = F.normalize(predictions, dim=1) * F.normalize(wanted.detach(), dim=1)  # (B, d)
    return -similarity.sum(dim=1).mean()


def mutual_prediction(predictions: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Each view's prediction against the other view's embedding, both directions averaged.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, equation 4. BYOL (Grill et al. 2020,
    https://arxiv.org/abs/2006.07733, equation 2) sums 2 - 2 cos over both directions; its gradient
    is four times this one's, for which Lubana et al. 2022 tuned their learning rates.

    Args:
        predictions: of view 1 and of view 2, each (B, d).
        wanted: embeddings of view 1 and of view 2, each (B, d); no gradient reaches them.

    Returns:
        Scalar in [-1, 1].
    """
    (p1, p2), (z1, z2) = predictions, wanted
    return (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2


def spread(embeddings: Tensor) -> Tensor:
    """How far directions are from having collapsed to one: sqrt(d) x mean deviation per dimension.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, figure 2.

    Args:
        embeddings: (B, d).

    Returns:
        Scalar in [0, 1], without gradient: 0 when all embeddings point the same way, about 1 when
        directions are uniform.
    """
    unit = F.normalize(embeddings.detach(), dim=1)  # (B, d)
    return unit.std(dim=0, correction=0).mean() * math.sqrt(unit.shape[1])
