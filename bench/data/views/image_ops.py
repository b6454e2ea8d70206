"""Image operations on whole batches, with one parameter per image; the callers draw them.

Float images are (B, C, H, W) float32 in [0, 1], C = 1 or 3. A parameter "(B,)" holds one value per
image; it may live on the CPU while the images do not. Every operation returns a new tensor and
agrees with `torchvision.transforms.v2.functional` applied image by image.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.data.views.resampling import Interpolation, resampling, separable
from fedbench.bench.system.compute import to_device

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The four operations of `color_jitter`, as its `order` names them."""

# Weights of red, green and blue in the luma of ITU-R BT.601, to the digits that torchvision uses.
LUMA = (0.2989, 0.587, 0.114)

# Where red, green and blue lie on the hue circle, in sextants (60 degrees).
_SEXTANT_OF_CHANNEL = (0.0, 2.0, 4.0)


def hflip(images: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images left to right; `chosen` is bool (B,)."""
    return torch.where(_per_image(chosen, images), images.flip(-1), images)


def pad_crop(images: Tensor, top: Tensor, left: Tensor, padding: int = 4) -> Tensor:
    """Pad with zeros on all sides and cut a window of the old size, at `top` and `left` (B,)."""
    batch, _, height, width = images.shape
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.arange(batch, device=images.device)
    return windows[rows, :, to_device(top, images.device), to_device(left, images.device)]


def resized_crop(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    interpolation: Interpolation,
    mirrored: Tensor | None = None,
) -> Tensor:
    """Cut one box from each image and bring it to the image's size.

    Both axes are one matrix product per image. Bicubic overshoot is clamped to [0, 1], as an 8-bit
    image clamps it; torchvision leaves it in float images. Images (B, C, H, W) are uint8 or float
    in [0, 1]; the boxes, integers (B,), do not leave the image. `mirrored`, bool (B,), flips the
    result, float32 (B, C, H, W). The kernel is the cubic one with a = -0.5, or the triangle.
    """
    rows = resampling(top, height, images.shape[2], interpolation, None, images.device)
    columns = resampling(left, width, images.shape[3], interpolation, mirrored, images.device)
    if images.dtype == torch.uint8:
        columns.div_(255.0)
    return separable(images.to(torch.float32), rows, columns).clamp_(0.0, 1.0)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black: `factor` (B,) >= 0, and 1 changes nothing."""
    return (images * _per_image(factor.to(images.dtype), images)).clamp_(0.0, 1.0)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean luma of the image: `factor` (B,) >= 0, and 1 changes nothing."""
    factor = to_device(factor.to(images.dtype), images.device)
    offset = (1.0 - factor) * _mean_luma(images)
    return (images * _per_image(factor, images)).add_(_per_image(offset, images)).clamp_(0.0, 1.0)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray image: `factor` (B,) >= 0; one channel stays as it is."""
    if images.shape[1] == 1:
        return images.clone()
    weight = _per_image(factor.to(images.dtype), images)
    return (images * weight).add_(_luma(images).mul_(1.0 - weight)).clamp_(0.0, 1.0)


def adjust_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue (of HSV) by a share of the circle, `turn` (B,); one channel stays as it is.

    HSV is never formed. With M, m the largest and smallest channel of a pixel and c = M - m, the
    distance of its hue from red is (g + b - r + M - 2m) / c sextants, on the side of green where
    g > b. At distance d from its place on the circle a channel is m + c * clamp(2 - d, 0, 1).
    All values are multiplied by c throughout, so gray pixels (c = 0) are no special case.
    """
    if images.shape[1] == 1:
        return images.clone()
    red, green, blue = (images[:, i : i + 1] for i in range(3))
    largest = torch.maximum(torch.maximum(green, blue), red)
    smallest = torch.minimum(torch.minimum(green, blue), red)
    chroma = largest - smallest
    distance = (green + blue).sub_(red).add_(largest).sub_(smallest, alpha=2.0)
    hue = torch.copysign(distance, green - blue)  # in [-3c, 3c], red at 0
    place = turn.new_tensor(_SEXTANT_OF_CHANNEL)
    # Wrapped into [-3, 3): then |hue + shift * c| <= 6c, where one fold finds the way around.
    shift = torch.remainder(6.0 * turn[:, None] - place + 3.0, 6.0).sub_(3.0)
    shift = to_device(shift.to(images.dtype), images.device)[:, :, None, None]
    result = torch.addcmul(hue, chroma, shift).abs_()
    result.sub_(chroma, alpha=3.0).abs_().add_(smallest.sub(chroma))
    return torch.clamp(result, smallest, largest, out=result)


def color_jitter(
    images: Tensor,
    order: Tensor,
    brightness: Tensor,
    contrast: Tensor,
    saturation: Tensor,
    hue: Tensor,
) -> Tensor:
    """Change brightness, contrast, saturation and hue, in an order that each image chooses.

    Images are float (B, C, H, W) in [0, 1]. Each row of `order` (B, 4) is a permutation of
    BRIGHTNESS, CONTRAST, SATURATION, HUE. Factors (B,) of 1 change nothing, as does a hue's turn of
    0 in [-0.5, 0.5]; saturation and hue have no effect on one channel.
    """
    changes = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    amounts = torch.stack([brightness, contrast, saturation, hue], dim=1)
    active = amounts != amounts.new_tensor([1.0, 1.0, 1.0, 0.0])
    if images.shape[1] == 1:
        active[:, SATURATION:] = False
    # Images by step and operation, computed where the parameters are: a GPU is not waited for.
    place = torch.arange(4, device=order.device) * 4 + order
    place = torch.where(active.gather(1, order), place, 16).flatten()
    counts = torch.bincount(place, minlength=17).tolist()
    sorted_places = place.argsort()
    rows = to_device(sorted_places // 4, images.device).split(counts)
    amount = amounts.gather(1, order).flatten()[sorted_places].split(counts)
    images = images.clone(memory_format=torch.contiguous_format)
    for index in range(16):
        if counts[index]:
            changed = changes[index % 4](images.index_select(0, rows[index]), amount[index])
            images.index_copy_(0, rows[index], changed)
    return images


def grayscale(images: Tensor) -> Tensor:
    """Replace every channel by the luma; images of one channel stay as they are."""
    if images.shape[1] == 1:
        return images.clone()
    return _luma(images).expand_as(images).contiguous()


def gaussian_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur with a 3x3 Gaussian, mirrored at the border; `sigma` (B,) > 0 in pixels."""
    side = torch.exp(-0.5 / sigma.square())
    side = _per_image(side / (1.0 + 2.0 * side), images)
    for dim in (2, 3):
        size = images.shape[dim]
        neighbours = torch.empty_like(images)
        neighbours.narrow(dim, 1, size - 1).copy_(images.narrow(dim, 0, size - 1))
        neighbours.select(dim, 0).copy_(images.select(dim, 1))  # mirrored: outside as inside
        neighbours.narrow(dim, 0, size - 1).add_(images.narrow(dim, 1, size - 1))
        neighbours.select(dim, -1).add_(images.select(dim, -2))
        images = neighbours.sub_(images, alpha=2.0).mul_(side).add_(images)
    return images


def solarize(images: Tensor) -> Tensor:
    """Invert every value of at least 128 / 255."""
    # |1 - x| or |0 - x|: exact, and several times faster than a choice between two tensors.
    return (images >= 128.0 / 255.0).to(images.dtype).sub_(images).abs_()


def rotate90(images: Tensor, turns: Tensor) -> Tensor:
    """Turn images (B, C, N, N) of any dtype counter-clockwise by `turns` (B,) quarters, mod 4."""
    turns = torch.remainder(to_device(turns, images.device), 4)
    images = torch.where(_per_image(turns >= 2, images), images.flip((-2, -1)), images)
    return torch.where(_per_image(turns % 2 == 1, images), images.mT.flip(-2), images)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image counter-clockwise about its centre, bilinear, with zeros around it.

    `images` (B, C, H, W) are uint8 or float, `degrees` is (B,). The result has the same dtype;
    uint8 values are rounded to the nearest.
    """
    height, width = images.shape[-2:]
    angle = torch.deg2rad(degrees.double())
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # Coordinates of the sampler are in half widths and half heights, hence the aspect ratios.
    upper = torch.stack([cosine, -sine * (height / width), zero], dim=1)
    lower = torch.stack([sine * (width / height), cosine, zero], dim=1)
    dtype = images.dtype if images.is_floating_point() else torch.float32
    matrices = to_device(torch.stack([upper, lower], dim=1).to(dtype), images.device)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    turned = F.grid_sample(images.to(dtype), grid, padding_mode="zeros", align_corners=False)
    return turned if images.is_floating_point() else turned.round_().to(images.dtype)


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return to_device(values, images.device)[..., None, None, None]


@cache
def _luma_weights(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(LUMA, device=device, dtype=dtype)


def _mean_luma(images: Tensor) -> Tensor:
    means = images.mean(dim=(2, 3))
    if images.shape[1] == 1:
        return means.squeeze(1)
    return means @ _luma_weights(means.device, means.dtype)


def _luma(images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W)."""
    red, green, blue = (weight * images[:, i : i + 1] for i, weight in enumerate(LUMA))
    return red.add_(green).add_(blue)
