"""Losses that use the labels at hand: contrast inside classes, and a linear classifier."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def sum_over_classes(loss_of: Callable[[Tensor], Tensor], labels: Tensor, min_size: int) -> Tensor:
    """A loss on the unlabelled examples, plus the same loss on each class by itself.

    A contrast then sees examples of one class only, which are hard negatives. Terms are summed,
    not averaged, and each is a mean over its own examples.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equations 12 and 13 and
    algorithm 2.

    Args:
        loss_of: of a boolean mask (B,) of examples; scalar.
        labels: (B,), -1 where hidden.
        min_size: fewest examples on which the loss is defined; smaller groups are left out.

    Returns:
        Scalar; 0 when no group is large enough.
    """
    groups = [labels == label for label in labels.unique()]
    terms = [loss_of(own) for own in groups if int(own.sum()) >= min_size]
    return torch.stack(terms).sum() if terms else torch.zeros((), device=labels.device)


def classification(logits: tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """Cross entropy of the labelled examples: mean over them, sum over views.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 12 (its log r terms).

    Args:
        logits: per view, (B, C).
        labels: (B,), -1 where hidden.

    Returns:
        Scalar in [0, inf), 0 without labels.
    """
    shown = labels >= 0
    if not bool(shown.any()):
        return 0.0 * torch.stack([view.sum() for view in logits]).sum()
    return torch.stack([F.cross_entropy(view[shown], labels[shown]) for view in logits]).sum()
