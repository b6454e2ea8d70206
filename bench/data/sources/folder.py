"""`folder:PATH`, images in class folders as torchvision's ImageFolder reads them, and TinyImageNet.

Hugging Face's `datasets` takes the innermost folder as the class, knows no folder of unlabelled
images, and needs 4 s of processor time to list 21,000 files where this module needs 0.1 s.
"""

import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.sources.base import SOURCES, Entry, PathSource, check_utf8, is_hidden
from fedbench.bench.data.sources.decode import VALIDATION, LeftOut, Picture, Splits, check_spelling
from fedbench.bench.data.sources.image_files import looks_like_image
from fedbench.bench.data.sources.splits import KNOWN, Split, is_split_name, nearest, some, split_of
from fedbench.bench.system.errors import DataError

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg", ".jpeg", ".jpe", ".jfif", ".pjpeg", ".pjp", ".png", ".apng", ".gif", ".webp",
        ".bmp", ".dib", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
    }
)  # fmt: skip
_NO_IMAGES = frozenset(
    {
        ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml",
        ".html", ".htm", ".py", ".ipynb", ".sh", ".log", ".ini", ".db", ".lnk", ".url", ".md5",
    }
)  # fmt: skip
"""Endings of files that are left out without a warning."""
_ENDING = re.compile(r"\.(?=.*[a-z])[\w~]{1,8}")  # not of `scan.001`, nor of `a.jpg?width=200`
WRAPPERS = frozenset(
    {"images", "image", "imgs", "img", "photos", "pictures", "data", "dataset", "jpegimages"}
)
"""Names of folders that are no class when they are the only one."""
TABLES = frozenset({"metadata.csv", "metadata.jsonl", "metadata.parquet"})
"""Files in which the `datasets` library looks for the labels of a folder of images."""


@dataclass
class Folder:
    """A folder, the folders in it by name, and its files."""

    path: Path
    folders: dict[str, "Folder"] = field(default_factory=dict)
    images: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)  # that are not read
    hidden: list[Path] = field(default_factory=list)  # files and folders that nobody sees

    @cached_property
    def all_images(self) -> list[Path]:
        """Images at any depth, sorted."""
        return sorted([*self.images, *(i for f in self.folders.values() for i in f.all_images)])

    @property
    def with_images(self) -> dict[str, "Folder"]:
        """Folders in it that have images at any depth."""
        return {name: each for name, each in self.folders.items() if each.all_images}

    def all_folders(self) -> Iterator["Folder"]:
        """Yield the folder and those at any depth in it."""
        yield self
        for folder in self.folders.values():
            yield from folder.all_folders()

    @classmethod
    def read(cls, path: Path, above: tuple[tuple[int, int], ...] = ()) -> "Folder":
        """List a folder to any depth, links followed; `above` are the identities of its parents."""
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise DataError(f"{path} is a link to a folder that it lies in; remove it")
        folder = cls(path)
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                file = path / entry.name
                if is_hidden(entry.name):
                    folder.hidden.append(file)
                elif entry.is_dir():
                    check_utf8(entry.name)
                    # Archives made on a Mac write ä as a and two dots, others as one letter.
                    name = unicodedata.normalize("NFC", entry.name)
                    if name in folder.folders:
                        raise DataError(
                            f"{path} holds two folders {name!r}, whose letters are encoded in two"
                            " ways (Unicode NFC and NFD); merge them"
                        )
                    folder.folders[name] = cls.read(file, (*above, identity))
                elif is_image(file):
                    folder.images.append(file)
                else:
                    folder.others.append(file)
        return folder

    def left_out(self) -> list[LeftOut]:
        """Return the files at any depth that are not read, by their endings, and hidden ones."""
        by_ending: dict[str, list[Path]] = {}
        for folder in self.all_folders():
            for file in folder.others:
                by_ending.setdefault(_ending(file), []).append(file)
        hidden = [file for folder in self.all_folders() for file in folder.hidden]
        found = [
            LeftOut(f"ending {ending}", files, said=ending not in _NO_IMAGES)
            for ending, files in sorted(by_ending.items())
            if ending
        ]
        none = LeftOut("no ending, and not of an image", by_ending.get("", []), said=False)
        return [*found, none, LeftOut("hidden", hidden, said=False)]


