"""The named views: random operations that make one augmented version of an image.

A view is a recipe (`bench.data.views.recipes`). Parameters are drawn on the CPU for the whole
batch, then applied on the device of the images, so runs on a CPU and on a GPU share their draws.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from fedbench.bench.data.views import image_ops
from fedbench.bench.data.views.rand_augment import RAND_AUGMENT_OPERATIONS, cutout, rand_augment
from fedbench.bench.data.views.recipes import VIEWS, ViewRecipe
from fedbench.bench.system.compute import to_device
from fedbench.bench.system.errors import DataError, UnknownNameError

MEAN: Final = 0.5
STD: Final = 0.5
JITTER_PROBABILITY: Final = 0.8
SIGMA_RANGE: Final = (0.1, 2.0)  # of the 3x3 blur, in pixels
ASPECT_RANGE: Final = (3.0 / 4.0, 4.0 / 3.0)  # width / height of a resized crop
CROP_ATTEMPTS: Final = 10
PADDING: Final = 4
MIN_SIDE: Final = 4

# Values per chunk on a CPU: about 2 MB of floats, so that the passes over it stay in the cache.
_CHUNK_VALUES: Final = 2**19


def make_view(name: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one view of each image, float32 (B, C, H, W) on the images' device.

    The view, a key of `VIEWS`, is normalised unless its recipe says not. The draws of the CPU
    generator depend on the recipe and on (B, H, W) alone. Images are uint8 with C = 1 (no
    saturation, hue, grayscale) or 3, H and W at least 4.
    """
    recipe = VIEWS.get(name)
    if recipe is None:
        raise UnknownNameError("view", name, VIEWS)
    batch, channels, height, width = images.shape
    if min(height, width) < MIN_SIDE:
        raise DataError(f"views need {MIN_SIDE}x{MIN_SIDE} pixels or more, got {height}x{width}")
    draws = _draw(recipe, generator, batch, (height, width))
    result = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    most = max(batch, 1)
    if images.device.type == "cpu":
        most = max(16, _CHUNK_VALUES // (channels * height * width))
    num_chunks = math.ceil(batch / most)
    for index in range(num_chunks):
        part = slice(index * batch // num_chunks, (index + 1) * batch // num_chunks)
        view = _apply(recipe, images[part], {key: value[part] for key, value in draws.items()})
        if recipe.normalised:
            normalise(view, out=result[part])
        else:
            result[part] = view
    return result


def normalise(images: Tensor, out: Tensor | None = None) -> Tensor:
    """Bring float images in [0, 1] to [-1, 1]; the one mean and deviation of the whole project."""
    # One pass over the images: a subtraction and a division would be two.
    return torch.add(torch.tensor(-MEAN / STD), images, alpha=1.0 / STD, out=out)


def draw_resized_crop(
    generator: torch.Generator, batch: int, size: tuple[int, int], scale: tuple[float, float]
) -> dict[str, Tensor]:
    """Draw boxes as torchvision's RandomResizedCrop does, for all images at once.

    The area is uniform in `scale`, as a share of `size` (H, W), the aspect ratio log-uniform in
    [3/4, 4/3]. The first of ten attempts that fits is taken, else the largest central box with an
    allowed aspect ratio. Returns `top`, `left`, `height`, `width`, each int64 (batch,) on the CPU.
    """
    rows, columns = size

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    area = rows * columns * (scale[0] + (scale[1] - scale[0]) * uniform(CROP_ATTEMPTS, batch))
    low, high = map(math.log, ASPECT_RANGE)
    aspect = torch.exp(low + (high - low) * uniform(CROP_ATTEMPTS, batch))
    height, width = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (height > 0) & (height <= rows) & (width > 0) & (width <= columns)
    first = fits.int().argmax(dim=0, keepdim=True)  # the first of equal maxima
    fitted = fits.any(dim=0)
    # Without a fit: the whole image, its longer side cut until the aspect ratio is allowed.
    widest = min(columns, round(rows * ASPECT_RANGE[1]))
    highest = min(rows, round(columns / ASPECT_RANGE[0]))
    height = torch.where(fitted, height.gather(0, first)[0], float(highest))
    width = torch.where(fitted, width.gather(0, first)[0], float(widest))
    top = torch.where(fitted, (uniform(batch) * (rows - height + 1)).floor(), (rows - highest) // 2)
    left = torch.where(
        fitted, (uniform(batch) * (columns - width + 1)).floor(), (columns - widest) // 2
    )
    box = {"top": top, "left": left, "height": height, "width": width}
    return {key: value.long() for key, value in box.items()}


def _draw(
    recipe: ViewRecipe, generator: torch.Generator, batch: int, size: tuple[int, int]
) -> dict[str, Tensor]:
    """Draw all parameters of a batch, each (B, …) on the CPU; operations not in use have no key."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(batch, generator=generator)

    def happens(probability: float) -> Tensor:
        return torch.rand(batch, generator=generator) < probability

    draws: dict[str, Tensor] = {}
    if recipe.crop == "resized":
        draws |= draw_resized_crop(generator, batch, size, recipe.scale)
    elif recipe.crop == "padded":
        for key in ("top", "left"):
            draws[key] = torch.randint(2 * PADDING + 1, (batch,), generator=generator)
    if recipe.flip:
        draws["flip"] = happens(recipe.flip)
    if recipe.jitter is not None:
        jittered = happens(JITTER_PROBABILITY)
        draws["order"] = torch.rand(batch, 4, generator=generator).argsort(dim=1)
        *strengths, hue = recipe.jitter
        for key, strength in zip(("brightness", "contrast", "saturation"), strengths, strict=True):
            factor = uniform(max(0.0, 1.0 - strength), 1.0 + strength)
            draws[key] = torch.where(jittered, factor, 1.0)
        draws["hue"] = torch.where(jittered, uniform(-hue, hue), 0.0)
    if recipe.grayscale:
        draws["grayscale"] = happens(recipe.grayscale)
    if recipe.blur:
        draws["blur"] = happens(recipe.blur)
        draws["sigma"] = uniform(*SIGMA_RANGE)
    if recipe.solarize:
        draws["solarize"] = happens(recipe.solarize)
    if recipe.rand_augment is not None:
        shape, choices = (batch, recipe.rand_augment[0]), len(RAND_AUGMENT_OPERATIONS)
        draws["operations"] = torch.randint(choices, shape, generator=generator)
        draws["backwards"] = torch.rand(shape, generator=generator) < 0.5
    if recipe.cutout:
        for key, side in (("row", size[0]), ("column", size[1])):
            draws[key] = torch.randint(side, (batch,), generator=generator)
    return draws


def _apply(recipe: ViewRecipe, images: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
    """Apply the drawn operations to uint8 images; returns float32 in [0, 1]."""
    flip = draws.get("flip")
    if recipe.crop == "resized":
        top, left, height, width = (draws[key] for key in ("top", "left", "height", "width"))
        view = image_ops.resized_crop(images, top, left, height, width, recipe.interpolation, flip)
    else:
        if recipe.crop == "padded":
            images = image_ops.pad_crop(images, draws["top"], draws["left"], PADDING)
        if flip is not None:
            images = image_ops.hflip(images, flip)
        if recipe.rand_augment is not None:
            chosen, magnitude = draws["operations"], recipe.rand_augment[1]
            images = rand_augment(images, chosen, draws["backwards"], magnitude)
        view = images.to(torch.float32).div_(255.0)
    if "order" in draws:
        factors = (draws[key] for key in ("order", "brightness", "contrast", "saturation", "hue"))
        view = image_ops.color_jitter(view, *factors)
    if "grayscale" in draws:
        _on(view, draws["grayscale"], lambda chosen, _: image_ops.grayscale(chosen))
    if "blur" in draws:
        sigma = draws["sigma"]
        _on(view, draws["blur"], lambda chosen, rows: image_ops.gaussian_blur(chosen, sigma[rows]))
    if "solarize" in draws:
        _on(view, draws["solarize"], lambda chosen, _: image_ops.solarize(chosen))
    if recipe.cutout:
        side = round(recipe.cutout * min(images.shape[2:]))
        view = cutout(view, draws["row"], draws["column"], side)
    return view


def _on(images: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Replace the chosen images, bool (B,), by `operation(images, rows)` of them, in place."""
    rows = chosen.nonzero().flatten()
    if len(rows):
        index = to_device(rows, images.device)
        images.index_copy_(0, index, operation(images.index_select(0, index), rows))
