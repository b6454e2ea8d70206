"""Resizing as matrix products: weights of the input pixels for each output pixel."""

from functools import cache
from typing import Literal

import torch
from torch import Tensor

from fedbench.bench.system.compute import to_device

Interpolation = Literal["bicubic", "bilinear"]

_FAR = 1e6
_TABLE_VALUES = 2**21
"""Largest number of weights in a cached table: images of 32 x 32 pixels need half, 4 MB."""


def resampling(
    start: Tensor,
    length: Tensor,
    size: int,
    interpolation: Interpolation,
    mirrored: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Weights (B, size, size) that resize a box of each image to the image, along one axis.

    A box has `length` (B,) pixels, at least 1, from `start` (B,), all within the image; `mirrored`
    (B,) flips results. Small images have few boxes, whose weights are computed once: copying them
    takes a thirtieth of the time.
    """
    boxes = size * (size + 1) // 2
    if 2 * boxes * size**2 > _TABLE_VALUES:
        return _weights(start, length, size, interpolation, mirrored, device)
    # Boxes of one pixel come first; of `length` pixels there are size + 1 - length.
    index = (length - 1) * (size + 1) - (length - 1) * length // 2 + start
    if mirrored is not None:
        index = index + boxes * to_device(mirrored, index.device)
    table = _table(size, interpolation, device)
    return table.index_select(0, to_device(index, device))


def separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply each channel from both sides: rows (B, S, H), columns (B, T, W) -> (B, C, S, T)."""
    batch, channels, height, width = images.shape
    wide = torch.bmm(images.reshape(batch, channels * height, width), columns.mT)
    wide = wide.view(batch, channels, height, -1)
    result = wide.new_empty(channels, batch, rows.shape[1], wide.shape[3])
    for channel in range(channels):
        torch.bmm(rows, wide[:, channel], out=result[channel])
    return result.transpose(0, 1)


@cache
def _table(size: int, interpolation: Interpolation, device: torch.device) -> Tensor:
    """Weights of all boxes, by length and then by start; after them, the same mirrored."""
    boxes = [(i, n) for n in range(1, size + 1) for i in range(size + 1 - n)]
    start, length = torch.tensor(boxes * 2).T
    mirrored = torch.arange(len(start)) >= len(boxes)
    return _weights(start, length, size, interpolation, mirrored, device)


def _weights(
    start: Tensor,
    length: Tensor,
    size: int,
    interpolation: Interpolation,
    mirrored: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Compute the weights that `resampling` returns.

    Output pixel i looks at (i + 1/2) * length / size from the start of the box. The kernel is not
    widened, as no box shrinks; it sees nothing outside the box, and rows sum to 1.
    """
    start, length = (to_device(p, device).to(torch.float32)[:, None] for p in (start, length))
    output = torch.arange(size, device=device, dtype=torch.float32)
    if mirrored is not None:
        output = torch.where(to_device(mirrored, device)[:, None], size - 1 - output, output)
    pixel = torch.arange(size, device=device) - start  # (B, size), 0 at the start of the box
    centre = (output + 0.5) * (length / size)  # (B, size)
    # A pixel outside the box is moved out of reach of every kernel.
    position = torch.where((pixel >= 0) & (pixel < length), pixel + 0.5, _FAR)
    distance = torch.sub(position[:, None, :], centre[:, :, None]).abs_()
    if interpolation == "bilinear":
        weights = torch.sub(1.0, distance).clamp_(min=0.0)
    else:
        # Keys' cubic kernel with a = -1/2: (u - 1) u^2 / 2 + (1 - 2 v) v^2, where u = 2 - |x| and
        # v = 1 - |x|, each 0 where that is negative.
        outer = torch.sub(2.0, distance).clamp_(min=0.0)
        inner = outer - 1.0
        tail = outer.square_().mul_(inner)
        square = inner.clamp_(min=0.0).square()
        weights = torch.addcmul(square, square, inner, value=-2.0).add_(tail, alpha=0.5)
    return weights.div_(weights.sum(dim=2, keepdim=True))
