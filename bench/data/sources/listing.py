"""A folder as a tree of images: what is one, what is hidden, and what is left out and said."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedbench.bench.data.sources.base import check_utf8, is_hidden
from fedbench.bench.data.sources.decode import LeftOut
from fedbench.bench.data.sources.image_files import looks_like_image
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

    @property
    def is_empty(self) -> bool:
        """True if no file is in it at any depth."""
        here = self.images or self.others
        return not here and all(each.is_empty for each in self.folders.values())

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
                    folder.folders[entry.name] = cls.read(file, (*above, identity))
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
