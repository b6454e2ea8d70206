"""Features of many images from one encoder."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.views.views import make_view
from fedbench.bench.system import seeding
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.errors import FedbenchError, PluginError, expect

Encode: TypeAlias = Callable[[Tensor], Tensor]
"""Normalised float images (B, C, H, W) to features (B, D); in eval mode, on the images' device."""

Images: TypeAlias = NDArray[np.uint8] | Tensor
"""uint8 images (N, C, H, W); an array may be memory-mapped and read-only."""

Labels: TypeAlias = NDArray[Any] | Tensor
"""Class indices (N,), each in [0, num_classes)."""


class NonFiniteFeaturesError(FedbenchError):
    """Features with NaN or infinity: the encoder diverged, and the run's row says so."""


BATCH_SIZE = 500
"""Images in a forward pass: fixed, since another batch may round otherwise."""


def extract(encode: Encode, images: Images, *, device: torch.device | str) -> Tensor:
    """Features of clean images in their order, float32 (N, D) on `device`, finite or not.

    The batches never depend on the number of workers, so an encoder in eval mode gives the same
    bits in every process of one machine. The caller puts it into eval mode and on `device`. Only
    one batch of the images (N, C, H, W), N >= 1, is held as floats.
    """
    features: Tensor | None = None
    for start in range(0, len(images), BATCH_SIZE):
        rows = slice(start, start + BATCH_SIZE)
        batch = encode_batch(encode, clean(take_images(images, rows).to(device)), device)
        if features is None:
            # Made outside inference mode: an inference tensor could not be trained on later.
            features = torch.empty(len(images), batch.shape[1], device=device)
        features[rows] = batch
    assert features is not None
    return features


def clean(images: Tensor) -> Tensor:
    """Convert uint8 images (B, C, H, W) to floats in [-1, 1]."""
    return make_view("plain", images, seeding.generator(0, "clean-view"))


def encode_batch(encode: Encode, batch: Tensor, device: torch.device | str) -> Tensor:
    """One forward pass without gradients: normalised floats (B, C, H, W) to float32 (B, D)."""
    with torch.inference_mode():
        features = encode(batch.to(device, non_blocking=True))
    expect(features, Tensor, "what encode() or embed() returns")
    if features.ndim != 2 or len(features) != len(batch):
        shape = tuple(features.shape)
        raise PluginError(f"encode() or embed() returned shape {shape}; must be ({len(batch)}, D)")
    return features.to(torch.float32)


def take_images(images: Images, rows: slice | NDArray[np.int64] | Tensor) -> Tensor:
    """Return some of the images as a uint8 tensor (n, C, H, W), on the device of a tensor.

    Arrays are copied, because torch warns about memory that it may not write to.
    """
    if isinstance(images, Tensor):
        if isinstance(rows, slice):
            return images[rows]
        return images[torch.as_tensor(rows).to(images.device)]
    return torch.from_numpy(np.array(images[rows.numpy() if isinstance(rows, Tensor) else rows]))


def check_finite(what: str, features: Tensor) -> None:
    """Refuse NaN and infinity, which only a diverged encoder gives."""
    if not all_finite(features):
        num_bad = int((~torch.isfinite(features)).any(dim=1).sum())
        of = f"{num_bad} of {len(features)} rows"
        raise NonFiniteFeaturesError(f"{what}: NaN or infinity in {of}; try a lower client.lr")


def class_tensor(labels: Labels, device: torch.device | str) -> Tensor:
    """Return labels as int64 (N,) on a device."""
    labels = labels if isinstance(labels, Tensor) else torch.from_numpy(np.array(labels))
    return labels.to(device, torch.int64)
