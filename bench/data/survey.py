"""What a data set holds: images per class, copies, images of both splits, images of one colour."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.cache import SPLITS
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.sources.splits import plain

_BLOCK_BYTES = 1 << 26  # bytes of images that are in memory at a time


@dataclass(frozen=True)
class Survey:
    """Counts over the decoded images of a data set; images are equal if all their pixels are."""

    classes: list[dict[str, Any]]  # by label: `name`, and the images in `train` and `test`
    unlabelled: dict[str, int]  # images without a label in `train` and `test`
    image_shape: tuple[int, int, int]  # (C, H, W)
    num_distinct: int  # images of which no two are equal, over both splits
    copies: dict[str, int]  # images in `train` and `test` that equal an earlier one there
    test_in_train: int  # test images that are training images, too
    two_labels: int  # distinct images that have two labels or more
    one_colour: int  # images all of whose pixels are equal

    def cautions(self) -> list[str]:
        """Return a sentence for each count that speaks against the data or their reading."""
        tests = sum(each["test"] for each in self.classes) + self.unlabelled["test"]
        total = sum(each["train"] for each in self.classes) + self.unlabelled["train"] + tests
        if self.num_distinct == 1 < total:
            return [f"all {total:,} images are equal: nothing can be learnt from them"]
        copies = [f"{count:,} in {split}" for split, count in self.copies.items() if count]
        missing = [each["name"] for each in self.classes if not (each["train"] and each["test"])]
        times = Counter(plain(each["name"]) for each in self.classes)
        alike = [name for name, count in times.items() if count > 1 < len(name)]
        said = {
            f"classes without an image in train or test: {', '.join(missing[:5])}"
            + (", …" if len(missing) > 5 else ""): len(missing),
            f"{self.test_in_train:,} of {tests:,} test images are training images, too;"
            " an accuracy on them is no measure": self.test_in_train,
            f"images that have two labels or more: {self.two_labels:,}": self.two_labels,
            "all labels are of one class: every accuracy is 100 %": len(self.classes) == 1,
            f"classes that differ in case or blanks alone: {', '.join(alike[:5])}": len(alike),
            f"copies of another image of their split: {', '.join(copies)}": len(copies),
            f"images of one colour alone: {self.one_colour:,} of {total:,}": self.one_colour,
        }
        return [text for text, count in said.items() if count]


def survey(arrays: Mapping[str, npt.NDArray[Any]], class_names: Sequence[str]) -> Survey:
    """Count over the arrays of a cache: images (N, C, H, W) and labels (N,) of each split."""
    labels = {split: arrays[f"{split}_labels"] for split in SPLITS}
    keys, uniform = zip(*(_keys(arrays[f"{split}_images"]) for split in SPLITS), strict=True)
    distinct, places = np.unique(np.concatenate(keys), return_inverse=True)
    of_split = dict(zip(SPLITS, np.split(places, [len(keys[0])]), strict=True))
    shown = np.concatenate([*labels.values()])
    pairs = np.unique(places[shown != HIDDEN] * len(class_names) + shown[shown != HIDDEN])
    times = np.bincount(pairs // max(1, len(class_names)))
    counts = {
        split: np.bincount(of[of != HIDDEN], minlength=len(class_names)).tolist()
        for split, of in labels.items()
    }
    return Survey(
        classes=[
            {"name": name, **{split: counts[split][label] for split in SPLITS}}
            for label, name in enumerate(class_names)
        ],
        unlabelled={split: int((of == HIDDEN).sum()) for split, of in labels.items()},
        image_shape=tuple(arrays["train_images"].shape[1:]),
        num_distinct=len(distinct),
        copies={split: len(of) - len(np.unique(of)) for split, of in of_split.items()},
        test_in_train=int(np.isin(of_split["test"], of_split["train"]).sum()),
        two_labels=int((times > 1).sum()),
        one_colour=sum(uniform),
    )


def _keys(images: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint64], int]:
    """Return 64 bits of SHA-256 over the pixels of each image, and how many have one colour.

    Among a million images two unlike ones have one key with a probability of 3e-8.
    """
    step = max(1, _BLOCK_BYTES // images[0].nbytes)
    digests, uniform = bytearray(), 0
    for start in range(0, len(images), step):
        block = np.ascontiguousarray(images[start : start + step])
        for image in block:
            digests += hashlib.sha256(image.data).digest()[:8]
        uniform += int((block == block[:, :, :1, :1]).all(axis=(1, 2, 3)).sum())
    return np.frombuffer(digests, np.uint64), uniform
