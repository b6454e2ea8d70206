"""Encoders by name: ResNets for small images, a compact transformer, and the configured norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.errors import ConfigError, UnknownNameError
from fedbench.bench.nn.cct import CCT
from fedbench.bench.seeding import scope


@dataclass(frozen=True)
class ResNetShape:
    """Residual blocks per stage, and channels of the first stage; each later stage doubles them."""

    blocks: tuple[int, ...]
    width: int
    description: str


@dataclass(frozen=True)
class CCTShape:
    """Layers, heads, convolutions and width of a compact convolutional transformer."""

    layers: int
    heads: int
    convolutions: int
    width: int
    description: str


BACKBONES: Mapping[str, ResNetShape | CCTShape] = {
    "resnet18": ResNetShape((2, 2, 2, 2), 64, "ResNet-18 with a 3x3 stem and no max-pool, 512-d"),
    "resnet8": ResNetShape((1, 1, 1), 16, "one block in each of three stages, for CPUs, 64-d"),
    "cct-4-3x2": CCTShape(4, 2, 2, 128, "CCT-4/3x2, four layers on two convolutions, 128-d"),
}


_NARROW = 32
"""Channels of the first stage up to which channels_last pays on a CPU: there it is a fifth faster,
while ResNet-18 with 64 loses a tenth, in bringing its weights into that order at every pass."""


@dataclass(frozen=True)
class Backbone:
    """What `Method.build` gets: makes encoders, and norms that follow the same choice.

    Attributes:
        shape: the ResNet or transformer.
        width: channels of the first stage, or of a token.
        stem_stride: stride of the first convolution.
        in_channels: channels of the images.
        norm_name: `batch`, `batch-local` or `group`; a transformer has layer norm inside, and these
            in the heads on top of it.
        norm_groups: groups of a group norm.
        image_size: (H, W); a transformer is made for one.
        seed: of a run: encoders draw their weights from it alone, so that all methods start from
            the same one; None = from the global generator, as everything else in a net.
    """

    shape: ResNetShape | CCTShape
    width: int
    stem_stride: int
    in_channels: int
    norm_name: str
    norm_groups: int
    image_size: tuple[int, int]
    seed: int | None = None

    @property
    def dim(self) -> int:
        """Length D of a feature vector."""
        if isinstance(self.shape, CCTShape):
            return self.width
        return self.width << (len(self.shape.blocks) - 1)

    @property
    def norm_is_batch(self) -> bool:
        """Whether the norm computes statistics over the batch, and so mixes its examples."""
        return self.norm_name != "group"

    def make(self) -> nn.Module:
        """A new encoder, (B, C, H, W) -> (B, D)."""
        if self.seed is None:
            return self._make()
        with scope(self.seed, "encoder"):
            return self._make()

    def _make(self) -> nn.Module:
        if isinstance(self.shape, CCTShape):
            return CCT(
                self.in_channels,
                self.image_size,
                width=self.width,
                num_layers=self.shape.layers,
                num_heads=self.shape.heads,
                num_convolutions=self.shape.convolutions,
                stem_stride=self.stem_stride,
            )
        return ResNet(self, self.shape.blocks)

    def norm(self, channels: int) -> nn.Module:
        """A norm layer for (B, channels, …)."""
        if self.norm_is_batch:
            return nn.BatchNorm2d(channels)
        return nn.GroupNorm(self.norm_groups, channels)

    def head_norm(self, features: int, *, affine: bool = True) -> nn.Module:
        """A norm layer for (B, features) inside a head.

        Raises:
            ConfigError: if the features cannot be divided into `norm_groups` groups.
        """
        if self.norm_is_batch:
            return nn.BatchNorm1d(features, affine=affine)
        if features % self.norm_groups:
            raise ConfigError(
                f"a head of {features} units cannot be divided into {self.norm_groups} groups;"
                " change its width or model.norm_groups"
            )
        return nn.GroupNorm(self.norm_groups, features, affine=affine)


def make_backbone(
    config: ModelConfig, in_channels: int, image_size: tuple[int, int] = (32, 32)
) -> Backbone:
    """The backbone of a configuration.

    Args:
        config: its name, width and norm.
        in_channels: channels of the images, 1 or 3.
        image_size: (H, W), each at least 4.

    Raises:
        UnknownNameError: if there is no backbone of this name.
        ConfigError: if the channels cannot be divided into `norm_groups` groups, or a transformer's
            width among its heads.
    """
    if config.backbone not in BACKBONES:
        raise UnknownNameError("backbone", config.backbone, BACKBONES)
    shape = BACKBONES[config.backbone]
    width = config.width or shape.width
    if isinstance(shape, CCTShape):
        if width % shape.heads:
            raise ConfigError(
                f"model.width: must divide among the {shape.heads} heads of {config.backbone}"
                f" (got {width})"
            )
    elif config.norm == "group" and width % config.norm_groups:
        raise ConfigError(
            f"model.norm_groups: must divide the width (got {config.norm_groups} groups for"
            f" {width} channels)"
        )
    return Backbone(
        shape,
        width,
        config.stem_stride,
        in_channels,
        config.norm,
        config.norm_groups,
        image_size,
    )


class ResNet(nn.Module):
    """Residual network for small images: 3x3 stem, basic blocks, global average pooling.

    Source: He et al. 2016, https://arxiv.org/abs/1512.03385, with the stem that Orchestra's
    released code and most CIFAR work use in place of 7x7 stride 2 and max-pool.
    """

    def __init__(self, backbone: Backbone, stages: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = _conv(backbone.in_channels, backbone.width, 3, backbone.stem_stride)
        self.stem_norm = backbone.norm(backbone.width)
        blocks: list[nn.Module] = []
        channels = backbone.width
        for stage, count in enumerate(stages):
            out = backbone.width * 2**stage
            for index in range(count):
                blocks.append(_Block(channels, out, 2 if stage and not index else 1, backbone))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        _initialise(self.modules())
        self._narrow = backbone.width <= _NARROW

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D), non-negative."""
        if self._narrow or x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        x = F.relu_(self.stem_norm(self.stem(x)))  # no norm needs its own output to go backwards
        return self.blocks(x).mean(dim=(2, 3))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int, backbone: Backbone) -> None:
        super().__init__()
        self.conv1 = _conv(channels, out, 3, stride)
        self.norm1 = backbone.norm(out)
        self.conv2 = _conv(out, out, 3, 1)
        self.norm2 = backbone.norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(_conv(channels, out, 1, stride), backbone.norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu_(y.add_(self.shortcut(x)))


def _conv(channels: int, out: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)


def _initialise(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