def is_image(file: Path) -> bool:
    """True by the ending of a name that is not hidden, or without one by the first bytes."""
    if is_hidden(file.name):
        return False
    if file.suffix.lower() in IMAGE_SUFFIXES:
        return True
    return not _ending(file) and looks_like_image(file)


def _ending(file: Path) -> str:
    """Return the ending of a name in lower case; empty where it says no kind of file."""
    ending = file.suffix.lower()
    return ending if _ENDING.fullmatch(ending) else ""


class ImageFolders(PathSource):
    """`folder:PATH`: a folder for each split with a folder for each class, or the latter alone.

    The names of the splits are those of `split_of`, in any case and at any place, below folders
    that hold nothing else; images of `validation` are test images where no folder says `test`.
    Without a test folder one image of six is held out by its content. Images in `unlabelled/` are
    training images without a label, and so are all images of a folder without class folders.
    Classes are numbered by the sorted folder names, as torchvision's ImageFolder does; three
    deviations: hidden folders are skipped, grey images stay grey, and folders that could be classes
    as well as splits are refused.
    """

    kind = "folder"

    def files(self) -> list[Path]:
        splits = self.splits(self.path)
        return [Path(p.file) for part in (*splits.train, *splits.test) for p in part]

    def splits(self, scratch: Path) -> Splits:
        whole = Folder.read(self.path)
        root = _inner(whole)
        others = Counter(f.suffix.lower() for each in whole.all_folders() for f in each.others)
        if not root.all_images and (others or not root.folders):
            endings = some([f"{n} x {ending or 'no ending'}" for ending, n in others.most_common()])
            raise DataError(
                f"{self} needs train/ and test/ (or val/) with a folder per class in"
                f" each, or a folder per class, or images ({' '.join(sorted(IMAGE_SUFFIXES))});"
                f" found: {endings or 'no file'}"
            )
        found = _splits_of(root)
        if "train" not in found:
            return Splits([_pictures(found["unlabelled"])], [], (), whole.left_out())
        train = _inner(found["train"], "train")
        test = found.get("test") or found.get("validation")
        extra = _pictures(found.get("unlabelled"))
        left_out = [*whole.left_out(), _beside(train)]
        if found["train"] is not root:
            left_out.append(_beside(root))
        if "test" in found and "validation" in found:
            left_out.append(LeftOut(VALIDATION, found["validation"].all_images))
        if train.images and not train.with_images:
            _check_tables(whole)
            unlabelled = [] if test is None else [_pictures(test)]
            return Splits([[*_pictures(train), *extra]], unlabelled, (), left_out)
        classes, read_as = tuple(train.folders), _inside(train)
        parts = [_training_pictures(train, classes), extra]
        check_spelling(classes, test.folders if test else (), str(train.path))
        if test is None:
            if found["train"] is root:
                _check_classes(root)
            _check_unlabelled(train, ())
            return Splits(parts, [], classes, left_out, read_as)
        if "test" not in found:
            read_as.append("test images: those of validation")
        test = _inner(test, split_of(test.path.name, strict=False))
        left_out.append(_beside(test))
        _check_unlabelled(train, test.folders)
        if unknown := sorted(set(test.folders) - set(classes)):
            listed = ", ".join(f"{name}{nearest(name, classes)}" for name in unknown)
            raise DataError(
                f"{test.path} has classes that {train.path} has not: {listed}; training images have"
                f" {some(classes)}; spell classes alike, or leave them out"
            )
        if not test.with_images:
            raise DataError(
                f"{test.path} has {len(test.images)} images in no class folder and none in one;"
                f" make the folders of {train.path} there, or remove {test.path.name}/"
            )
        return Splits(parts, [_by_class(test, classes)], classes, left_out, read_as)


