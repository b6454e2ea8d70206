"""`npz:FILE`: arrays in one NumPy file, as MedMNIST and Keras distribute them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.cache import CacheWriter, first_line
from fedbench.bench.data.sources.base import SOURCES, Entry, PathSource
from fedbench.bench.data.sources.decode import Progress
from fedbench.bench.system.errors import DataError

_NAMES = (
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
    ("x_train", "y_train", "x_test", "y_test"),  # Keras
)


class NpzArrays(PathSource):
    """`train_images`, `train_labels`, `test_images` and `test_labels` in a `.npz` file.

    MedMNIST's names, or Keras's `x_train`, `y_train`, `x_test` and `y_test`; further arrays, such
    as MedMNIST's `val_images`, are left out. Images are uint8 (N, H, W) or (N, H, W, C), labels
    integers (N,) or (N, 1). Pickled arrays are refused.
    """

    kind = "npz"

    def require(self) -> None:
        """Raise `DataError` unless the path is a file."""
        if not self.path.is_file():
            reason = "is no file" if self.path.exists() else "does not exist"
            raise DataError(f"npz:{self.path}: the path {reason}")

    def files(self) -> list[Path]:
        """Return the file."""
        return [self.path]

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        if not zipfile.is_zipfile(self.path):  # of other files NumPy says how to unpickle them
            raise DataError(
                f"npz:{self.path} is no .npz file, which is a zip of arrays; unpack a compressed"
                " one first, such as a .gz with gunzip"
            )
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                return self._write(arrays, writer, progress)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as err:
            raise DataError(f"npz:{self.path} cannot be read ({first_line(err)})") from err

    def _write(
        self, arrays: Mapping[str, npt.NDArray[Any]], writer: CacheWriter, progress: Progress | None
    ) -> tuple[str, ...]:
        names = next((names for names in _NAMES if set(names) <= set(arrays)), None)
        if names is None:
            raise DataError(
                f"npz:{self.path} needs the arrays {', '.join(_NAMES[0])} (or"
                f" {', '.join(_NAMES[1])}); found: {', '.join(sorted(arrays))}"
            )
        largest, total, done = 0, sum(len(arrays[name]) for name in names[1::2]), 0
        for split, pixels, classes in (("train", *names[:2]), ("test", *names[2:])):
            images, labels = arrays[pixels], arrays[classes]
            if (
                images.dtype != np.uint8
                or images.ndim not in (3, 4)
                or (images.ndim == 4 and images.shape[3] > 4)
            ):
                raise DataError(
                    f"npz:{self.path}: {pixels} is {images.dtype}{list(images.shape)}; needed:"
                    " uint8 [N, H, W] or [N, H, W, C] with at most 4 channels"
                )
            if (
                labels.shape not in ((len(images),), (len(images), 1))
                or labels.dtype.kind not in "iu"
            ):
                raise DataError(
                    f"npz:{self.path}: {classes} is {labels.dtype}{list(labels.shape)}; needed:"
                    f" integers [{len(images)}], one label per image"
                )
            images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
            writer.put(f"{split}_images", images)
            writer.put(f"{split}_labels", labels.reshape(-1).astype(np.int64))
            largest = max(largest, int(labels.max(initial=-1)))
            done += len(labels)
            if progress is not None:
                progress(done, total)
        return tuple(map(str, range(largest + 1)))


SOURCES["npz:FILE"] = Entry(NpzArrays.make, "a NumPy file of MedMNIST's or Keras's form")
