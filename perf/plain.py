"""The work of W1-W3 in plain PyTorch, without any code of fedbench.

The bare loop and the rivals' clients use it, so that all do the same arithmetic as fedbench's
`simclr` with `resnet8` or `resnet18`; a test compares the two from the same weights.
"""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 16
TEMPERATURE = 0.1
BLOCKS = {"resnet8": (1, 1, 1), "resnet18": (2, 2, 2, 2)}


@dataclass(frozen=True)
class Style:
    """Style of the computation."""

    backbone: str = "resnet8"  # of width 16 with group norm, or `resnet18` of 64 with batch norm
    bf16: bool = False  # autocast to bfloat16 in the forward pass
    concat: bool = False  # both views in one pass; a batch norm then sees both
    channels_last: bool = False  # memory format of images and weights

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options `--backbone NAME --bf16 --concat --channels-last`."""
        parser.add_argument("--backbone", choices=BLOCKS, default="resnet8")
        for name in ("bf16", "concat", "channels-last"):
            parser.add_argument(f"--{name}", action="store_true")

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Create from parsed options."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(
        self, channels: int, out: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), norm(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Encoder(nn.Module):
    """ResNet for 32x32 images: 3x3 stem, no max-pool, global average pooling."""

    def __init__(self, stages: tuple[int, ...], width: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.stem_norm = norm(width)
        blocks, channels = [], width
        for stage, count in enumerate(stages):
            for index in range(count):
                out = width << stage
                blocks.append(Block(channels, out, 2 if stage and not index else 1, norm))
                channels = out
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D)."""
        x = F.relu(self.stem_norm(self.stem(x)))
        return self.blocks(x).mean(dim=(2, 3))  # type: ignore[no-any-return]


def make_net(style: Style) -> nn.ModuleDict:
    """Encoder and projector."""
    norm: Callable[..., nn.Module]
    head_norm: Callable[..., nn.Module]
    if style.backbone == "resnet8":
        width, dim = 16, 128
        norm = head_norm = partial(nn.GroupNorm, 2)
    else:
        width, dim, norm, head_norm = 64, 512, nn.BatchNorm2d, nn.BatchNorm1d
    blocks = BLOCKS[style.backbone]
    encoder = Encoder(blocks, width, norm)
    head = [
        nn.Linear(width << len(blocks) - 1, dim, bias=False),
        head_norm(dim),
        nn.ReLU(),
        nn.Linear(dim, dim),
        head_norm(dim, affine=False),
    ]
    net = nn.ModuleDict({"encoder": encoder, "projector": nn.Sequential(*head)})
    if style.channels_last:
        net.to(memory_format=torch.channels_last)
    return net


def nt_xent(z1: Tensor, z2: Tensor) -> Tensor:
    """Return SimCLR's loss of the projections of two views, each (B, d)."""
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    logits = z @ z.T / TEMPERATURE
    logits.fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z1)))


def simclr_loss(net: nn.ModuleDict, first: Tensor, second: Tensor, style: Style) -> Tensor:
    """Return the loss of one batch of two views, each (B, 3, H, W)."""
    cast = torch.autocast(first.device.type, torch.bfloat16) if style.bf16 else nullcontext()
    with cast:
        if style.concat:
            both = torch.cat([first, second])
            z1, z2 = net["projector"](net["encoder"](both)).chunk(2)
        else:
            z1, z2 = (net["projector"](net["encoder"](view)) for view in (first, second))
        return nt_xent(z1.float(), z2.float())


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    """Return the client optimizer of the works."""
    return torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)


def step(
    net: nn.ModuleDict,
    optimizer: torch.optim.Optimizer,
    first: Tensor,
    second: Tensor,
    style: Style,
) -> float:
    """Make one step of training and return the loss before it."""
    if style.channels_last:
        first, second = (view.to(memory_format=torch.channels_last) for view in (first, second))
    optimizer.zero_grad()
    loss = simclr_loss(net, first, second, style)
    loss.backward()
    optimizer.step()
    return float(loss.detach())