SOURCES["folder:PATH"] = Entry(
    ImageFolders.make,
    "a folder of images: train/CLASS/ and test/CLASS/, or CLASS/",
    suffixes=IMAGE_SUFFIXES,
)


def _inner(folder: Folder, split: str | None = None) -> Folder:
    """Descend below folders that hold one folder with images and nothing else.

    A folder named after another split than the given one is kept, and so is one with images of its
    own that may be a class.
    """
    while not folder.images and len(folder.with_images) == 1:
        ((name, inner),) = folder.with_images.items()
        says = split_of(name, strict=False)
        # Beside an empty folder it is one class of two, of which the other lacks its images.
        is_empty = [
            not any(each.images or each.others for each in f.all_folders())
            for f in folder.folders.values()
        ]
        is_class = any(is_empty) or not inner.with_images
        if (says and says != split) or (is_class and not says and name.lower() not in WRAPPERS):
            break
        folder = inner
    return folder


def _splits_of(root: Folder) -> dict[Split, Folder]:
    """Return the folder of each split; `root` as that of training images where no folder says one.

    Raises `DataError` where a folder may be a class as well as a split, or none says its split.
    """
    said = {name: split for name in root.folders if (split := split_of(name))}
    rest = [name for name in root.with_images if name not in said]
    nested = any(root.folders[name].with_images for name in said)
    if not nested and not any(map(is_split_name, said)) and len({*said.values()}) < 2 <= len(rest):
        said = {}  # such as `bullet_train` among other classes
    if not said:
        return {"train": root}
    if not nested and len(said) > 1 and not any(map(is_split_name, said)):
        raise DataError(
            f"{root.path}: {some([*said])} may be classes, or splits without labels; move classes"
            " into train/, or name splits train and test alone"
        )
    if rest:
        listed, others = ", ".join(said), some(rest)
        remedy = (
            f"rename them ({KNOWN}), or move them elsewhere"
            if nested
            else "if all are classes, move them into train/; if not, give each split its class"
            " folders and move the others elsewhere"
        )
        raise DataError(
            f"{root.path}: {listed} may say a split, and these beside it do not: {others}; {remedy}"
        )
    found: dict[Split, Folder] = {}
    for name, split in said.items():
        if split in found and (split != "validation" or "test" not in said.values()):
            raise DataError(
                f"{root.path}: {found[split].path.name} and {name} both hold images of {split};"
                " merge them, or name one of them"
            )
        found[split] = root.folders[name]
    if "train" not in found and set(found) != {"unlabelled"}:
        raise DataError(f"{root.path} has {', '.join(said)}, but no train/")
    for split, folder in found.items():
        if split != "unlabelled" and not folder.all_images:
            raise DataError(f"{folder.path} has no images of {split}; remove it, or add images")
    return found


def _check_classes(root: Folder) -> None:
    """Raise `DataError` if folders in the class folders may be classes, and these be splits."""
    if any(folder.images for folder in root.folders.values()):
        return
    times = Counter(name for folder in root.with_images.values() for name in folder.with_images)
    if shared := sorted(name for name, count in times.items() if count > 1):
        raise DataError(
            f"{root.path}: {some(list(root.with_images))} hold folders of the same names"
            f" ({some(shared)}); if they are splits, rename them ({KNOWN}); if they are classes,"
            " move them into train/"
        )


def _check_unlabelled(train: Folder, of_test: Collection[str]) -> None:
    """Raise `DataError` if a folder among the classes may hold images of none."""
    for name in train.folders if len(train.folders) > 1 else ():
        if name not in of_test and is_split_name(name) and split_of(name) == "unlabelled":
            raise DataError(
                f"{train.path / name} may be a class, or images without a label; rename it, or"
                " move it beside train/"
            )


