"""RandAugment and cutout on whole batches, with the random choices of each image as arguments."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from fedbench.bench.system.compute import to_device

RAND_AUGMENT_OPERATIONS: Final = (
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "identity",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
"""Operations of `rand_augment`, by number."""

MAX_MAGNITUDE: Final = 30
_NUM_SIGNED: Final = 9  # the first ones have a direction
_MOST_SHEAR = 0.3
_MOST_SHIFT = 150 / 331  # of a side
_MOST_DEGREES = 30.0
_MOST_CHANGE = 0.9  # of a factor 1
_GREY = 0.5


def rand_augment(images: Tensor, operations: Tensor, backwards: Tensor, magnitude: int) -> Tensor:
    """Apply the operations chosen for each image, one after the other; returns a new uint8 tensor.

    Images with the same operation go through torchvision together, so a batch of any size takes at
    most 23 calls per step, and pixels are torchvision's: nearest neighbour, zeros from outside.

    Images are uint8 (B, C, H, W); `operations` (B, n) are numbers in `RAND_AUGMENT_OPERATIONS`,
    applied left to right; `backwards` (B, n) is True for a negative strength, and ignored from
    identity on; the magnitude 0..30 is that of every operation.

    Source: Cubuk et al. 2020, https://arxiv.org/abs/1909.13719; the operations and their strengths
    are those of torchvision's RandAugment.
    """
    images = images.clone()
    keys = 2 * operations + (backwards & (operations < _NUM_SIGNED))  # (B, n)
    for step in keys.unbind(dim=1):
        for key in step.unique().tolist():
            # Computed where the parameters are: on the CPU, a GPU does not have to wait.
            rows = to_device((step == key).nonzero().flatten(), images.device)
            name, sign = RAND_AUGMENT_OPERATIONS[key // 2], -1 if key % 2 else 1
            changed = _operate(name, images.index_select(0, rows), magnitude, sign)
            images.index_copy_(0, rows, changed)
    return images


def cutout(images: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Grey out one square of `side` pixels per image (B, C, H, W) in [0, 1], clipped at the border.

    It begins side // 2 rows above `row` (B,) and side // 2 columns left of `column` (B,). Grey is 0
    after `normalise`.

    Source: DeVries & Taylor 2017, https://arxiv.org/abs/1708.04552.
    """

    def covered(length: int, centre: Tensor) -> Tensor:
        first = to_device(centre - side // 2, images.device)[:, None]
        position = torch.arange(length, device=images.device)
        return (position >= first) & (position < first + side)  # (B, length)

    rows, columns = covered(images.shape[2], row), covered(images.shape[3], column)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], _GREY)


def _operate(name: str, images: Tensor, magnitude: int, sign: int) -> Tensor:
    from torchvision.transforms.v2 import functional as tv  # imported here: it takes half a second

    def strength(greatest: float) -> float:  # in float32, as in torchvision
        return sign * float(torch.linspace(0.0, greatest, MAX_MAGNITUDE + 1)[magnitude])

    height, width = images.shape[2:]
    unmoved: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    slope = math.degrees(math.atan(strength(_MOST_SHEAR)))
    factor = 1.0 + strength(_MOST_CHANGE)
    match name:
        case "identity":
            result = images
        case "shear-x":
            result = tv.affine(images, **unmoved | {"shear": [slope, 0.0]}, center=[0, 0])
        case "shear-y":
            result = tv.affine(images, **unmoved | {"shear": [0.0, slope]}, center=[0, 0])
        case "translate-x":
            shift = int(strength(_MOST_SHIFT * width))
            result = tv.affine(images, **unmoved | {"translate": [shift, 0]})
        case "translate-y":
            shift = int(strength(_MOST_SHIFT * height))
            result = tv.affine(images, **unmoved | {"translate": [0, shift]})
        case "rotate":
            result = tv.rotate(images, strength(_MOST_DEGREES))
        case "brightness":
            result = tv.adjust_brightness(images, factor)
        case "color":
            result = tv.adjust_saturation(images, factor)
        case "contrast":
            result = tv.adjust_contrast(images, factor)
        case "sharpness":
            result = tv.adjust_sharpness(images, factor)
        case "posterize":
            result = tv.posterize(images, 8 - round(strength(4.0)))
        case "solarize":
            result = tv.solarize(images, 255 * (1.0 - strength(1.0)))
        case "autocontrast":
            result = tv.autocontrast(images)
        case _:
            result = tv.equalize(images)
    changed: Tensor = result
    return changed
