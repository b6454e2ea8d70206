"""RandAugment and cutout against torchvision, image by image, with the same parameters."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from fedbench.bench.data.views.rand_augment import RAND_AUGMENT_OPERATIONS, cutout, rand_augment
from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.data.views.views import _draw

NAMES = {
    "shear-x": "ShearX",
    "shear-y": "ShearY",
    "translate-x": "TranslateX",
    "translate-y": "TranslateY",
    "autocontrast": "AutoContrast",
}
SHAPES = [(3, 32, 32), (1, 8, 8), (3, 12, 20)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_of(batch: int, shape: tuple[int, int, int]) -> Tensor:
    """Smooth random images: a coarse grid enlarged, so that histograms are not all flat."""
    channels, height, width = shape
    coarse = torch.rand(batch, channels, 4, 4, generator=seeded(5))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (fine * 255).to(torch.uint8)


def torchvisions(image: Tensor, number: int, backwards: bool, magnitude: int) -> Tensor:
    """Apply one operation to one image with torchvision's RandAugment."""
    operation = RAND_AUGMENT_OPERATIONS[number]
    name = NAMES.get(operation, operation.capitalize())
    strengths, signed = v2.RandAugment._AUGMENTATION_SPACE[name]
    values = strengths(31, *image.shape[1:])
    strength = 0.0 if values is None else float(values[magnitude])
    if signed and backwards:
        strength = -strength
    policy = v2.RandAugment()
    changed: Tensor = policy._apply_image_or_video_transform(
        image, name, strength, interpolation=policy.interpolation, fill=policy._fill
    )
    return changed


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("magnitude", [0, 10, 30])
def test_every_operation_is_torchvisions(shape: tuple[int, int, int], magnitude: int) -> None:
    assert len(RAND_AUGMENT_OPERATIONS) == len(v2.RandAugment._AUGMENTATION_SPACE)
    numbers = torch.arange(len(RAND_AUGMENT_OPERATIONS)).repeat(2)
    backwards = torch.arange(len(numbers)) >= len(RAND_AUGMENT_OPERATIONS)
    images = images_of(len(numbers), shape)
    before = images.clone()
    results = rand_augment(images, numbers[:, None], backwards[:, None], magnitude)
    assert torch.equal(images, before)
    for image, number, back, result in zip(images, numbers, backwards, results, strict=True):
        expected = torchvisions(image, int(number), bool(back), magnitude)
        assert torch.equal(result, expected), RAND_AUGMENT_OPERATIONS[int(number)]


def test_two_operations_in_a_row_in_any_order_of_the_batch() -> None:
    images = images_of(60, (3, 32, 32))
    draws = _draw(VIEWS["strong"], seeded(), 60, (32, 32))
    operations, backwards = draws["operations"], draws["backwards"]
    assert operations.shape == (60, 2)
    results = rand_augment(images, operations, backwards, 10)
    for index, image in enumerate(images):
        for step in range(2):
            number, back = int(operations[index, step]), bool(backwards[index, step])
            image = torchvisions(image, number, back, 10)
        assert torch.equal(results[index], image)
    order = torch.randperm(60, generator=seeded(1))
    shuffled = rand_augment(images[order], operations[order], backwards[order], 10)
    assert torch.equal(shuffled, results[order])


@pytest.mark.parametrize("shape", SHAPES)
def test_cutout_erases_a_clipped_square(shape: tuple[int, int, int]) -> None:
    images = images_of(50, shape).float() / 255
    height, width, side = shape[1], shape[2], min(shape[1:]) // 2
    row = torch.randint(height, (50,), generator=seeded(1))
    column = torch.randint(width, (50,), generator=seeded(2))
    results = cutout(images, row, column, side)
    for image, y, x, result in zip(images, row.tolist(), column.tolist(), results, strict=True):
        top, left = max(0, y - side // 2), max(0, x - side // 2)
        bottom, right = min(height, y - side // 2 + side), min(width, x - side // 2 + side)
        grey = torch.full((shape[0], bottom - top, right - left), 0.5)
        expected = tv.erase(image, top, left, bottom - top, right - left, grey)
        assert torch.equal(result, expected)