def _check_tables(whole: Folder) -> None:
    """Raise `DataError` if a table beside images without class folders may have their labels."""
    tables = [f for each in whole.all_folders() for f in each.others if f.name.lower() in TABLES]
    if tables:
        one = f"file:{tables[0]}" if [t.suffix for t in tables] == [".csv"] else "file:FILE.csv"
        raise DataError(
            f"folder:{whole.path} has no class folders, but {some(list(map(str, tables)))}, which"
            f" may have the labels; read {one}, one CSV with columns file_name and label (and"
            " split), or move the tables elsewhere to train without labels"
        )


def _beside(folder: Folder) -> LeftOut:
    """Images that lie in no folder while others do."""
    return LeftOut("in no class folder", folder.images if folder.with_images else [])


def _inside(folder: Folder) -> list[str]:
    """Say which folders lie in class folders, whose images are read as of these classes."""
    within = [
        f"{name}/{inner}" for name, each in folder.folders.items() for inner in each.with_images
    ]
    text = f"folders inside class folders, as of their class: {len(within)} ({some(within)})"
    return [text] if within else []


def _pictures(folder: Folder | None, label: int = HIDDEN) -> list[Picture]:
    return [Picture(file, label, str(file)) for file in (folder.all_images if folder else ())]


def _by_class(folder: Folder, classes: Sequence[str]) -> list[Picture]:
    """Images of a split, class by class."""
    found = [_pictures(folder.folders.get(name), label) for label, name in enumerate(classes)]
    return [picture for of_class in found for picture in of_class]


def _training_pictures(folder: Folder, classes: Sequence[str]) -> list[Picture]:
    """The same, where no class may be empty."""
    if empty := [name for name in classes if name not in folder.with_images]:
        folders = (folder.folders[name] for name in empty if name in folder.folders)
        others = [file.name for each in folders for file in each.others]
        read = f" (not read: {some(others)})" if others else ""
        raise DataError(
            f"{folder.path} has no images of {', '.join(empty)}{read}; remove these classes, or add"
            " images"
        )
    return _by_class(folder, classes)


FOLDER = "tiny-imagenet-200"
GET = f"get http://cs231n.stanford.edu/{FOLDER}.zip, then: unzip {FOLDER}.zip -d {{raw}}"


class TinyImageNet(ImageFolders):
    """200 classes, 500 training and 50 validation images of 64x64 pixels each.

    `wnids.txt` names the classes, numbered by their sorted names. The test images are those of
    `val/`, since the classes of `test/` are not public.
    """

    kind = "tiny-imagenet"

    def files(self) -> list[Path]:
        """Return the two lists and the images of both splits."""
        return [self.path / "wnids.txt", self.path / "val/val_annotations.txt", *super().files()]

    def require(self) -> None:
        if not self.path.is_dir():
            get = GET.format(raw=shlex.quote(str(self.path.parent)))
            raise DataError(
                f"TinyImageNet is not in {str(self.path)!r}; {get}, or name tiny-imagenet:PATH"
            )

    def splits(self, scratch: Path) -> Splits:
        named, listed = self.path / "wnids.txt", self.path / "val/val_annotations.txt"
        classes = sorted(named.read_text(encoding="utf-8").split())
        if not classes or len(set(classes)) < len(classes):
            raise DataError(f"{named} must name each class once, one per line")
        numbers = {name: number for number, name in enumerate(classes)}
        train = _training_pictures(Folder.read(self.path / "train"), classes)
        test = []
        for number, line in enumerate(listed.read_text(encoding="utf-8").splitlines(), 1):
            name, wnid, *_ = [*line.split("\t"), ""]
            if wnid not in numbers:
                raise DataError(f"{listed}, line {number}: class {wnid!r} is not in {named.name}")
            file = self.path / "val/images" / name
            test.append(Picture(file, numbers[wnid], str(file)))
        return Splits([train], [test], tuple(classes))


SOURCES["tiny-imagenet"] = Entry(
    lambda request: TinyImageNet(request.root / "raw" / FOLDER),
    GET,
    (200, (3, 64, 64), 100_000, 10_000),
)
SOURCES["tiny-imagenet:PATH"] = Entry(TinyImageNet.make, "its unzipped folder")
