"""Encoders and heads: sizes from the paper's tables, norms, and refused shapes."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.errors import ConfigError, UnknownNameError
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.nn.heads import mlp


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def resnet18_parameters() -> int:
    """Stem, 4 stages of 2 blocks of 2 convolutions, 3 shortcuts; norms have 2 per channel."""
    total = 3 * 64 * 9 + 2 * 64
    before = 64
    for out in (64, 128, 256, 512):
        total += before * out * 9 + 3 * out * out * 9 + 4 * 2 * out
        total += before * out + 2 * out if out != before else 0
        before = out
    return total


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet18_has_the_papers_size(norm: Literal["batch", "group"]) -> None:
    backbone = make_backbone(ModelConfig(backbone="resnet18", norm=norm), 3)
    encoder = backbone.make()
    assert backbone.dim == 512
    assert count(encoder) == resnet18_parameters() == 11_168_832
    norms = 64 + 4 * 64 + 4 * 128 + 4 * 256 + 4 * 512 + 128 + 256 + 512  # channels
    floats = sum(b.numel() for b in encoder.buffers() if b.is_floating_point())
    assert floats == (2 * norms if norm == "batch" else 0)
    assert 2 * norms == 9_600


@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
@pytest.mark.parametrize("side", [8, 28, 32])
def test_features_are_rows_of_non_negative_numbers(
    norm: Literal["batch", "batch-local", "group"], side: int
) -> None:
    backbone = make_backbone(ModelConfig(backbone="resnet8", width=4, norm=norm), 1)
    features = backbone.make()(torch.randn(3, 1, side, side))
    assert features.shape == (3, backbone.dim) == (3, 16)
    assert bool((features >= 0).all())


def test_a_group_norm_does_not_mix_images() -> None:
    encoder = make_backbone(ModelConfig(width=4), 1).make()
    images = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(encoder(images)[2:3], encoder(images[2:3]))


def test_bad_models_are_refused_with_a_remedy() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet18'"):
        make_backbone(ModelConfig(backbone="resnet-18"), 3)
    with pytest.raises(ConfigError, match=r"norm_groups.*3 groups for 16 channels"):
        make_backbone(ModelConfig(norm_groups=3), 3)
    backbone = make_backbone(ModelConfig(), 3)
    with pytest.raises(ConfigError, match="65 units cannot be divided into 2 groups"):
        backbone.head_norm(65)


def test_heads_have_the_papers_sizes() -> None:
    backbone = make_backbone(ModelConfig(backbone="resnet18", norm="batch"), 3)
    out_norm = backbone.head_norm(512, affine=False)
    orchestra = mlp(512, 512, 512, norm=backbone.head_norm, out_norm=out_norm)
    assert count(orchestra) == 512 * 512 + 2 * 512 + 512 * 512 + 512 == 525_824
    no_bias = mlp(512, 512, 512, norm=backbone.head_norm, out_norm=out_norm, out_bias=False)
    assert count(no_bias) == 525_312
    byol = mlp(512, 1024, 512, norm=backbone.head_norm, out_bias=False)
    assert count(byol) == 1_050_624
    assert count(mlp(512, 2048, 128)) == 1_312_896


def test_an_mlp_without_norm_is_two_layers() -> None:
    head = mlp(3, 4, 2)
    x = torch.randn(5, 3)
    first, last = head[0], head[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    hidden = (x @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(head(x), hidden @ last.weight.T + last.bias)
