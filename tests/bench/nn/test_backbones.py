"""Encoders and heads: sizes from the papers' tables, norms, and refused shapes."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.nn.backbones import BACKBONES, make_backbone, maxima
from fedbench.bench.system.errors import ConfigError, DataError, UnknownNameError
from fedbench.bench.system.seeding import scope


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def resnet18_parameters() -> int:
    """Count stem, 4 stages of 2 blocks of 2 convolutions, 3 shortcuts; norms have 2 per channel."""
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


@pytest.mark.parametrize("name", sorted(BACKBONES))
@pytest.mark.parametrize(
    "shape", [(1, 4, 4), (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 33, 20), (3, 64, 64), (3, 96, 96)]
)
@pytest.mark.parametrize("stem_stride", [1, 2])
def test_every_backbone_takes_images_of_any_size(
    name: str, shape: tuple[int, int, int], stem_stride: int
) -> None:
    config = ModelConfig(backbone=name, width=12 if name == "vit-5" else 4, stem_stride=stem_stride)
    if name == "vit-5" and shape[1:] == (33, 20):
        with pytest.raises(ConfigError, match="33x20"):
            make_backbone(config, shape[0], shape[1:])
        return
    backbone = make_backbone(config, shape[0], shape[1:])
    images = torch.randn(2, *shape)
    features = backbone.make()(images)
    assert features.shape == (2, backbone.dim)
    assert bool(features.isfinite().all())


def cct_parameters(side: int) -> int:
    """Count two convolutions without bias, positions, four layers, a norm and a pool of one row."""
    total = 3 * 64 * 9 + 64 * 128 * 9 + (side // 4) ** 2 * 128
    layer = 128 * 3 * 128 + (128 * 128 + 128) + 2 * (128 * 128 + 128) + 2 * 2 * 128
    return total + 4 * layer + 2 * 128 + 128


def test_cct_has_the_papers_size() -> None:
    """The paper gives CCT-4/3x2 0.48 M parameters for 32x32 images and ten classes."""
    config = ModelConfig(backbone="cct-4-3x2")
    for side in (32, 64):
        backbone = make_backbone(config, 3, (side, side))
        assert backbone.dim == 128
        assert count(backbone.make()) == cct_parameters(side)
    assert cct_parameters(32) + 128 * 10 + 10 == 482_122


def test_cct_by_hand() -> None:
    """The expected features of one image are computed token by token and head by head."""
    with scope(0, "cct"):
        encoder = make_backbone(ModelConfig(backbone="cct-4-3x2", width=6), 1, (8, 12)).make()
        image = torch.randn(1, 1, 8, 12)
    state = {name: value.detach().double() for name, value in encoder.state_dict().items()}
    x = image.double()
    for index in (0, 3):
        x = F.relu(F.conv2d(x, state[f"tokens.{index}.weight"], padding=1))
        x = F.max_pool2d(x, 3, 2, 1)
    tokens = [x[0, :, i, j] for i in range(2) for j in range(3)]
    tokens = [token + state["positions"][t] for t, token in enumerate(tokens)]

    def norm(v: Tensor, name: str) -> Tensor:
        centred = v - v.mean()
        scaled = centred / (centred.square().mean() + 1e-5).sqrt()
        scaled = scaled * state[f"{name}.weight"] + state[f"{name}.bias"]
        return torch.as_tensor(scaled)

    def linear(v: Tensor, name: str) -> Tensor:
        bias = state.get(f"{name}.bias", torch.zeros(1).double())
        return torch.as_tensor(state[f"{name}.weight"] @ v + bias)

    for n in range(4):
        name = f"layers.{n}"
        mixed = [
            linear(norm(t, f"{name}.attention_norm"), f"{name}.queries_keys_values") for t in tokens
        ]
        after = []
        for t, output in zip(tokens, mixed, strict=True):
            heads = []
            for h in range(2):
                at = slice(3 * h, 3 * h + 3)
                scores = torch.stack([output[:6][at] @ other[6:12][at] / 3**0.5 for other in mixed])
                values = torch.stack([other[12:][at] for other in mixed])
                heads.append(scores.softmax(0) @ values)
            residual = norm(t + linear(torch.cat(heads), f"{name}.mixed"), f"{name}.norm")
            hidden = F.gelu(linear(residual, f"{name}.hidden"))
            after.append(residual + linear(hidden, f"{name}.out"))
        tokens = after
    final = torch.stack([norm(t, "norm") for t in tokens])
    expected = (final @ state["pool.weight"][0]).softmax(0) @ final
    torch.testing.assert_close(encoder(image)[0].double(), expected, atol=1e-5, rtol=1e-4)


def test_cct_is_made_for_one_size() -> None:
    encoder = make_backbone(ModelConfig(backbone="cct-4-3x2", width=4), 3, (64, 64)).make()
    with pytest.raises(DataError, match="64x64"):
        encoder(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ConfigError, match=r"model.width"):
        make_backbone(ModelConfig(backbone="cct-4-3x2", width=5), 3)


def test_bad_models_are_refused_with_a_remedy() -> None:
    with pytest.raises(UnknownNameError, match="'resnet18'"):
        make_backbone(ModelConfig(backbone="resnet-18"), 3)
    with pytest.raises(ConfigError, match="norm_groups"):
        make_backbone(ModelConfig(norm_groups=3), 3)
    backbone = make_backbone(ModelConfig(), 3)
    with pytest.raises(ConfigError, match="65 units"):
        backbone.head_norm(65)


@pytest.mark.parametrize("side", [8, 9])
def test_maxima_are_those_of_torchs_max_pooling(side: int) -> None:
    """With many equal values, as after a ReLU; whole gradients, so that sums are exact."""
    with scope(side, "maxima"):
        x = torch.randint(-2, 3, (2, 3, side, side)).float().relu()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    pooled, expected = maxima(ours), F.max_pool2d(theirs, 3, stride=2, padding=1)
    assert torch.equal(pooled, expected)
    gradient = torch.arange(pooled.numel()).view(pooled.shape).float()
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
