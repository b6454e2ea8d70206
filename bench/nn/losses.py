"""Losses of self-supervised learning as pure functions of embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross entropy over the 2B views of a batch.

    Each view must pick its partner out of the other 2B - 1 views, by cosine similarity.

    Source: Chen et al. 2020, https://arxiv.org/abs/2002.05709, equation 1.

    Args:
        z1: projections of the first views, (B, d).
        z2: projections of the second views, (B, d); row i belongs to row i of `z1`.
        temperature: softmax divisor, > 0.

    Returns:
        Scalar in [0, inf): ln(2B - 1) when all views coincide.
    """
    batch = len(z1)
    u = F.normalize(torch.cat((z1, z2)), dim=1)  # (2B, d)
    logits = u @ u.T / temperature  # (2B, 2B)
    logits = logits.masked_fill(torch.eye(2 * batch, dtype=torch.bool, device=u.device), -math.inf)
    partner = torch.arange(2 * batch, device=u.device).roll(batch)  # (2B,)
    return F.cross_entropy(logits, partner)


def info_nce(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """InfoNCE between two views, both directions averaged; negatives come from the other view only.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 3, which is
    one-sided; the other direction is added so that the views play the same part.

    Args:
        z1: projections of the first views, (B, d).
        z2: projections of the second views, (B, d).
        temperature: softmax divisor, > 0.

    Returns:
        Scalar in [0, inf): ln B when all views coincide.
    """
    logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / temperature  # (B, B)
    own = torch.arange(len(z1), device=z1.device)  # (B,)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def client_cross_entropy(codes: Tensor, rows: Tensor, client_id: int, temperature: float) -> Tensor:
    """How well codes tell which client they come from: the user-verification term of one view.

    Both sides are normalised, so scaling either changes nothing.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 6.

    Args:
        codes: outputs of the client-ID projector, (B, d).
        rows: one row per client, (K, d).
        client_id: the row that the codes belong to, in 0…K-1.
        temperature: softmax divisor, > 0; the source has none, which is 1.

    Returns:
        Scalar in [0, inf): about ln K for codes that know nothing.
    """
    logits = F.normalize(codes, dim=1) @ F.normalize(rows, dim=1).T / temperature  # (B, K)
    mine = torch.full((len(codes),), client_id, dtype=torch.long, device=codes.device)  # (B,)
    return F.cross_entropy(logits, mine)
