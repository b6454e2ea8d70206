"""Losses as pure functions of embeddings (B, d), logits (B, C) and labels (B,).

Rows of two views belong together; a temperature is a softmax divisor, > 0. In this order: contrast
between two views, prediction of one view from another, telling clients apart, losses under visible
labels, and the consistency and pseudo-labels of semi-supervised learning.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross entropy over the 2B views of a batch.

    Each view must pick its partner out of the other 2B - 1 views, by cosine similarity.

    Source: Chen et al. 2020, https://arxiv.org/abs/2002.05709, equation 1.

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

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 3: a bound, ln B less
    one direction. The other direction is added so that both views have the same role.

    Returns:
        Scalar in [0, inf): ln B when all views coincide.
    """
    logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / temperature  # (B, B)
    partner = torch.arange(len(z1), device=z1.device)  # (B,)
    return (F.cross_entropy(logits, partner) + F.cross_entropy(logits.T, partner)) / 2


def spectral_contrast(z1: Tensor, z2: Tensor) -> Tensor:
    """Spectral contrast: partners attract by their inner product, other pairs repel by its square.

    -2/B sum_i z1_i.z2_i + 1/(B (B-1)) sum_(i != j) (z1_i.z2_j)^2, over pairs across the views only.

    Source: HaoChen et al. 2021, https://arxiv.org/abs/2106.04156, section 3.2; the second
    expectation is estimated over a batch as in its released code. The caller norms; B at least 2.

    Returns:
        Scalar: for unit vectors in [-2, 3], -1 when all coincide.
    """
    products = z1 @ z2.T  # (B, B)
    partners = products.diagonal()  # (B,)
    others = products.square().sum() - partners.square().sum()
    return others / (len(z1) * (len(z1) - 1)) - 2 * partners.mean()


def clipped_spectral_contrast(z1: Tensor, z2: Tensor, mu: float) -> Tensor:
    """`spectral_contrast` of rows clipped to length sqrt(mu), divided by mu.

    Source: the code released with HaoChen et al. 2021,
    https://github.com/jhaochenz96/spectral_contrastive_learning, where mu > 0 is 1 for CIFAR.
    """
    longest = math.sqrt(mu)
    return spectral_contrast(clip_length(z1, longest), clip_length(z2, longest)) / mu


def clip_length(z: Tensor, longest: float) -> Tensor:
    """Shorten rows that are longer than `longest`, > 0, to that length."""
    lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)  # (B, 1)
    shortened: Tensor = z * (longest / lengths.clamp(min=longest))
    return shortened


def negative_cosine(predictions: Tensor, wanted: Tensor) -> Tensor:
    """Mean cosine similarity, negated; no gradient reaches `wanted`.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, equation 3.

    Returns:
        Scalar in [-1, 1]: -1 when every prediction has its wanted direction.
    """
    similarity = F.normalize(predictions, dim=1) * F.normalize(wanted.detach(), dim=1)  # (B, d)
    return -similarity.sum(dim=1).mean()


