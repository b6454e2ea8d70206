"""`digits`: scikit-learn's handwritten digits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.sources.base import SOURCES, Entry, Source
from fedbench.bench.data.sources.decode import Part, Splits, decoded


@dataclass(frozen=True)
class Digits(Source):
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels.

    Pixels 0..16 are scaled to 0..255. They come without a split; every third image of each class
    (positions 2, 5, 8, … in the order of the file) is a test image: 1,201 and 596.
    """

    key: str = "digits"

    def identity(self) -> str:
        return "digits/every-third"

    def splits(self, scratch: Path) -> Splits:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # (N, 8, 8)
        position = np.zeros(len(images), dtype=np.int64)  # within the image's class
        for c in range(10):
            position[bunch.target == c] = np.arange((bunch.target == c).sum())

        def part(rows: npt.NDArray[np.int64]) -> Part:
            return decoded(images[rows], bunch.target[rows], self.key, rows.tolist())

        is_test = position % 3 == 2
        names = tuple(str(c) for c in range(10))
        return Splits([part(np.flatnonzero(~is_test))], [part(np.flatnonzero(is_test))], names)


SOURCES["digits"] = Entry(lambda _: Digits(), "built in", (10, (1, 8, 8), 1_201, 596))
