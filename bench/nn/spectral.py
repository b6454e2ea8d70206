"""The spectral contrastive loss and the norms under which it is used."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spectral_contrast(z1: Tensor, z2: Tensor) -> Tensor:
    """Partners attract by their inner product, other pairs repel by its square.

    -2/B sum_i z1_i.z2_i + 1/(B (B-1)) sum_(i != j) (z1_i.z2_j)^2, over pairs across the views only.

    Source: HaoChen et al. 2021, https://arxiv.org/abs/2106.04156, section 3.2; the second
    expectation is estimated over a batch as in its released code.

    Args:
        z1: embeddings of the first views, (B, d), B at least 2; normed by the caller.
        z2: embeddings of the second views, (B, d); row i belongs to row i of `z1`.

    Returns:
        Scalar: for unit vectors in [-2, 3], -1 when all coincide.
    """
    products = z1 @ z2.T  # (B, B)
    own = products.diagonal()  # (B,)
    others = products.square().sum() - own.square().sum()
    return others / (len(z1) * (len(z1) - 1)) - 2 * own.mean()


def clip_length(z: Tensor, longest: float) -> Tensor:
    """Shorten rows that are longer than `longest` to that length and leave the others as they are.

    Args:
        z: (B, d).
        longest: > 0.
    """
    lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)  # (B, 1)
    shortened: Tensor = z * (longest / lengths.clamp(min=longest))
    return shortened


def clipped_spectral_contrast(z1: Tensor, z2: Tensor, mu: float) -> Tensor:
    """`spectral_contrast` of rows clipped to length sqrt(mu), divided by mu.

    Source: the code released with HaoChen et al. 2021,
    https://github.com/jhaochenz96/spectral_contrastive_learning.

    Args:
        z1: embeddings of the first views, (B, d), B at least 2.
        z2: embeddings of the second views, (B, d).
        mu: square of the greatest length, > 0; 1 for CIFAR in the source.
    """
    longest = math.sqrt(mu)
    return spectral_contrast(clip_length(z1, longest), clip_length(z2, longest)) / mu