def mutual_prediction(predictions: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Predict each view's embedding from the other view, both directions averaged.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, equation 4. BYOL (Grill et al. 2020,
    https://arxiv.org/abs/2006.07733, equation 2) sums 2 - 2 cos over both directions; its gradient
    is four times this one's, for which Lubana et al. 2022 tuned their learning rates.
    """
    (p1, p2), (z1, z2) = predictions, wanted
    return (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2


def spread(embeddings: Tensor) -> Tensor:
    """Spread of directions, for the log: sqrt(d) x mean standard deviation per dimension.

    The deviation divides by B, which keeps it at most 1; torch's default divides by B - 1.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, figure 2.

    Returns:
        Scalar in [0, 1], without gradient: 0 when all directions have collapsed to one, about 1
        when they are uniform.
    """
    unit = F.normalize(embeddings.detach(), dim=1)  # (B, d)
    return unit.std(dim=0, correction=0).mean() * math.sqrt(unit.shape[1])


def client_cross_entropy(
    codes: Tensor, rows: Tensor, client_id: int | Tensor, temperature: float
) -> Tensor:
    """Cross entropy of recognising the client from codes: user verification of one view.

    Both sides are normalised, so scaling either changes nothing.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 6, with temperature 1.

    Codes (B, d) are outputs of the client-ID projector, rows (K, d) one per client; `client_id` is
    the row that codes belong to, one number or (B,) int64.

    Returns:
        Scalar in [0, inf): about ln K for codes without information on the client.
    """
    logits = F.normalize(codes, dim=1) @ F.normalize(rows, dim=1).T / temperature  # (B, K)
    if not isinstance(client_id, Tensor):
        client_id = torch.full((len(codes),), client_id, device=codes.device)  # (B,)
    return F.cross_entropy(logits, client_id)


def classification(logits: tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """Cross entropy of the examples whose label is not -1: mean over them, sum over views.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 12 (its log r terms).
    """
    shown = labels >= 0
    if not bool(shown.any()):
        # No constant: the trainer refuses a loss that depends on nothing that clients train.
        return 0.0 * torch.stack([view.sum() for view in logits]).sum()
    return torch.stack([F.cross_entropy(view[shown], labels[shown]) for view in logits]).sum()


def sum_over_classes(loss_of: Callable[[Tensor], Tensor], labels: Tensor, min_size: int) -> Tensor:
    """Sum a loss over groups: the unlabelled examples, and the examples of each class.

    A contrast then sees examples of one class only, which are hard negatives. Groups are summed,
    not averaged; the loss of a group is a mean over its examples.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equations 12 and 13 and
    algorithm 2.

    `loss_of` takes the examples of a boolean mask (B,), labels (B,) are -1 where hidden, and groups
    below `min_size`, on which the loss is not defined, are left out.
    """
    groups = [labels == label for label in labels.unique()]
    terms = [loss_of(group) for group in groups if int(group.sum()) >= min_size]
    return torch.stack(terms).sum() if terms else torch.zeros((), device=labels.device)


def consistency(weak: Tensor, strong: Tensor) -> Tensor:
    """KL divergence of the strong view's prediction from the weak view's, which gets no gradient.

    Source: Xie et al. 2020 (UDA), https://arxiv.org/abs/1904.12848, equation 1.

    Returns:
        Scalar in [0, inf), a mean over examples: 0 when both predict the same.
    """
    wanted = F.log_softmax(weak.detach(), dim=1)  # (B, C)
    return F.kl_div(F.log_softmax(strong, dim=1), wanted, reduction="batchmean", log_target=True)


def confident_cross_entropy(guesses: Tensor, logits: Tensor, threshold: float) -> Tensor:
    """Cross entropy with the likeliest class of `guesses`, (B, C) probabilities without gradient.

    It is 0 for guesses below the threshold in [0, 1], which count in the mean all the same.

    Source: Sohn et al. 2020 (FixMatch), https://arxiv.org/abs/2001.07685, equation 4.
    """
    confidence, guess = guesses.detach().max(dim=1)  # (B,), (B,)
    losses = F.cross_entropy(logits, guess, reduction="none")  # (B,)
    return torch.where(confidence >= threshold, losses, 0.0).mean()


def balanced_thresholds(share: Tensor, base: float, highest: float) -> Tensor:
    """Confidence that a pseudo-label of each class needs, (C,): frequent classes need more.

    min(share_c + base - std(share), highest), where the variance is the sum of squares over C - 1.

    Source: Li et al. 2023 (CBAFed), the class-balanced adaptive threshold of its release,
    https://github.com/minglllli/CBAFed.

    `share` (C,), C at least 2, has each class's share of the images trained on, times C / 10. A
    class whose share equals the deviation needs `base`, and none needs more than `highest`.
    """
    return (share + base - share.std()).clamp(max=highest)


def accept(probabilities: Tensor, thresholds: Tensor, rare: Tensor) -> tuple[Tensor, Tensor]:
    """Choose pseudo-labels, and accept or refuse each.

    An image takes its most probable class if that is more probable than the class's threshold. If
    not, but the second most probable class is a rare one, it takes that.

    Source: Li et al. 2023 (CBAFed), its release, https://github.com/minglllli/CBAFed.

    From probabilities (B, C), C at least 2, thresholds (C,) and rare, bool (C,): labels, int64
    (B,), and whether each is accepted, bool (B,).
    """
    two, order = probabilities.topk(2, dim=1)  # (B, 2)
    first, second = order.unbind(dim=1)  # (B,)
    sure = two[:, 0] > thresholds[first]
    rescued = ~sure & rare[second]
    return torch.where(rescued, second, first), sure | rescued
