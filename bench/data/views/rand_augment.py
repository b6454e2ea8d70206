"""RandAugment and cutout on whole batches, with the random choices of each image as arguments."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from fedbench.bench.system.compute import to_device

MAX_MAGNITUDE: Final = 30
_NUM_SIGNED: Final = 9  # the first ones have a direction
_MOST_SHIFT = 150 / 331  # of a side: AutoAugment's 150 pixels of its images of 331
_GREY = 0.5

Strength = Callable[[float], float]
"""Signed strength of an operation, from the greatest that it has."""


def _sheared(tv: Any, images: Tensor, strength: Strength, axis: int) -> Tensor:
    # torchvision's `affine` takes an angle; AutoAugment shears by its tangent, about the corner.
    slope = math.degrees(math.atan(strength(0.3)))
    sheared: Tensor = tv.affine(
        images, 0.0, [0, 0], 1.0, [slope, 0.0] if axis == 0 else [0.0, slope], center=[0, 0]
    )
    return sheared


def _shifted(tv: Any, images: Tensor, strength: Strength, axis: int) -> Tensor:
    shift = int(strength(_MOST_SHIFT * images.shape[3 - axis]))
    shifted: Tensor = tv.affine(
        images, 0.0, [shift, 0] if axis == 0 else [0, shift], 1.0, [0.0, 0.0]
    )
    return shifted


_OPERATIONS: Mapping[str, Callable[[Any, Tensor, Strength], Tensor]] = {
    "shear-x": partial(_sheared, axis=0),
    "shear-y": partial(_sheared, axis=1),
    "translate-x": partial(_shifted, axis=0),
    "translate-y": partial(_shifted, axis=1),
    "rotate": lambda tv, images, strength: tv.rotate(images, strength(30.0)),
    "brightness": lambda tv, images, strength: tv.adjust_brightness(images, 1 + strength(0.9)),
    "color": lambda tv, images, strength: tv.adjust_saturation(images, 1 + strength(0.9)),
    "contrast": lambda tv, images, strength: tv.adjust_contrast(images, 1 + strength(0.9)),
    "sharpness": lambda tv, images, strength: tv.adjust_sharpness(images, 1 + strength(0.9)),
    "identity": lambda tv, images, strength: images,
    "posterize": lambda tv, images, strength: tv.posterize(images, 8 - round(strength(4.0))),
    "solarize": lambda tv, images, strength: tv.solarize(images, 255 * (1 - strength(1.0))),
    "autocontrast": lambda tv, images, strength: tv.autocontrast(images),
    "equalize": lambda tv, images, strength: tv.equalize(images),
}
"""Each takes torchvision's functions, uint8 images (n, C, H, W) and their strength."""
RAND_AUGMENT_OPERATIONS: Final = tuple(_OPERATIONS)
"""Operations of `rand_augment`, by number."""


def _strength(magnitude: int, sign: int, greatest: float) -> float:  # in float32, as in torchvision
    return sign * float(torch.linspace(0.0, greatest, MAX_MAGNITUDE + 1)[magnitude])


def rand_augment(images: Tensor, operations: Tensor, backwards: Tensor, magnitude: int) -> Tensor:
    """Apply the operations chosen for each image, one after the other; returns a new uint8 tensor.

    Images with the same operation go through torchvision together, and pixels are torchvision's:
    nearest neighbour, zeros from outside. Images are uint8 (B, C, H, W); `operations` (B, n) are
    numbers in `RAND_AUGMENT_OPERATIONS`, applied left to right; `backwards` (B, n) is True for a
    negative strength, and ignored from identity on; all have the magnitude 0..30.

    Source: Cubuk et al. 2020, https://arxiv.org/abs/1909.13719; the operations and their strengths
    are those of torchvision's RandAugment.
    """
    from torchvision.transforms.v2 import functional as tv  # imported here: it takes half a second

    images = images.clone()
    keys = 2 * operations + (backwards & (operations < _NUM_SIGNED))  # (B, n)
    for step in keys.unbind(dim=1):
        for key in step.unique().tolist():
            # Computed where the parameters are: on the CPU, a GPU does not have to wait.
            rows = to_device((step == key).nonzero().flatten(), images.device)
            operation = _OPERATIONS[RAND_AUGMENT_OPERATIONS[key // 2]]
            strength = partial(_strength, magnitude, -1 if key % 2 else 1)
            changed = operation(tv, images.index_select(0, rows), strength)
            images.index_copy_(0, rows, changed)
    return images


def cutout(images: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Grey out one square of `side` pixels per image (B, C, H, W) in [0, 1], clipped at the border.

    It begins side // 2 above `row` (B,) and left of `column` (B,). Grey is 0 after `normalise`.

    Source: DeVries & Taylor 2017, https://arxiv.org/abs/1708.04552.
    """

    def covered(length: int, centre: Tensor) -> Tensor:
        first = to_device(centre - side // 2, images.device)[:, None]
        position = torch.arange(length, device=images.device)
        return (position >= first) & (position < first + side)  # (B, length)

    rows, columns = covered(images.shape[2], row), covered(images.shape[3], column)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], _GREY)
