"""What a data set can be made from: digits, torchvision sets, image folders (Hub: `hub.py`)."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import pickle
import re
import shlex
import socket
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedbench.bench.data.cache import CacheWriter
from fedbench.bench.data.sources.decode import Picture, Progress, write_splits
from fedbench.bench.system.errors import DataError

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
)
TEST_FOLDERS = ("test", "val", "validation")
TIMEOUT = 30.0  # seconds without an answer from a download server


class Source(Protocol):
    """Where one data set comes from."""

    @property
    def key(self) -> str:
        """Name of its cache folder: letters, digits and dashes."""
        ...

    def identity(self) -> str | None:
        """Changes whenever the source does; None when the source is gone."""
        ...

    def require(self) -> None:
        """Raise `DataError` with the remedy when there is nothing to build from."""
        ...

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        ...


@dataclass(frozen=True)
class Digits:
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels.

    Pixels 0..16 are scaled to 0..255. They come without a split; every fifth image of each class
    (positions 4, 9, 14, … in the order of the file) is a test image: 1,442 and 355.
    """

    key: str = "digits"

    def identity(self) -> str:
        """The rule of the split."""
        return "digits/every-fifth"

    def require(self) -> None:
        """Nothing: the images ship with scikit-learn."""

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # (N, 1, 8, 8)
        labels = bunch.target.astype(np.int64)
        position = np.zeros(len(labels), dtype=np.int64)  # within the image's class
        for c in range(10):
            position[labels == c] = np.arange((labels == c).sum())
        test = position % 5 == 4
        for split, chosen in (("train", ~test), ("test", test)):
            writer.put(f"{split}_images", images[chosen])
            writer.put(f"{split}_labels", labels[chosen])
        if progress is not None:
            progress(len(labels), len(labels))
        return tuple(str(c) for c in range(10))


@dataclass(frozen=True)
class TorchvisionSet:
    """A data set that torchvision can download into `raw` and read from there."""

    key: str
    class_name: str
    num_classes: int
    image_shape: tuple[int, int, int]
    num_train: int
    num_test: int
    split_argument: bool = False  # split="train" instead of train=True
    raw: Path = Path()
    command: str = ""
    download: bool = False

    def identity(self) -> str:
        """Constant: torchvision checks what it downloads against fixed checksums."""
        return f"torchvision/{self.class_name}"

    def require(self) -> None:
        """Raise `DataError` with the command to run when there are no raw files."""
        if not self.download and not self.raw.is_dir():
            raise self._missing()

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        names: tuple[str, ...] = ()
        for split in ("train", "test"):
            dataset = self._open(split)
            images = np.asarray(dataset.data)
            if images.ndim == 3:  # grey, without a channel dimension
                images = images[:, None]
            elif images.shape[1:] != self.image_shape:  # channels last
                images = images.transpose(0, 3, 1, 2)
            targets = dataset.targets if hasattr(dataset, "targets") else dataset.labels
            writer.put(f"{split}_images", images)
            writer.put(f"{split}_labels", np.asarray(targets, dtype=np.int64))
            names = tuple(getattr(dataset, "classes", None) or map(str, range(self.num_classes)))
            if progress is not None:
                total = self.num_train + self.num_test
                progress(self.num_train if split == "train" else total, total)
        return names

    def _open(self, split: str) -> Any:
        from torchvision import datasets

        kwargs = {"split": split} if self.split_argument else {"train": split == "train"}
        broken = (
            *(OSError, RuntimeError, ValueError, EOFError, KeyError, AssertionError),
            *(http.client.HTTPException, tarfile.TarError, pickle.UnpicklingError),
        )
        timeout = socket.getdefaulttimeout()
        socket.setdefaulttimeout(TIMEOUT)
        try:
            # torchvision prints to stdout, which belongs to results.
            with contextlib.redirect_stdout(sys.stderr):
                return getattr(datasets, self.class_name)(
                    str(self.raw), download=self.download, **kwargs
                )
        except broken as err:
            if not self.download:
                raise self._missing() from err
            reason = (str(err).splitlines() or [type(err).__name__])[0]
            raise DataError(
                f"{self.key} could not be downloaded or read ({reason}); without a network put"
                f" torchvision's files for {self.class_name} into {self.raw} by hand, or use a"
                " Hugging Face Parquet folder: hub:PATH"
            ) from err
        finally:
            socket.setdefaulttimeout(timeout)

    def _missing(self) -> DataError:
        return DataError(
            f"data set {self.key!r} is not in the cache, and no intact files of it are in"
            f" {self.raw}; run: {self.command}"
        )


