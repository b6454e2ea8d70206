"""What a source of a data set is, and the registry of the names that `data.name` takes."""

import hashlib
import itertools
import os
import re
import shlex
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np

from fedbench.bench.data.cache import ARRAYS, SPLITS, CacheWriter
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources.decode import Splits, decoded
from fedbench.bench.system.errors import (
    ConfigError,
    DataError,
    PluginError,
    UnknownNameError,
    nearest,
)
from fedbench.bench.system.files import user_path
from fedbench.bench.system.plugins import load, load_all

READS = 2
"""Raised when the files of one source are read otherwise than before: caches are built again."""


_MOST_FILES = 10_000
"""Files of a folder that are looked at to see its kind."""


class Source(ABC):
    """Origin of one data set, from which its cache is built."""

    key: str
    """Name of the cache folder: letters, digits and dashes."""

    @abstractmethod
    def identity(self) -> str | None:
        """Return a text that changes whenever the source does; None when the source is gone."""

    def require(self) -> None:  # noqa: B027 (some sources are always there)
        """Raise `DataError` with the remedy when there is nothing to build from."""

    @abstractmethod
    def splits(self, scratch: Path) -> Splits:
        """Return the images of both splits; files may be unpacked into a folder that is empty."""


@dataclass(frozen=True)
class Request:
    """What a source is made from."""

    name: str  # `data.name` of a configuration
    root: Path  # folder of all caches; downloads go to its folder `raw`
    reading: Reading
    command: str  # shell command that prepares the data set
    download: bool


class Entry(NamedTuple):
    """One name that `data.name` takes, such as `digits`, or a form of names, such as `hub:PATH`."""

    make: Callable[[Request], Source]  # makes the source
    # how a user gets the images; `{raw}` is the folder of downloads, "" = `fedbench data prepare`
    get: str = ""
    size: tuple[int, tuple[int, int, int], int, int] | None = None  # classes, (C, H, W), N, M
    has_columns: bool = False  # whether `data.label_column` and `data.natural_column` can name one
    suffixes: frozenset[str] = frozenset()  # of files that show a folder to be such a set


SOURCES: dict[str, Entry] = {}
"""Names and forms of names that ship; modules of this package add theirs when imported."""

PLUGINS = "fedbench.datasets"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@cache
def entries() -> Mapping[str, Entry]:
    """Return all entries by name or form of names, with the plugins'."""
    return {**SOURCES, **load_all(PLUGINS, _plugin)}


def _plugin(point: EntryPoint) -> Entry:
    taken = {name.partition(":")[0] for name in SOURCES}
    if point.name in taken or not _NAME.fullmatch(point.name):
        raise PluginError("its name must be a new one, of lower-case words joined by '-'")
    return Entry(partial(PluginSource.make, load(point)))


