"""`fashion-small`: part of Fashion-MNIST at half its size, which ships with the package."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.bench.data.sources.base import SOURCES, Entry, Source
from fedbench.bench.data.sources.decode import Splits, decoded

FILE = Path(__file__).with_name("fashion_small.npz")
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class FashionSmall(Source):
    """2,500 grey images of clothes, 14 x 14 pixels, for a first look.

    The first 150 training and 100 test images of each class of Fashion-MNIST, in the order of its
    files; each pixel is the rounded mean of four. Source: Xiao, Rasul, Vollgraf 2017,
    https://arxiv.org/abs/1708.07747; MIT licence, whose text is beside the file.
    """

    key: str = "fashion-small"

    def identity(self) -> str:
        return "fashion-small/1"

    def splits(self, scratch: Path) -> Splits:
        with np.load(FILE) as arrays:
            train, test = (
                decoded(arrays[f"{split}_images"], arrays[f"{split}_labels"], self.key)
                for split in ("train", "test")
            )
        return Splits([train], [test], CLASSES)


SOURCES["fashion-small"] = Entry(
    lambda _: FashionSmall(), "built in", (10, (1, 14, 14), 1_500, 1_000)
)
