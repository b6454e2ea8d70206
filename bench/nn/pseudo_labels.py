"""Learning from guesses: confident pseudo-labels, consistency, class-balanced thresholds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def consistency(weak: Tensor, strong: Tensor) -> Tensor:
    """KL divergence of the strong view's prediction from the weak view's, which gets no gradient.

    Source: Xie et al. 2020 (UDA), https://arxiv.org/abs/1904.12848, equation 1.

    Args:
        weak: logits of the weak views, (B, C), B at least 1.
        strong: logits of the strong views, (B, C).

    Returns:
        Scalar in [0, inf), a mean over examples: 0 when both predict the same.
    """
    wanted = F.log_softmax(weak.detach(), dim=1)
    return F.kl_div(F.log_softmax(strong, dim=1), wanted, reduction="batchmean", log_target=True)


def confident_cross_entropy(guesses: Tensor, logits: Tensor, threshold: float) -> Tensor:
    """Cross entropy with the guessed class where the guess is confident, 0 elsewhere.

    Source: Sohn et al. 2020 (FixMatch), https://arxiv.org/abs/2001.07685, equation 4.

    Args:
        guesses: probabilities, (B, C), B at least 1; no gradient reaches them.
        logits: (B, C).
        threshold: least probability of the guessed class, in [0, 1].

    Returns:
        Scalar in [0, inf): the sum over confident examples divided by B.
    """
    confidence, guess = guesses.detach().max(dim=1)  # (B,), (B,)
    each = F.cross_entropy(logits, guess, reduction="none")  # (B,)
    return torch.where(confidence >= threshold, each, 0.0).mean()


def balanced_thresholds(share: Tensor, base: float, highest: float) -> Tensor:
    """Per class the confidence that a pseudo-label needs: frequent classes need more.

    min(share_c + base - std(share), highest), with the deviation over classes (of all, not of a
    sample).

    Source: Li et al. 2023 (CBAFed), the class-balanced adaptive threshold of its release,
    https://github.com/minglllli/CBAFed.

    Args:
        share: (C,), each class's share of what is trained on, times C / 10.
        base: threshold of a class whose share equals the deviation.
        highest: no class needs more.
    """
    return (share + base - share.std(correction=0)).clamp(max=highest)


def accept(probabilities: Tensor, thresholds: Tensor, rare: Tensor) -> tuple[Tensor, Tensor]:
    """Pseudo-labels, and which of them are accepted.

    An image takes its most probable class if that is more probable than the class's threshold. If
    not, but the second most probable class is a rare one, it takes that.

    Source: Li et al. 2023 (CBAFed), its release, https://github.com/minglllli/CBAFed.

    Args:
        probabilities: (B, C), C at least 2.
        thresholds: (C,).
        rare: bool (C,).

    Returns:
        int64 labels (B,) and bool (B,).
    """
    two, order = probabilities.topk(2, dim=1)  # (B, 2)
    first, second = order.unbind(dim=1)  # (B,)
    sure = two[:, 0] > thresholds[first]
    rescued = ~sure & rare[second]
    return torch.where(rescued, second, first), sure | rescued
