"""Losses against slow loops written apart from them, a second library, and closed forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn.losses import client_cross_entropy, info_nce, nt_xent
from fedbench.bench.system.seeding import generator

Contrast = Callable[[Tensor, Tensor, float], Tensor]


def draw(*shape: int, purpose: str = "z") -> Tensor:
    return torch.randn(*shape, generator=generator(0, purpose))


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
    z1, z2 = draw(7, 5), draw(7, 5, purpose="z2")
    assert fast(z1, z2, temperature).item() == pytest.approx(slow(z1, z2, temperature), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_equals_lightlys(temperature: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that package's own, at import
        loss = pytest.importorskip("lightly.loss.ntx_ent_loss")
    z1, z2 = draw(16, 8), draw(16, 8, purpose="z2")
    theirs = loss.NTXentLoss(temperature=temperature)(z1, z2)
    torch.testing.assert_close(nt_xent(z1, z2, temperature), theirs)


@pytest.mark.parametrize("contrast", [nt_xent, info_nce])
def test_lengths_do_not_matter(contrast: Contrast) -> None:
    z1, z2 = draw(6, 4), draw(6, 4, purpose="z2")
    scaled = contrast(z1 * torch.arange(1.0, 7.0)[:, None], z2 * 0.01, 0.2)
    torch.testing.assert_close(scaled, contrast(z1, z2, 0.2))


@pytest.mark.parametrize("contrast", [nt_xent, info_nce])
def test_views_play_the_same_part(contrast: Contrast) -> None:
    z1, z2 = draw(6, 4), draw(6, 4, purpose="z2")
    torch.testing.assert_close(contrast(z1, z2, 0.2), contrast(z2, z1, 0.2))


def test_coinciding_views_leave_a_blind_guess() -> None:
    # All similarities are equal, so the partner is one of 2B - 1 views (NT-Xent), or of B.
    z = torch.ones(5, 3)
    assert nt_xent(z, z, 0.1).item() == pytest.approx(math.log(9))
    assert info_nce(z, z, 0.1).item() == pytest.approx(math.log(5))


def test_orthogonal_pairs_in_closed_form() -> None:
    # Partners coincide and all else is orthogonal: logits 1/T once and 0 else.
    z, t = torch.eye(4), 0.5
    e = math.exp(1 / t)
    assert nt_xent(z, z, t).item() == pytest.approx(-math.log(e / (e + 6)), rel=1e-5)
    assert info_nce(z, z, t).item() == pytest.approx(-math.log(e / (e + 3)), rel=1e-5)


@pytest.mark.parametrize("contrast", [nt_xent, info_nce])
def test_a_small_temperature_does_not_overflow(contrast: Contrast) -> None:
    z1, z2 = draw(6, 4).requires_grad_(), draw(6, 4, purpose="z2")
    loss = contrast(z1, z2, 1e-3)
    loss.backward()
    assert bool(loss.isfinite())
    assert z1.grad is not None
    assert bool(z1.grad.isfinite().all())


def test_codes_that_know_nothing_cost_ln_k() -> None:
    # 100 random rows and codes in 128 dimensions: cosines ~ N(0, 1/128), so the expected loss is
    # ln 100 + ln E exp(cos) - E cos = 4.605 + 1/256.
    codes, rows = draw(2000, 128, purpose="codes"), draw(100, 128, purpose="rows")
    loss = client_cross_entropy(codes, rows, 3, 1.0).item()
    assert loss == pytest.approx(math.log(100) + 1 / 256, abs=0.02)


def test_codes_on_their_row_cost_the_most_that_temperature_1_can_tell() -> None:
    # Own cosine 1, the 99 others ~ N(0, 1/128): -1 + ln(e + 99 exp(1/256)) = 3.626.
    rows = draw(100, 128, purpose="rows")
    mean = sum(client_cross_entropy(rows[k : k + 1], rows, k, 1.0).item() for k in range(100)) / 100
    assert mean == pytest.approx(-1 + math.log(math.e + 99 * math.exp(1 / 256)), abs=5e-3)
    assert mean == pytest.approx(3.62, abs=0.01)


def test_client_cross_entropy_equals_a_loop_and_ignores_lengths() -> None:
    codes, rows = draw(4, 3, purpose="codes"), draw(5, 3, purpose="rows")
    total = 0.0
    for code in codes:
        weights = [math.exp(cosine(code, row) / 0.3) for row in rows]
        total -= math.log(weights[2] / sum(weights))
    loss = client_cross_entropy(codes, rows, 2, 0.3)
    assert loss.item() == pytest.approx(total / 4, rel=1e-5)
    torch.testing.assert_close(client_cross_entropy(7 * codes, 0.1 * rows, 2, 0.3), loss)