def prepare_command(name: str, data_dir: Path | None) -> str:
    """The command that gets a data set, with the data folder when one was given."""
    given = [] if data_dir is None else ["--data-dir", str(data_dir)]
    return shlex.join(["fedbench", "data", "prepare", name, *given])


@dataclass(frozen=True)
class ImageFolders:
    """`folder:PATH`: PATH/train/CLASS/… and PATH/test/CLASS/… (or val/, validation/).

    Classes are numbered by the sorted folder names and images follow in sorted order, as
    torchvision's ImageFolder does; two deviations: names with a leading dot are skipped, and grey
    images stay grey.
    """

    path: Path

    @property
    def key(self) -> str:
        """Folder name and a hash of the whole path."""
        return path_key("folder", self.path)

    def identity(self) -> str | None:
        """Hash over names, sizes and times of all files."""
        if not self.path.exists():
            return None
        _, train, test = self._splits()
        return f"folder/{files_digest(self.path, [file for file, _ in (*train, *test)])}"

    def require(self) -> None:
        """Raise `DataError` when the folder is missing."""
        require_folder("folder", self.path)

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        classes, train, test = self._splits()
        train_pictures = [Picture(file, None, None, label) for file, label in train]
        test_pictures = [Picture(file, None, None, label) for file, label in test]
        return write_splits(writer, train_pictures, test_pictures, classes, progress)

    def _splits(self) -> tuple[tuple[str, ...], list[tuple[Path, int]], list[tuple[Path, int]]]:
        """Class names and, per split, the files with their labels."""
        require_folder("folder", self.path)
        test = next((self.path / n for n in TEST_FOLDERS if (self.path / n).is_dir()), None)
        if not (self.path / "train").is_dir() or test is None:
            raise DataError(
                f"folder:{self.path} needs the folders train/ and test/ (or val/) with one folder"
                " per class in each"
            )
        classes, test_classes = _class_folders(self.path / "train"), _class_folders(test)
        if unknown := sorted(set(test_classes) - set(classes)):
            raise DataError(f"{test} has classes that train/ has not: {', '.join(unknown)}")
        return (
            tuple(classes),
            _labelled(self.path / "train", classes),
            _labelled(test, classes),
        )


def _labelled(folder: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """The images of a split with their labels."""
    found = [
        (file, label) for label, name in enumerate(classes) for file in images_in(folder / name)
    ]
    with_images = {label for _, label in found}
    empty = [name for label, name in enumerate(classes) if label not in with_images]
    if empty and folder.name == "train":
        raise DataError(f"{folder} has no images of {', '.join(empty)}; remove these folders")
    if not found:
        raise DataError(f"{folder} has no images ({' '.join(sorted(IMAGE_SUFFIXES))})")
    return found


def _class_folders(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """The image files anywhere below a folder, sorted, without those with a leading dot."""
    return [
        Path(place, name)
        for place, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
        if Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")
    ]


def path_key(kind: str, path: Path) -> str:
    """Cache folder name of a data set that lives at `path`."""
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.lower()).strip("-")[:40]
    return "-".join(filter(None, (kind, slug, hashlib.sha256(os.fsencode(path)).hexdigest()[:12])))


def files_digest(root: Path, files: Iterable[Path]) -> str:
    """SHA-256 over relative names, sizes and modification times."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        line = f"{file.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(os.fsencode(line))
    return digest.hexdigest()


def require_folder(kind: str, path: Path) -> None:
    """Raise `DataError` unless `path` is a folder."""
    if not path.is_dir():
        found = "is a file, not a folder" if path.exists() else "does not exist"
        raise DataError(f"{kind}:{path}: the path {found}")
