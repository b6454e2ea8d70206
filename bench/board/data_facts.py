"""Facts about the data behind a revision: from tables of known sets, or from a cache here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.datasets import Dataset, cached_dataset, dataset_records
from fedbench.bench.data.known import REVISIONS, SUBSETS


@dataclass(frozen=True)
class DataFacts:
    """Data set of a revision.

    Attributes:
        name: of its content; `hub:FOLDER` and the like where the content is not a known one.
        image_shape: (C, H, W).
        num_classes, num_train, num_test: of the revision, so after subsets.
        full: numbers of training and test images without subsets; those of the revision where the
            content is not a known one.
        dataset: the images and labels, if a cache here has them.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    num_train: int
    num_test: int
    full: tuple[int, int]
    dataset: Dataset | None = field(repr=False)

    @cached_property
    def shared_images(self) -> int:
        """Test images that are also among the training images, byte by byte; needs `dataset`."""
        if self.dataset is None:
            raise ValueError("no images here")
        train = _digests(self.dataset.train_images)
        return sum(digest in train for digest in _list(self.dataset.test_images))


def facts_of(revision: str, data_dir: Path | None) -> DataFacts | None:
    """Return what is known about a revision; None if it is neither in a table nor in a cache.

    Args:
        revision: `dataset_revision` of a row.
        data_dir: see `load_dataset`; no cache is built.
    """
    dataset = cached_dataset(revision, data_dir)
    name, sizes = SUBSETS.get(revision, (REVISIONS.get(revision), None))
    if dataset is not None:
        name, sizes = dataset.name, (len(dataset.train_labels), len(dataset.test_labels))
    if name is None:
        return None
    records = [r for r in dataset_records(data_dir) if r["name"] == name and r["num_train"]]
    if not records:  # a set of another package, or a folder
        if dataset is None or sizes is None:
            return None
        shape, classes = dataset.image_shape, dataset.num_classes
        return DataFacts(name, shape, classes, *sizes, sizes, dataset)
    channels, height, width = records[0]["image_shape"]
    full = (records[0]["num_train"], records[0]["num_test"])
    shape, classes = (channels, height, width), records[0]["num_classes"]
    num_train, num_test = sizes or full
    return DataFacts(name, shape, classes, num_train, num_test, full, dataset)


def _list(images: npt.NDArray[np.uint8]) -> list[bytes]:
    return [hashlib.sha256(image.tobytes()).digest() for image in images]


def _digests(images: npt.NDArray[np.uint8]) -> frozenset[bytes]:
    return frozenset(_list(images))