@dataclass(frozen=True)
class PluginSource(Source):
    """A source of a package, which writes arrays `train_images` and so on, in either layout."""

    key: str
    plugin: Any

    @classmethod
    def make(cls, plugin_class: Callable[[Path], Any], request: Request) -> Self:
        plugin = plugin_class(request.root / "raw" / request.name)
        if plugin.key != request.name:
            raise PluginError(
                f"data set {request.name!r}: its source's key must be that (got {plugin.key!r})"
            )
        return cls(request.name, plugin)

    def identity(self) -> str | None:
        return cast("str | None", self.plugin.identity())

    def require(self) -> None:
        self.plugin.require()

    def splits(self, scratch: Path) -> Splits:
        names = tuple(self.plugin.write(CacheWriter(scratch), None) or ())  # none: its labels
        if missing := [name for name in ARRAYS if not (scratch / f"{name}.npy").is_file()]:
            raise PluginError(f"data set {self.key!r}: write() has not put {missing[0]!r}")

        arrays = {name: np.load(scratch / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        train, test = (
            decoded(arrays[f"{split}_images"], arrays[f"{split}_labels"], f"{self.key} ({split})")
            for split in SPLITS
        )
        return Splits([train], [test], names)


def entry_of(name: str) -> Entry:
    """Return the entry that a data set's name belongs to."""
    kind, colon, _ = name.partition(":")
    for form, entry in entries().items():
        if form == name or (colon and form.startswith(f"{kind}:")):
            return entry
    if not colon and (known := with_kind(name)) != name:
        raise ConfigError(f"data set {name!r}: a path needs its kind before it, as in {known}")
    if colon:
        raise UnknownNameError("data set", name, entries())
    if len(Path(name).parts) > 1:
        raise ConfigError(f"no file or folder {name!r}; `fedbench datasets` lists sets with a name")
    near = nearest(name, (path.name for path in Path().glob("*/")))
    here = f"did you mean the folder {near!r}?" if near else "no file or folder here has that name"
    raise UnknownNameError("data set", name, entries(), f"; {here}")


def with_kind(name: str) -> str:
    """Return the name of a data set; a path gets its kind before it, as its files show it.

    >>> with_kind("digits"), with_kind("Folder:photos")
    ('digits', 'folder:photos')

    Raises:
        ConfigError: for a folder that shows no kind, or several.
    """
    kind, colon, rest = name.partition(":")
    if colon:
        return f"{kind.lower()}:{rest}"
    if name in entries():
        return name
    path = user_path(name)
    try:
        if not path.is_dir():
            return f"file:{name}" if path.is_file() else name
    except OSError:  # of a name that is longer than any file's
        return name
    walk = os.walk(path, followlinks=True)
    files = (file for _, _, files in walk for file in files)
    found = {Path(file).suffix.lower() for file in itertools.islice(files, _MOST_FILES)}
    shown = sorted(form.partition(":")[0] for form, e in entries().items() if e.suffixes & found)
    if len(shown) == 1:
        return f"{shown[0]}:{name}"
    what = "files of several kinds" if shown else "no images, Parquet, Arrow or tar files"
    forms = " or ".join(f"{kind}:{name}" for kind in shown or ("folder", "hub"))
    raise ConfigError(f"the folder {name!r} holds {what}; write {forms}")


def prepare_command(name: str, data_dir: Path | None, reading: Reading = PLAIN) -> str:
    """Return the command that prepares a data set, with the data folder when one was given."""
    option = [] if data_dir is None else ["--data-dir", str(data_dir)]
    for key, value in reading.settings().items():
        option += ["--set", f"{key}={value}"]
    return shlex.join(["fedbench", "data", "prepare", name, *option])


@dataclass(frozen=True)
class PathSource(Source):
    """A source in a folder or file of the user's, named `kind:PATH`."""

    path: Path
    reading: Reading = PLAIN
    kind: ClassVar[str]

    def __str__(self) -> str:
        """The name of the data set, with an absolute path."""
        return f"{self.kind}:{self.path}"

    @classmethod
    def make(cls, request: Request) -> Self:
        """Return the source at the path that follows the colon."""
        text = request.name.partition(":")[2]
        if not text:
            raise ConfigError(f"data set {request.name!r} lacks its path; write {cls.kind}:PATH")
        path = user_path(text).resolve()
        check_utf8(str(path))
        return cls(path, request.reading)

    @property
    def key(self) -> str:  # type: ignore[override]
        """Kind, folder name and a hash of the whole path: `lab1/photos` is not `lab2/photos`."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.path.name.lower()).strip("-")[:40]
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return "-".join(filter(None, (self.kind, slug, digest)))

    def identity(self) -> str | None:
        """Hash over names, sizes and modification times of all files; None without the folder."""
        if not self.path.exists():
            return None
        self.require()
        digest = hashlib.sha256()
        folder = self.path if self.path.is_dir() else self.path.parent
        below = f"{folder}{os.sep}"
        for file in self.files():
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
                raise DataError(f"{file} is a pipe, a socket or a device, not a file; remove it")
            text = str(file)  # relpath takes as long as all else here
            place = text[len(below) :] if text.startswith(below) else os.path.relpath(file, folder)
            line = f"{place}\0{status.st_size}\0{status.st_mtime_ns}\n"
            digest.update(os.fsencode(line))
        return f"{self.kind}/{READS}/{digest.hexdigest()}"

    def require(self) -> None:
        if not self.path.is_dir():
            packed = self.path.name.lower().endswith(ARCHIVES)
            remedy = "unpack it, and name the folder" if packed else f"one file is file:{self.path}"
            is_file = f"is a file, not a folder; {remedy}"
            reason = is_file if self.path.exists() else "does not exist"
            raise DataError(f"{self}: the path {reason}")

    @abstractmethod
    def files(self) -> Iterable[Path]:
        """Return all files that are read, in a fixed order."""


ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".rar", ".7z")
"""Endings of files of which users read the unpacked folder."""

_HIDDEN = frozenset(
    {
        "__macosx", "@eadir", "$recycle.bin", "#recycle", "lost+found", "__pycache__",
        "system volume information",
    }
)  # fmt: skip
"""Folders of systems and programs, in lower case, which may hold other forms of the images."""


def is_hidden(name: str) -> bool:
    """True for a file or folder that is not the user's own: `.Trash`, `._a.png`, `__MACOSX`."""
    return name.startswith(".") or name.lower() in _HIDDEN


def check_utf8(name: str) -> None:
    """Refuse a name from the file system that results could not hold."""
    try:
        name.encode()
    except UnicodeEncodeError as err:
        raise DataError(f"the name {os.fsencode(name)!r} is not UTF-8 text; rename it") from err
