"""`digits`: scikit-learn's handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.bench.data.cache import CacheWriter
from fedbench.bench.data.sources.base import SOURCES, Entry
from fedbench.bench.data.sources.decode import Progress


@dataclass(frozen=True)
class Digits:
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels.

    Pixels 0..16 are scaled to 0..255. They come without a split; every third image of each class
    (positions 2, 5, 8, … in the order of the file) is a test image: 1,201 and 596.
    """

    key: str = "digits"

    def identity(self) -> str:
        """Return the rule of the split."""
        return "digits/every-third"

    def require(self) -> None:
        """Do nothing: the images ship with scikit-learn."""

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # (N, 1, 8, 8)
        labels = bunch.target.astype(np.int64)
        position = np.zeros(len(labels), dtype=np.int64)  # within the image's class
        for c in range(10):
            position[labels == c] = np.arange((labels == c).sum())
        test = position % 3 == 2
        for split, chosen in (("train", ~test), ("test", test)):
            writer.put(f"{split}_images", images[chosen])
            writer.put(f"{split}_labels", labels[chosen])
        if progress is not None:
            progress(len(labels), len(labels))
        return tuple(str(c) for c in range(10))


SOURCES["digits"] = Entry(lambda _: Digits(), "built in", (10, (1, 8, 8), 1_201, 596))
