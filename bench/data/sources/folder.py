"""`folder:PATH`, images in class folders as torchvision's ImageFolder reads them, and TinyImageNet.

Hugging Face's `datasets` takes the innermost folder as the class, knows no folder of unlabelled
images, and needs 4 s of processor time to list 21,000 files where this module needs 0.1 s.
"""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.sources.base import SOURCES, SPLIT_NAMES, Entry, PathSource, check_utf8
from fedbench.bench.data.sources.decode import Picture, Splits
from fedbench.bench.system.errors import DataError

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
)
TEST = ("test", "val", "validation", "valid")
UNLABELLED = [name for name, split in SPLIT_NAMES.items() if split == "unlabelled"]


class ImageFolders(PathSource):
    """`folder:PATH`: PATH/train/CLASS/… and PATH/test/CLASS/… (or val/, validation/, valid/).

    Without a test folder one image of six is held out by its content; without a train folder too,
    PATH itself has the class folders. Images in PATH/unlabelled (or unlabeled, unsupervised) are
    training images without a label, and so are all images of a folder without class folders.
    Classes are numbered by the sorted folder names, as torchvision's ImageFolder does; two
    deviations: names with a leading dot are skipped, and grey images stay grey.
    """

    kind = "folder"

    def files(self) -> list[Path]:
        splits = self.splits(self.path)
        return [Path(p.file) for part in (*splits.train, *splits.test) for p in part]

    def splits(self, scratch: Path) -> Splits:
        test = next((self.path / n for n in TEST if (self.path / n).is_dir()), None)
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
                    f"folder:{self.path} needs train/ and test/ (or val/) with a folder per class"
                    " in each, or a folder per class, or images"
                )
            unlabelled = [] if test is None else [_unlabelled(images_in(test))]
            return Splits([_unlabelled(pictures)], unlabelled, ())
        parts = [_pictures(train, classes), _unlabelled(extra)]
        if test is None:
            return Splits(parts, [], tuple(classes))
        if unknown := sorted(set(_class_folders(test)) - set(classes)):
            raise DataError(f"{test} has classes that train/ has not: {', '.join(unknown)}")
        return Splits(parts, [_pictures(test, classes)], tuple(classes))


SOURCES["folder:PATH"] = Entry(
    ImageFolders.make, "a folder of images: train/CLASS/ and test/CLASS/, or CLASS/"
)


def _unlabelled(files: list[Path]) -> list[Picture]:
    return [Picture(file, HIDDEN, str(file)) for file in files]


def _pictures(folder: Path, classes: list[str]) -> list[Picture]:
    """Images of a split, class by class."""
    files = [images_in(folder / name) for name in classes]
    empty = [name for name, images in zip(classes, files, strict=True) if not images]
    if empty and folder.name not in TEST:
        names = ", ".join(empty)
        raise DataError(f"{folder} has no images of {names}; remove these classes, or add images")
    pictures = [
        Picture(file, label, str(file)) for label, images in enumerate(files) for file in images
    ]
    if not pictures:
        raise DataError(f"{folder} has no images ({' '.join(sorted(IMAGE_SUFFIXES))})")
    return pictures


def _class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, without hidden and unlabelled ones, sorted."""
    folders = (f.name for f in folder.iterdir() if f.is_dir())
    names = sorted(name for name in folders if name[0] != "." and name not in UNLABELLED)
    for name in names:
        check_utf8(name)
    return names


def images_in(folder: Path) -> list[Path]:
    """List the image files at any depth below a folder, links followed, sorted; none without it."""
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


FOLDER = "tiny-imagenet-200"
GET = f"get http://cs231n.stanford.edu/{FOLDER}.zip, then: unzip {FOLDER}.zip -d {{raw}}"


class TinyImageNet(PathSource):
    """200 classes, 500 training and 50 validation images of 64x64 pixels each.

    `wnids.txt` names the classes, numbered by their sorted names. The test images are those of
    `val/`, since the classes of `test/` are not public.
    """

    kind = "tiny-imagenet"

    def files(self) -> list[Path]:
        """Return the two lists and the images of both splits."""
        lists = [self.path / "wnids.txt", self.path / "val" / "val_annotations.txt"]
        pictures = (*_pictures(self.path / "train", self._classes()), *self._test())
        return [*lists, *(Path(picture.file) for picture in pictures)]

    def require(self) -> None:
        if not self.path.is_dir():
            get = GET.format(raw=shlex.quote(str(self.path.parent)))
            raise DataError(
                f"TinyImageNet is not in {str(self.path)!r}; {get}, or name tiny-imagenet:PATH"
            )

    def splits(self, scratch: Path) -> Splits:
        classes = self._classes()
        train = _pictures(self.path / "train", classes)
        return Splits([train], [list(self._test())], tuple(classes))

    def _classes(self) -> list[str]:
        classes = sorted((self.path / "wnids.txt").read_text(encoding="utf-8").split())
        if not classes or len(set(classes)) < len(classes):
            raise DataError(f"{self.path / 'wnids.txt'} must name each class once, one per line")
        return classes

    def _test(self) -> Iterator[Picture]:
        listed = self.path / "val" / "val_annotations.txt"
        numbers = {name: label for label, name in enumerate(self._classes())}
        for number, line in enumerate(listed.read_text(encoding="utf-8").splitlines(), 1):
            name, _, rest = line.partition("\t")
            wnid = rest.partition("\t")[0]
            file = self.path / "val" / "images" / name
            if wnid not in numbers:
                raise DataError(f"{listed}, line {number}: class {wnid!r} is not in wnids.txt")
            yield Picture(file, numbers[wnid], str(file))


SOURCES["tiny-imagenet"] = Entry(
    lambda request: TinyImageNet(request.root / "raw" / FOLDER),
    GET,
    (200, (3, 64, 64), 100_000, 10_000),
)
SOURCES["tiny-imagenet:PATH"] = Entry(TinyImageNet.make, "its unzipped folder")
