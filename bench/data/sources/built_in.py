"""`digits` and `fashion-small`: data sets that come with scikit-learn and with this package."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.bench.data.sources.base import SOURCES, Entry, Source
from fedbench.bench.data.sources.decode import Splits, decoded

FASHION_SMALL = Path(__file__).with_name("fashion_small.npz")
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class BuiltIn(Source):
    """A data set whose images are always there."""

    key: str
    version: str  # changes whenever what is read does
    read: Callable[[], Splits]

    def identity(self) -> str:
        return f"{self.key}/{self.version}"

    def splits(self, scratch: Path) -> Splits:
        return self.read()


def digits() -> Splits:
    """Return scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels.

    Pixels 0..16 are scaled to 0..255. They come without a split; every third image of each class
    (positions 2, 5, 8, … in the order of the file) is a test image: 1,201 and 596.
    """
    from pandas import Series
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # (N, 8, 8)
    is_test = Series(bunch.target).groupby(bunch.target).cumcount().to_numpy() % 3 == 2
    train, test = (
        decoded(images[rows], bunch.target[rows], "digits", rows.tolist())
        for rows in (np.flatnonzero(~is_test), np.flatnonzero(is_test))
    )
    return Splits([train], [test], tuple(map(str, range(10))))


def fashion_small() -> Splits:
    """Return 2,500 grey images of clothes, 14 x 14 pixels, for a first look.

    The first 150 training and 100 test images of each class of Fashion-MNIST, in the order of its
    files; each pixel is the rounded mean of four. Source: Xiao, Rasul, Vollgraf 2017,
    https://arxiv.org/abs/1708.07747; MIT licence, whose text is beside the file.
    """
    with np.load(FASHION_SMALL) as arrays:
        train, test = (
            decoded(arrays[f"{split}_images"], arrays[f"{split}_labels"], "fashion-small")
            for split in ("train", "test")
        )
    return Splits([train], [test], _CLOTHES)


SOURCES["digits"] = Entry(
    lambda _: BuiltIn("digits", "every-third", digits), "built in", (10, (1, 8, 8), 1_201, 596)
)
SOURCES["fashion-small"] = Entry(
    lambda _: BuiltIn("fashion-small", "1", fashion_small),
    "built in",
    (10, (1, 14, 14), 1_500, 1_000),
)
