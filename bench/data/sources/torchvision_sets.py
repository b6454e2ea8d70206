"""Data sets that torchvision downloads: CIFAR-10, SVHN, MNIST and the like."""

import contextlib
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.bench.data.sources.base import SOURCES, Entry, Request, Source
from fedbench.bench.data.sources.decode import Part, Splits, decoded
from fedbench.bench.data.sources.file import OneFile
from fedbench.bench.system.errors import DataError

_LONGEST = 300  # characters of an error
TIMEOUT = 30.0  # seconds without an answer from a download server
DEBIAN = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")}
"""Sets that a Debian package `dataset-NAME` has, as IDX files: their training images."""


@dataclass(frozen=True)
class TorchvisionSet(Source):
    """A data set that torchvision can download into `raw` and read from there."""

    key: str  # name of the set and of its cache
    class_name: str
    size: tuple[int, tuple[int, int, int], int, int]  # classes, (C, H, W), training and test images
    request: Request
    split_argument: bool = False  # whether the class takes split="train" instead of train=True
    parts: tuple[str, ...] = ("train",)  # torchvision's splits that training images come from

    @property
    def raw(self) -> Path:
        """Folder of the downloads."""
        return self.request.root / "raw"

    def identity(self) -> str:
        """Return a constant: torchvision checks its downloads against fixed checksums."""
        return "/".join(("torchvision", self.class_name, *self.parts[1:]))

    def require(self) -> None:
        if not (self.request.download or self.raw.is_dir() or self._packaged()):
            raise self._missing()

    def splits(self, scratch: Path) -> Splits:
        from torchvision import datasets

        if self._packaged():
            images = OneFile(DEBIAN[self.key]).splits(scratch)
            return images._replace(class_names=tuple(getattr(datasets, self.class_name).classes))
        opened = {split: self._open(split) for split in (*self.parts, "test")}

        def part(split: str) -> Part:
            dataset = opened[split]
            images = np.asarray(dataset.data)
            targets = dataset.targets if hasattr(dataset, "targets") else dataset.labels
            return decoded(images, np.asarray(targets, dtype=np.int64), f"{self.key} ({split})")

        names = getattr(opened["test"], "classes", None) or map(str, range(self.size[0]))
        return Splits([part(split) for split in self.parts], [part("test")], tuple(names))

    def _packaged(self) -> bool:
        """True if a package of the system has the files."""
        return self.key in DEBIAN and DEBIAN[self.key].is_file()

    def _open(self, split: str) -> Any:
        from torchvision import datasets

        kwargs = {"split": split} if self.split_argument else {"train": split == "train"}
        timeout = socket.getdefaulttimeout()  # torchvision takes none
        socket.setdefaulttimeout(TIMEOUT)
        try:
            # torchvision prints to stdout, which is for results.
            with contextlib.redirect_stdout(sys.stderr):
                return getattr(datasets, self.class_name)(
                    str(self.raw), download=self.request.download, **kwargs
                )
        except Exception as err:  # of files, archives and the network
            if not self.request.download:
                raise self._missing() from err
            # Of several lines the first may only be a heading: "Error downloading FILE:".
            why = " ".join(str(err).split())[:_LONGEST] or type(err).__name__
            raise DataError(
                f"{self.key} could not be downloaded or read ({why}); put torchvision's files into"
                f" {self._folder()} by hand{self._or_package()}, or use Parquet files: hub:PATH"
            ) from err
        finally:
            socket.setdefaulttimeout(timeout)

    def _missing(self) -> DataError:
        return DataError(
            f"data set {self.key!r} is not in the cache, and no intact files of it are in"
            f" {self._folder()}; run: {self.request.command}{self._or_package()}"
        )

    def _folder(self) -> Path:
        """Return the folder that torchvision reads; MNIST and the like have their own."""
        from torchvision import datasets

        has_own = hasattr(getattr(datasets, self.class_name), "raw_folder")
        return self.raw / self.class_name / "raw" if has_own else self.raw

    def _or_package(self) -> str:
        package = f", or install Debian's package dataset-{self.key}"
        return package if self.key in DEBIAN else ""


def _register(
    key: str, class_name: str, size: tuple[int, tuple[int, int, int], int, int], **more: Any
) -> None:
    SOURCES[key] = Entry(
        lambda request: TorchvisionSet(key, class_name, size, request, **more), size=size
    )


_register("cifar10", "CIFAR10", (10, (3, 32, 32), 50_000, 10_000))
_register("cifar100", "CIFAR100", (100, (3, 32, 32), 50_000, 10_000))
_register("svhn", "SVHN", (10, (3, 32, 32), 73_257, 26_032), split_argument=True)
_register("mnist", "MNIST", (10, (1, 28, 28), 60_000, 10_000))
_register("fashion-mnist", "FashionMNIST", (10, (1, 28, 28), 60_000, 10_000))
_STL10 = {"split_argument": True, "parts": ("train", "unlabeled")}
_register("stl10", "STL10", (10, (3, 96, 96), 105_000, 8_000), **_STL10)
