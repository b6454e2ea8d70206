"""Sources of data sets: digits, torchvision sets, image folders."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import pickle
import re
import shlex
import socket
import stat
import sys
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from fedbench.bench.data.cache import CacheWriter, first_line
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources.decode import Picture, Progress, hold_out, write_splits
from fedbench.bench.system.errors import DataError

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
)
TEST_FOLDERS = ("test", "val", "validation", "valid")
UNLABELLED = ("unlabelled", "unlabeled", "unsupervised")
"""Names of folders and splits of training images without labels."""
TIMEOUT = 30.0  # seconds without an answer from a download server


class Source(Protocol):
    """Origin of one data set, from which its cache is built."""

    @property
    def key(self) -> str:
        """Name of the cache folder: letters, digits and dashes."""
        ...

    def identity(self) -> str | None:
        """Return a text that changes whenever the source does; None when the source is gone."""
        ...

    def require(self) -> None:
        """Raise `DataError` with the remedy when there is nothing to build from."""
        ...

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        ...


@dataclass(frozen=True)
class PathSource(ABC):
    """A source in a folder of the user's, named `kind:PATH`."""

    path: Path
    reading: Reading = PLAIN
    kind: ClassVar[str]

    @property
    def key(self) -> str:
        """Kind, folder name and a hash of the whole path."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.path.name.lower()).strip("-")[:40]
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return "-".join(filter(None, (self.kind, slug, digest)))

    def identity(self) -> str | None:
        """Hash over names, sizes and modification times of all files; None without the folder."""
        if not self.path.exists():
            return None
        self.require()
        digest = hashlib.sha256()
        for file in self.files():
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
                raise DataError(f"{file} is a pipe, a socket or a device, not a file; remove it")
            line = f"{file.relative_to(self.path)}\0{status.st_size}\0{status.st_mtime_ns}\n"
            digest.update(os.fsencode(line))
        return f"{self.kind}/{digest.hexdigest()}"

    def require(self) -> None:
        """Raise `DataError` unless the path is a folder."""
        if not self.path.is_dir():
            reason = "is a file, not a folder" if self.path.exists() else "does not exist"
            raise DataError(f"{self.kind}:{self.path}: the path {reason}")

    @abstractmethod
    def files(self) -> Iterable[Path]:
        """Return all files that are read, in a fixed order."""

    @abstractmethod
    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""


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
    parts: tuple[str, ...] = ("train",)  # splits of torchvision's that training images come from
    raw: Path = Path()
    command: str = ""
    download: bool = False

    def identity(self) -> str:
        """Return a constant: torchvision checks its downloads against fixed checksums."""
        return "/".join(("torchvision", self.class_name, *self.parts[1:]))

    def require(self) -> None:
        """Raise `DataError` with the command to run when there are no raw files."""
        if not self.download and not self.raw.is_dir():
            raise self._missing()

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        names: tuple[str, ...] = ()
        for split in ("train", "test"):
            blocks, labels = [], []
            for part in self.parts if split == "train" else (split,):
                dataset = self._open(part)
                images = np.asarray(dataset.data)
                if images.ndim == 3:  # grey, without a channel dimension
                    images = images[:, None]
                elif images.shape[1:] != self.image_shape:  # channels last
                    images = images.transpose(0, 3, 1, 2)
                targets = dataset.targets if hasattr(dataset, "targets") else dataset.labels
                blocks.append(images)
                labels.append(np.asarray(targets, dtype=np.int64))
            shape = (sum(map(len, blocks)), *blocks[0].shape[1:])
            writer.put_blocks(f"{split}_images", shape, blocks)
            writer.put(f"{split}_labels", np.concatenate(labels))
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
            # torchvision prints to stdout, which is for results.
            with contextlib.redirect_stdout(sys.stderr):
                return getattr(datasets, self.class_name)(
                    str(self.raw), download=self.download, **kwargs
                )
        except broken as err:
            if not self.download:
                raise self._missing() from err
            raise DataError(
                f"{self.key} could not be downloaded or read ({first_line(err)}); without a network"
                f" put torchvision's files for {self.class_name} into {self.raw} by hand, or use a"
                " Hugging Face Parquet folder: hub:PATH"
            ) from err
        finally:
            socket.setdefaulttimeout(timeout)

    def _missing(self) -> DataError:
        return DataError(
            f"data set {self.key!r} is not in the cache, and no intact files of it are in"
            f" {self.raw}; run: {self.command}"
        )


def prepare_command(name: str, data_dir: Path | None, reading: Reading = PLAIN) -> str:
    """Return the command that prepares a data set, with the data folder when one was given."""
    option = [] if data_dir is None else ["--data-dir", str(data_dir)]
    for key, value in reading.settings().items():
        option += ["--set", f"{key}={value}"]
    return shlex.join(["fedbench", "data", "prepare", name, *option])


class ImageFolders(PathSource):
    """`folder:PATH`: PATH/train/CLASS/… and PATH/test/CLASS/… (or val/, validation/, valid/).

    Without a test folder one image of six is held out by its content; without a train folder too,
    PATH itself has the class folders. Images in PATH/unlabelled (or unlabeled, unsupervised) are
    training images without a label, and so are all images of a folder without class folders.

    Classes are numbered by the sorted folder names and images follow in sorted order, as
    torchvision's ImageFolder does; two deviations: names with a leading dot are skipped, and grey
    images stay grey.
    """

    kind = "folder"

    def files(self) -> list[Path]:
        """Return the images of both splits."""
        _, train, test = self._splits()
        return [picture.file for picture in (*train, *test)]

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        classes, train, test = self._splits()
        if test:
            return write_splits(writer, train, test, classes, progress)
        parts = hold_out(train, f"folder:{self.path.name}")
        return write_splits(writer, *parts, classes, progress)

    def _splits(self) -> tuple[tuple[str, ...], list[Picture], list[Picture]]:
        """Return the class names, the training images and the test images."""
        test = next((self.path / n for n in TEST_FOLDERS if (self.path / n).is_dir()), None)
        train = self.path / "train"
        if not train.is_dir():
            if test is not None:
                raise DataError(f"folder:{self.path} has {test.name}/ but no train/")
            train = self.path
        classes = _class_folders(train)
        extra = [file for name in UNLABELLED for file in images_in(self.path / name)]
        if not classes:  # all images are unlabelled
            pictures = [*images_in(train), *(extra if train != self.path else ())]
            if not pictures:
                raise DataError(
                    f"folder:{self.path} needs the folders train/ and test/ (or val/) with one"
                    " folder per class in each, or one folder per class, or images without a label"
                )
            return (), _unlabelled(pictures), _unlabelled([] if test is None else images_in(test))
        pictures_of_train = [*_pictures(train, classes), *_unlabelled(extra)]
        if test is None:
            return tuple(classes), pictures_of_train, []
        test_classes = _class_folders(test)
        if unknown := sorted(set(test_classes) - set(classes)):
            raise DataError(f"{test} has classes that train/ has not: {', '.join(unknown)}")
        return tuple(classes), pictures_of_train, _pictures(test, classes)


def _unlabelled(files: list[Path]) -> list[Picture]:
    return [Picture(file, HIDDEN) for file in files]


def _pictures(folder: Path, classes: list[str]) -> list[Picture]:
    """Images of a split, class by class."""
    files = [images_in(folder / name) for name in classes]
    empty = [name for name, images in zip(classes, files, strict=True) if not images]
    if empty and folder.name == "train":
        raise DataError(f"{folder} has no images of {', '.join(empty)}; remove these folders")
    pictures = [Picture(file, label) for label, images in enumerate(files) for file in images]
    if not pictures:
        raise DataError(f"{folder} has no images ({' '.join(sorted(IMAGE_SUFFIXES))})")
    return pictures


def _class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, without hidden and unlabelled ones, sorted."""
    folders = (f.name for f in folder.iterdir() if f.is_dir())
    names = [name for name in folders if name[0] != "." and name not in UNLABELLED]
    for name in names:
        if not is_utf8(name):
            raise DataError(
                f"{folder}: the name of class folder {os.fsencode(name)!r} is not UTF-8 text;"
                " rename it"
            )
    return sorted(names)


def images_in(folder: Path) -> list[Path]:
    """List the image files at any depth below a folder, sorted; none without the folder.

    Links to folders are followed; names with a leading dot are skipped.

    Raises:
        DataError: a link leads back to a folder that it lies in.
    """
    return sorted(_images_below(folder, ())) if folder.is_dir() else []


def _images_below(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the images below a folder whose parents have the given devices and inodes."""
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise DataError(f"{folder} is a link to a folder that it lies in; remove it")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _images_below(folder / entry.name, (*above, identity))
            elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES and entry.name[0] != ".":
                yield folder / entry.name


def is_utf8(name: str) -> bool:
    """True unless a name from the file system has bytes that are not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
