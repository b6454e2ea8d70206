"""Covariate shift: training images rotated once, by the angles of their partition."""

import logging
from pathlib import Path

import numpy as np
import torch

from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.partition import Partition
from fedbench.bench.data.views.image_ops import rotate
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import atomic_write_bytes

_log = logging.getLogger(__name__)
_CHUNK = 1024


def rotated_images(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Return training images as clients see them: uint8 (N, C, H, W), read-only.

    Under a rotation shift each image is rotated about its centre, bilinear with zero fill, and
    rounded back to uint8. The result is stored in the data set's cache, named by the partition, so
    that every method, round and process reads the same pixels.
    """
    if partition.angles is None:
        return dataset.train_images
    path = dataset.path / f"rotated-{partition.hash}.safetensors"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except ValueError as err:
        _log.warning("%s: %s; it is made again", path, err)
    images = torch.from_numpy(np.array(dataset.train_images))
    angles = torch.from_numpy(np.nan_to_num(partition.angles))
    for start in range(0, len(images), _CHUNK):
        part = slice(start, start + _CHUNK)
        images[part] = rotate(images[part], angles[part])
    data = tensor_files.encode({}, {"images": images})
    atomic_write_bytes(path, data, error=DataError)
    return _read(path)


def _read(path: Path) -> np.ndarray:
    images: np.ndarray = tensor_files.read(path)[1]["images"].numpy()
    images.flags.writeable = False
    return images
