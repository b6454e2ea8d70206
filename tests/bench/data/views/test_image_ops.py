"""Image operations against torchvision, image by image, with the same parameters."""

import itertools
from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torchvision.transforms.v2.functional as tvf
from torch import Tensor
from torchvision.transforms import InterpolationMode

from fedbench.bench.data.views import image_ops

SHAPES = [(3, 32, 32), (1, 28, 28), (3, 12, 9), (3, 4, 4)]
BATCH = 24
MODES = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}


def images_of(shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Random 8-bit values; image 0 is gray, 1 has ties between channels, 2 is black."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (BATCH, *shape), generator=generator).float() / 255
    images[0] = images[0, :1]
    images[1] = (images[1] * 2).round() * 127 / 255
    images[2] = 0.0
    return images


def uniform(low: float, high: float, seed: int = 1) -> Tensor:
    return low + (high - low) * torch.rand(BATCH, generator=torch.Generator().manual_seed(seed))


def one_by_one(operation: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    rows = zip(images, *(p.tolist() for p in parameters), strict=True)
    return torch.stack([operation(image, *values) for image, *values in rows])


def gray(image: Tensor) -> Tensor:
    return tvf.rgb_to_grayscale(image, num_output_channels=3) if len(image) == 3 else image


OPERATIONS: dict[str, tuple[Callable[..., Tensor], Tensor | None, float]] = {
    **{
        f"adjust_{name}": (getattr(tvf, f"adjust_{name}"), uniform(0.0, 2.0), 2e-6)
        for name in ("brightness", "contrast", "saturation")
    },
    "adjust_hue": (tvf.adjust_hue, torch.linspace(-0.5, 0.5, BATCH), 2e-5),  # the whole circle
    "grayscale": (gray, None, 1e-6),
    "gaussian_blur": (lambda x, s: tvf.gaussian_blur(x, [3, 3], [s, s]), uniform(0.1, 2.0), 1e-6),
}
"""Torchvision's operation, the parameter of each image, and the tolerance."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_equal_torchvision(name: str, shape: tuple[int, int, int]) -> None:
    reference, parameter, within = OPERATIONS[name]
    images, given = images_of(shape), [] if parameter is None else [parameter]
    result = getattr(image_ops, name)(images, *given)
    expected = one_by_one(reference, images, *given)
    torch.testing.assert_close(result, expected, atol=within, rtol=0)


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 16, 16)])
def test_jitter_equals_the_four_operations_in_each_images_order(
    shape: tuple[int, int, int],
) -> None:
    images = images_of(shape)
    order = torch.tensor([*itertools.permutations(range(4))])
    factors = [uniform(0.2, 1.8, seed) for seed in (2, 3, 4)] + [uniform(-0.5, 0.5, 5)]
    names = ["brightness", "contrast", "saturation", "hue"]
    expected = []
    for i, image in enumerate(images):
        for operation in order[i].tolist():
            adjust = getattr(tvf, f"adjust_{names[operation]}")
            image = adjust(image, factors[operation][i].item())
        expected.append(image)
    result = image_ops.color_jitter(images, order, *factors)
    torch.testing.assert_close(result, torch.stack(expected), atol=5e-5, rtol=0)


def test_solarize_equals_torchvision_at_every_eight_bit_value() -> None:
    images = (torch.arange(256) / 255).view(1, 1, 16, 16)
    expected = tvf.solarize(images, 128 / 255)
    assert torch.equal(image_ops.solarize(images), expected)
    levels = (image_ops.solarize(images).flatten()[126:130] * 255).round()
    assert levels.tolist() == [126, 127, 127, 126]  # in eight bits 128 becomes 127


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 48, 40)])  # the last is too large for a table
def test_resized_crop_equals_torchvision(
    mode: Literal["bicubic", "bilinear"], shape: tuple[int, int, int]
) -> None:
    images, (_, rows, columns) = images_of(shape), shape
    height, width = (uniform(1, n + 1, s).long().clamp(max=n) for n, s in ((rows, 1), (columns, 2)))
    top, left = (
        (uniform(rows * 0.0, 1, 3) * (rows - height + 1)).long(),
        (uniform(0, 1, 4) * (columns - width + 1)).long(),
    )
    top[3], left[3], height[3], width[3] = 0, 0, rows, columns

    def expected(image: Tensor, *box: int) -> Tensor:
        crop: Tensor = tvf.resized_crop(image, *box, [rows, columns], MODES[mode], antialias=True)
        return crop.clamp(0, 1)

    box = (top, left, height, width)
    result = image_ops.resized_crop(images, *box, mode)
    reference = one_by_one(expected, images, *box)
    torch.testing.assert_close(result, reference, atol=5e-6, rtol=0)
    chosen = torch.arange(BATCH) % 2 == 0
    eight_bit = (images * 255).round().to(torch.uint8)
    flipped = image_ops.resized_crop(eight_bit, *box, mode, chosen)
    torch.testing.assert_close(flipped[::2], reference[::2].flip(-1), atol=5e-6, rtol=0)
    torch.testing.assert_close(flipped[1::2], reference[1::2], atol=5e-6, rtol=0)


def test_flip_and_padded_crop_equal_torchvision() -> None:
    images = images_of((3, 12, 9))
    chosen = torch.rand(BATCH) < 0.5
    expected = one_by_one(lambda x, c: tvf.horizontal_flip(x) if c else x, images, chosen)
    assert torch.equal(image_ops.hflip(images, chosen), expected)
    top, left = torch.arange(BATCH) % 9, torch.arange(BATCH) // 3
    expected = one_by_one(lambda x, t, c: tvf.crop(tvf.pad(x, [4]), t, c, 12, 9), images, top, left)
    assert torch.equal(image_ops.pad_crop(images, top, left), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_quarter_turns_equal_rot90_and_the_general_rotation(dtype: torch.dtype) -> None:
    images = (images_of((3, 8, 8)) * 255).to(dtype)
    turns = torch.arange(BATCH) - 5
    result = image_ops.rotate90(images, turns)
    assert torch.equal(result, one_by_one(lambda x, k: torch.rot90(x, k, (-2, -1)), images, turns))
    general = image_ops.rotate(images, turns * 90.0)
    torch.testing.assert_close(general, result, atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_rotation_equals_torchvision(shape: tuple[int, int, int]) -> None:
    images, degrees = images_of(shape), uniform(-360, 360)
    expected = one_by_one(
        lambda x, d: tvf.rotate(x, d, InterpolationMode.BILINEAR), images, degrees
    )
    torch.testing.assert_close(image_ops.rotate(images, degrees), expected, atol=2e-5, rtol=0)
    eight_bit = (images * 255).round().to(torch.uint8)
    result = image_ops.rotate(eight_bit, degrees)
    assert result.dtype == torch.uint8
    assert (result.float() - expected * 255).abs().max() <= 0.51
