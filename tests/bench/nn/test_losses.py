"""Losses against slow independent loops, a second library, and closed forms."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn.losses import (
    accept,
    classification,
    client_cross_entropy,
    clip_length,
    clipped_spectral_contrast,
    consistency,
    info_nce,
    nt_xent,
    spectral_contrast,
    spread,
)
from tests.specs import gaussian

Contrast = Callable[[Tensor, Tensor, float], Tensor]


def cosine(a: Tensor, b: Tensor) -> float:
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b))


def slow_nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> float:
    views = [*z1, *z2]
    count, total = len(views), 0.0
    for i in range(count):
        partner = (i + len(z1)) % count
        others = [j for j in range(count) if j != i]
        weights = [math.exp(cosine(views[i], views[j]) / temperature) for j in others]
        total -= math.log(math.exp(cosine(views[i], views[partner]) / temperature) / sum(weights))
    return total / count


def slow_info_nce(z1: Tensor, z2: Tensor, temperature: float) -> float:
    total = 0.0
    for anchors, others in ((z1, z2), (z2, z1)):
        for i, anchor in enumerate(anchors):
            weights = [math.exp(cosine(anchor, other) / temperature) for other in others]
            total -= math.log(weights[i] / sum(weights))
    return total / (2 * len(z1))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("fast", "slow"), [(nt_xent, slow_nt_xent), (info_nce, slow_info_nce)])
def test_contrast_equals_a_double_loop(
    fast: Contrast, slow: Callable[[Tensor, Tensor, float], float], temperature: float
) -> None:
    z1, z2 = gaussian(7, 5), gaussian(7, 5, name="z2")
    assert fast(z1, z2, temperature).item() == pytest.approx(slow(z1, z2, temperature), rel=1e-5)


@pytest.mark.parametrize("contrast", [nt_xent, info_nce])
def test_a_small_temperature_does_not_overflow(contrast: Contrast) -> None:
    z1, z2 = gaussian(6, 4).requires_grad_(), gaussian(6, 4, name="z2")
    loss = contrast(z1, z2, 1e-3)
    loss.backward()
    assert bool(loss.isfinite())
    assert z1.grad is not None
    assert bool(z1.grad.isfinite().all())


def slow_spectral(z1: Tensor, z2: Tensor) -> float:
    a, b = z1.tolist(), z2.tolist()
    attract, repel = 0.0, 0.0
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product = sum(s * t for s, t in zip(x, y, strict=True))
            if i == j:
                attract -= 2 * product / len(a)
            else:
                repel += product**2 / (len(a) * (len(a) - 1))
    return attract + repel


def slow_clip(z: Tensor, longest: float) -> Tensor:
    rows = []
    for row in z:
        length = math.sqrt(sum(float(x) ** 2 for x in row))
        rows.append(row * longest / length if length > longest else row)
    return torch.stack(rows)


def test_spectral_contrast_equals_a_double_loop() -> None:
    z1, z2 = gaussian(6, 4), gaussian(6, 4, name="z2")
    assert spectral_contrast(z1, z2).item() == pytest.approx(slow_spectral(z1, z2), rel=1e-5)


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_clipped_equals_the_slow_way(mu: float) -> None:
    z1, z2 = gaussian(6, 4), gaussian(6, 4, name="z2")
    clipped = slow_clip(z1, math.sqrt(mu)), slow_clip(z2, math.sqrt(mu))
    expected = slow_spectral(*clipped) / mu
    assert clipped_spectral_contrast(z1, z2, mu).item() == pytest.approx(expected, rel=1e-5)
    # Long vectors that all coincide: products are mu, so (-2 mu + mu^2) / mu.
    far = torch.tensor([[60.0, 80.0]]).expand(5, 2)
    assert clipped_spectral_contrast(far, far, mu).item() == pytest.approx(-2 + mu)


def test_clipping_leaves_short_vectors_and_their_gradient_untouched() -> None:
    z = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0]], requires_grad=True)
    clipped = clip_length(z, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([[0.0, 0.0], [0.3, 0.4], [0.6, 0.8]]))
    clipped.sum().backward()
    assert z.grad is not None
    torch.testing.assert_close(z.grad[:2], torch.ones(2, 2))
    # The long one may only turn: its gradient is orthogonal to it.
    assert float(z.grad[2] @ z[2].detach()) == pytest.approx(0, abs=1e-6)


def test_spread_tells_collapse_from_uniform_directions() -> None:
    one_way = torch.arange(1.0, 6.0)[:, None] * torch.tensor([[0.6, 0.8]])
    assert spread(one_way).item() == pytest.approx(0, abs=1e-6)
    # +e_i and -e_i for each of d axes: per dimension the variance is 2 / 2d, so spread is 1.
    axes = torch.cat((torch.eye(7), -torch.eye(7)))
    assert spread(axes).item() == pytest.approx(1, rel=1e-6)
    assert spread(gaussian(4000, 64)).item() == pytest.approx(1, abs=0.01)
    assert spread(gaussian(1, 8)).item() == 0
    assert not spread(gaussian(3, 3).requires_grad_()).requires_grad


def test_client_cross_entropy_equals_a_loop_and_ignores_lengths() -> None:
    codes, rows = gaussian(4, 3, name="codes"), gaussian(5, 3, name="rows")
    total = 0.0
    for code in codes:
        weights = [math.exp(cosine(code, row) / 0.3) for row in rows]
        total -= math.log(weights[2] / sum(weights))
    loss = client_cross_entropy(codes, rows, 2, 0.3)
    assert loss.item() == pytest.approx(total / 4, rel=1e-5)
    torch.testing.assert_close(client_cross_entropy(7 * codes, 0.1 * rows, 2, 0.3), loss)


def test_classification_is_a_mean_over_labelled_examples_and_a_sum_over_views() -> None:
    one, two = gaussian(4, 5, name="a"), gaussian(4, 5, name="b")
    labels = torch.tensor([2, -1, 0, -1])
    expected = 0.0
    for logits in (one, two):
        for i, c in ((0, 2), (2, 0)):
            weights = [math.exp(v) for v in logits[i].tolist()]
            expected -= math.log(weights[c] / sum(weights)) / 2
    assert classification((one, two), labels).item() == pytest.approx(expected, rel=1e-5)
    assert classification((torch.zeros(4, 5),), labels).item() == pytest.approx(math.log(5))
    none = one.requires_grad_()
    classification((none,), torch.full((4,), -1)).backward()
    assert none.grad is not None
    assert not none.grad.any()


def test_consistency_is_the_divergence_from_the_weak_view() -> None:
    weak, strong = (
        gaussian(3, 4, name="a").requires_grad_(),
        gaussian(3, 4, name="b").requires_grad_(),
    )
    expected = 0.0
    for a, b in zip(weak.softmax(1).tolist(), strong.softmax(1).tolist(), strict=True):
        expected += sum(p * math.log(p / q) for p, q in zip(a, b, strict=True)) / 3
    loss = consistency(weak, strong)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert consistency(weak, weak).item() == pytest.approx(0, abs=1e-6)
    loss.backward()
    assert weak.grad is None
    assert strong.grad is not None


def test_acceptance_by_hand() -> None:
    thresholds = torch.tensor([0.6, 0.9, 0.9, 0.9])
    rare = torch.tensor([False, False, False, True])
    probabilities = torch.tensor(
        [
            [0.61, 0.20, 0.10, 0.09],  # sure of class 0
            [0.20, 0.61, 0.10, 0.09],  # class 1 needs 0.9; its second guess, 0, is not rare
            [0.05, 0.61, 0.10, 0.24],  # second guess 3 is rare
            [0.60, 0.05, 0.05, 0.30],  # 0.6 is not above 0.6; second guess 3 is rare
            [0.01, 0.05, 0.04, 0.90],  # 0.9 is not above 0.9; second guess 1 is not rare
        ]
    )
    labels, accepted = accept(probabilities, thresholds, rare)
    assert accepted.tolist() == [True, False, True, True, False]
    assert labels[accepted].tolist() == [0, 3, 3]
