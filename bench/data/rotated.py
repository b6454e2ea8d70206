"""Covariate shift: training images rotated once, by the angles of their partition."""

from __future__ import annotations

import hashlib
import io
import logging
from pathlib import Path

import numpy as np
import torch

from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.partition import Partition
from fedbench.bench.data.views.image_ops import rotate
from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import atomic_write_bytes

_log = logging.getLogger(__name__)
_CHUNK = 1024


def rotated_images(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Return training images as clients see them: uint8 (N, C, H, W), read-only.

    Under a rotation shift each image is rotated about its centre, bilinear with zero fill, and
    rounded back to uint8. The result is stored beside the data set, named by the partition and its
    own checksum, so that every method, round and process reads the same pixels. Without such a
    shift these are the data set's own images.
    """
    if partition.angles is None:
        return dataset.train_images
    for path in dataset.path.glob(f"rotated-{partition.hash}-*.npy"):
        if path.stem.endswith(_digest(path.read_bytes())):
            return _map(path)
        _log.warning("%s is torn or altered; it is made again", path)
        path.unlink(missing_ok=True)
    images = np.array(dataset.train_images)
    angles = torch.from_numpy(np.nan_to_num(partition.angles))
    for start in range(0, len(images), _CHUNK):
        part = slice(start, start + _CHUNK)
        images[part] = rotate(torch.from_numpy(images[part]), angles[part]).numpy()
    buffer = io.BytesIO()
    np.save(buffer, images, allow_pickle=False)
    data = buffer.getvalue()
    path = dataset.path / f"rotated-{partition.hash}-{_digest(data)}.npy"
    atomic_write_bytes(path, data, error=DataError)
    return _map(path)


def _map(path: Path) -> np.ndarray:
    images: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return images


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
