"""The data sets by name, opened from the cache as read-only memory maps.

Sets of torchvision are downloaded by `prepare` alone; all others are built into the cache when they
are first loaded, which never uses the network. A data set is what it contains: its revision
identifies it. One whose content is known (`fedbench.bench.data.known`) has its name wherever it
lies; any other is called by its folder, `hub:FOLDER`, and that name says nothing about its content.
"""

import functools
import json
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.config import DataConfig
from fedbench.bench.data.cache import (
    ARRAYS,
    CLIENTS,
    SPLITS,
    Cache,
    CacheWriter,
    Verify,
    ensure,
    open_cache,
    read_meta,
)
from fedbench.bench.data.known import REVISIONS
from fedbench.bench.data.labels import balanced_subset, majority
from fedbench.bench.data.preview import preview_png
from fedbench.bench.data.reading import PLAIN, Reading, read_clients
from fedbench.bench.data.sources.base import (
    SOURCES,
    PathSource,
    Request,
    Source,
    entries,
    entry_of,
    prepare_command,
)
from fedbench.bench.data.sources.decode import Progress, Splits, write_splits
from fedbench.bench.data.survey import Survey, survey
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.system.files import atomic_write_bytes, home_folder, user_path
from fedbench.bench.system.text import utf8_text

_log = logging.getLogger(__name__)

DATA_DIR_VARIABLE = "FEDBENCH_DATA_DIR"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of one data set."""

    name: str  # of the whole set's content, such as `cifar10`; `hub:FOLDER` if it is not known
    revision: str  # SHA-256 over shapes, pixels and labels, subsets taken, and the classes
    whole: str  # revision of the set without subsets
    train_images: npt.NDArray[np.uint8] = field(repr=False)  # (N, C, H, W), memory-mapped
    train_labels: npt.NDArray[np.int64] = field(repr=False)  # (N,)
    test_images: npt.NDArray[np.uint8] = field(repr=False)  # (M, C, H, W), memory-mapped
    test_labels: npt.NDArray[np.int64] = field(repr=False)  # (M,)
    class_names: tuple[str, ...] = field(repr=False)
    path: Path  # the cache folder, from which other processes reopen it
    # (N,) client of each training image, where the data set was read with clients
    train_clients: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    # what speaks against the whole set, a line each; none of a cache that an older fedbench made
    cautions: tuple[str, ...] = field(default=(), repr=False)

    @property
    def num_classes(self) -> int:
        """Number of classes; labels are 0..num_classes - 1."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


_NOTES = ("sizes", "changed", "left_out", "read_as")


@dataclass(frozen=True)
class PreparedDataset:
    """A data set that is ready for use, and what was found in it."""

    path: Path  # the cache folder
    sha256: str  # the revision
    name: str
    num_train: int
    num_test: int
    survey: Survey  # of the decoded images
    sizes: Mapping[str, int] | None  # images by "width x height" as stored; None = not known
    changed: Mapping[str, int] | None  # images that were turned or put on white; None = not known
    left_out: Sequence[Mapping[str, Any]] | None  # `why`, `count`, `first` files; None = not known
    read_as: Sequence[str] | None  # where labels and test images were found; None = not known
    preview: Path | None = None  # picture with two images of each class

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; the counts of the survey are among them."""
        values = {name: value for name, value in vars(self).items() if name != "survey"}
        return {**values, **vars(self.survey)}


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    *,
    train_subset: int | None = None,
    test_subset: int | None = None,
    reading: Reading = PLAIN,
) -> Dataset:
    """Open a data set and build its cache first if need be; never uses the network.

    Raises `UnknownNameError` for another name, `ConfigError` for a subset larger than the set or a
    reading that it does not have, `DataError` if the data set is missing or torn.

    Args:
        name: one of `fedbench datasets`, with a path for `hub:` and the like.
        data_dir: folder of all caches; see `cache_root`.
        train_subset: this many training images, 1..N, each class with its share (a fixed draw).
        test_subset: the same for the test images.
        reading: label column, image size and clients.
    """
    whole = _load(name, data_dir, reading)
    dataset = _dataset(_name_of(whole.meta), whole)
    totals = {split: len(whole.arrays[f"{split}_labels"]) for split in SPLITS}
    sizes = dict(totals)
    for split, size in zip(SPLITS, (train_subset, test_subset), strict=True):
        if size is not None and not 1 <= size <= totals[split]:
            raise ConfigError(
                f"data.{split}_subset is {size}, but {name} has {totals[split]} {split} images;"
                f" allowed: 1..{totals[split]}, or null for all"
            )
        sizes[split] = size or totals[split]
    if sizes == totals:
        return dataset

    def write(writer: CacheWriter) -> tuple[str, ...]:
        for split, size in sizes.items():
            images, labels = whole.arrays[f"{split}_images"], whole.arrays[f"{split}_labels"]
            chosen = balanced_subset(labels, size, f"{split}-subset")
            writer.put(f"{split}_images", images[chosen])
            writer.put(f"{split}_labels", labels[chosen])
            if split == "train" and CLIENTS in whole.arrays:
                writer.put(CLIENTS, whole.arrays[CLIENTS][chosen])
        return dataset.class_names

    path = whole.path.with_name(f"{whole.path.name}-train{sizes['train']}-test{sizes['test']}")
    source = f"subset/{whole.revision}/{sizes['train']}/{sizes['test']}"
    cache = ensure(path, whole.meta["name"], source, write, whole=dataset.whole)
    return replace(_dataset(dataset.name, cache), cautions=dataset.cautions)


def prepare(
    name: str,
    data_dir: Path | None = None,
    *,
    reading: Reading = PLAIN,
    preview: Path | None = None,
    progress: Progress | None = None,
) -> PreparedDataset:
    """Build the cache of a data set if need be, verify every byte of it, and look through it.

    torchvision sets are downloaded into `data_dir`/raw, unless their files are there already. A
    picture with two images of each class is written to `preview`. What speaks against the data is
    logged as a warning. Raises `UnknownNameError` for another name, `DataError` without a network,
    for a torn or missing source, and for a folder that cannot be written, `ConfigError` for a
    picture that cannot be.
    """
    if preview is not None and preview.suffix.lower() != ".png":
        raise ConfigError(f"the preview is a PNG; its name must end in .png (got {str(preview)!r})")
    cache = _load(name, data_dir, reading, download=True, verify="content", progress=progress)
    arrays, class_names = cache.arrays, cache.meta["class_names"]
    found = survey(arrays, class_names)
    labels = arrays["test_labels"]
    for caution in (*found.cautions(), *_uneven(labels, class_names)):
        _log.warning("%s: %s", name, caution)
    if preview is not None:
        atomic_write_bytes(preview, preview_png(arrays, class_names), error=ConfigError)
    return PreparedDataset(
        cache.path,
        cache.revision,
        _name_of(cache.meta),
        len(arrays["train_labels"]),
        len(arrays["test_labels"]),
        found,
        # A cache that an older fedbench made has no notes.
        **{key: cache.meta.get("notes", {}).get(key) for key in _NOTES},
        preview=preview,
    )


def split_of_images(
    name: str, data_dir: Path | None = None, reading: Reading = PLAIN
) -> Iterator[tuple[str, str, int | None]]:
    """Yield `train` or `test` for each image of a source, its file or set, and its row there.

    The row is None where the image is the file. Training images come in the order in which a
    partition file names their clients.
    """
    source, _ = _source(name, cache_root(data_dir), data_dir, reading, download=False)
    source.require()
    _identity(name, source, reading)  # for its errors: pipes, links to files that are not there
    with TemporaryDirectory() as scratch:
        yield from _images(source.splits(Path(scratch)))


def places_in_source(data: DataConfig, data_dir: Path | None) -> tuple[npt.NDArray[Any], int]:
    """Return where training images (N,) stand among those of the source, and how many it has.

    The set is read once more, as if each image had a client of its own.
    """
    reading = replace(Reading.of(data), natural_column=None, partition_file=None)
    count = len(load_dataset(data.name, data_dir, reading=reading).train_labels)
    with NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([*range(count)], file)
        file.flush()
        reading = replace(reading, partition_file=Path(file.name))
        dataset = load_dataset(data.name, data_dir, train_subset=data.train_subset, reading=reading)
    assert dataset.train_clients is not None
    return dataset.train_clients, count


def _images(splits: Splits) -> Iterator[tuple[str, str, int | None]]:
    for split, picture in splits.pictures():
        yield split, utf8_text(picture.file), picture.row


def reopen(path: Path, revision: str | None = None, name: str | None = None) -> Dataset:
    """Open a cache folder that `load_dataset` has verified, in milliseconds, without hashing."""
    cache = open_cache(path, verify="sizes")
    if revision is not None and cache.revision != revision:
        raise DataError(f"{path} was rebuilt from changed data while it was in use; start again")
    return _dataset(name or _name_of(cache.meta), cache)


def cached_dataset(revision: str, data_dir: Path | None = None) -> Dataset | None:
    """Return the data set of a revision from whichever cache holds it; None if none does."""
    for path, found in _caches(data_dir):
        if found == revision:
            with suppress(DataError):
                return reopen(path, revision)
    return None


def _caches(data_dir: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield all caches whose `meta.json` is intact, and their revisions."""
    for file in sorted(cache_root(data_dir).glob("*/meta.json")):
        with suppress(DataError):
            yield file.parent, read_meta(file.parent)["revision"]


def dataset_records(data_dir: Path | None = None) -> list[dict[str, Any]]:
    """Return one record per known data set; sizes are null where they depend on a path.

    A set whose content is known is `cached` wherever it was prepared from: CIFAR-10 as `hub:FOLDER`
    is, too.
    """
    root = cache_root(data_dir)
    held = {REVISIONS.get(revision) for _, revision in _caches(data_dir)}
    records: list[dict[str, Any]] = []
    for name, entry in sorted(entries().items(), key=lambda item: ":" in item[0]):
        num_classes, shape, num_train, num_test = entry.size or (None,) * 4
        raw = shlex.quote(str(root / "raw"))
        cached = None
        if ":" not in name:
            source = entry.make(Request(name, root, PLAIN, "", False))
            cached = name in held or (root / source.key / "meta.json").is_file()
        records.append(
            {
                "name": name,
                "num_classes": num_classes,
                "image_shape": None if shape is None else list(shape),
                "num_train": num_train,
                "num_test": num_test,
                "get": entry.get.format(raw=raw) or prepare_command(name, data_dir),
                "cached": cached,
            }
        )
    return records


def content_names(data_dir: Path | None = None) -> Callable[..., str]:
    """Return a function that finds the name of a data set by its content, and remembers it.

    It takes `data.name` and a `Reading`, and builds the cache if need be. A name without a path is
    returned as it is, and `hub:FOLDER` where the content is not known.
    """

    @functools.cache
    def look_up(name: str, reading: Reading = PLAIN) -> str:
        return _name_of(_load(name, data_dir, reading).meta) if ":" in name else name

    return look_up


def _name_of(meta: Mapping[str, Any]) -> str:
    """Name a data set by its content, as `cifar10`; if that is not known, by its folder."""
    full_name, revision = meta["name"], meta["whole"]
    kind, colon, path = full_name.partition(":")
    if revision in REVISIONS:
        return REVISIONS[revision]
    train, test = (meta["arrays"][f"{split}_images"]["shape"] for split in SPLITS)
    size = len(meta["class_names"]), tuple(train[1:]), train[0], test[0]
    # The official files of a set, all of them, are known by their source.
    is_official = kind in SOURCES.keys() - REVISIONS.values() and SOURCES[kind].size == size
    if is_official or full_name in entries().keys() - SOURCES.keys():
        return str(kind)
    return f"{kind}:{Path(path).name}" if colon else f"raw:{kind}"  # `raw:digits`: resized


def _load(
    name: str,
    data_dir: Path | None,
    reading: Reading = PLAIN,
    *,
    verify: Verify = "stamps",
    download: bool = False,
    progress: Progress | None = None,
) -> Cache:
    """Open the cache of a data set; of a known one, any copy of its content saves the download."""
    is_known = name in REVISIONS.values() and reading == PLAIN
    load = partial(_from_source, name, data_dir, reading, verify=verify, progress=progress)
    try:
        return load(download=download and not is_known)
    except DataError:
        for path, revision in _caches(data_dir) if is_known else ():
            if REVISIONS.get(revision) == name:
                with suppress(DataError):  # a damaged cache is none
                    return open_cache(path, verify=verify)
        if not (download and is_known):
            raise
    return load(download=True)


def _from_source(
    name: str,
    data_dir: Path | None,
    reading: Reading,
    *,
    verify: Verify,
    download: bool,
    progress: Progress | None,
) -> Cache:
    root = cache_root(data_dir)
    source, full_name = _source(name, root, data_dir, reading, download=download)

    def write(writer: CacheWriter) -> tuple[str, ...]:
        scratch = writer.folder / "scratch"
        scratch.mkdir()
        splits = source.splits(scratch)
        class_names = write_splits(writer, splits, name, reading.image_size, progress)
        if reading.partition_file is not None:
            count = len(np.load(writer.folder / "train_labels.npy"))
            writer.put(CLIENTS, read_clients(reading.partition_file, count, _images(splits)))
        arrays = {n: np.load(writer.folder / f"{n}.npy", mmap_mode="r") for n in ARRAYS}
        writer.notes["cautions"] = survey(arrays, class_names).cautions()
        return class_names

    cache = ensure(
        root / (source.key + reading.suffix()),
        full_name,
        _identity(name, source, reading),
        write,
        require=source.require,
        verify=verify,
    )
    is_known = name in REVISIONS.values() and reading.image_size is None
    if is_known and cache.meta["whole"] not in REVISIONS:
        shutil.rmtree(cache.path)
        raise DataError(
            f"the files that {name} was read from are altered: its images or labels have another"
            f" SHA-256; replace the files in {root / 'raw'}, or wherever they lie"
        )
    return cache


def _identity(name: str, source: Source, reading: Reading) -> str | None:
    try:
        identity = source.identity()
    except OSError as err:
        is_link = err.filename and Path(err.filename).is_symlink()
        why = "a link to a file that is not there" if is_link else err.strerror or err
        raise DataError(f"{name} cannot be read: {why} ({err.filename})") from err
    options = reading.identity()
    return f"{identity} {options}" if identity is not None and options else identity


def _source(
    name: str, root: Path, data_dir: Path | None, reading: Reading, *, download: bool
) -> tuple[Source, str]:
    """Return the source of a data set, and its name with an absolute path."""
    entry = entry_of(name)
    for key in ("data.label_column", "data.natural_column", "data.test_rows"):
        if key in reading.settings() and not entry.has_columns:
            raise ConfigError(
                f"{key}={reading.settings()[key]}, but {name} has no columns; allowed for"
                f" {', '.join(form for form, entry in SOURCES.items() if entry.has_columns)}"
            )
    command = prepare_command(name, data_dir, reading)
    source = entry.make(Request(name, root, reading, command, download))
    return source, str(source) if ":" in name and isinstance(source, PathSource) else name


def cache_root(data_dir: Path | None) -> Path:
    """Return the absolute folder of all caches.

    By default $FEDBENCH_DATA_DIR, else $XDG_CACHE_HOME/fedbench, else ~/.cache/fedbench.
    """
    if data_dir is None:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        data_dir = Path(os.environ.get(DATA_DIR_VARIABLE) or Path(cache) / "fedbench")
        if data_dir.is_relative_to("~") and home_folder() is None:
            raise DataError(
                f"no folder for data: user {os.getuid()} has no home folder; set HOME, or choose"
                f" one with --data-dir or {DATA_DIR_VARIABLE}"
            )
    root = user_path(data_dir).absolute()
    try:
        root.is_dir()
    except OSError as err:  # it is false for a folder that is not there
        raise DataError(f"no cache of data sets at {str(root)[:200]!r}: {err.strerror}") from err
    return root


def _dataset(name: str, cache: Cache) -> Dataset:
    noted = cache.meta.get("notes", {}).get("cautions", ())
    uneven = _uneven(cache.arrays["test_labels"], cache.meta["class_names"])
    return Dataset(
        name,
        cache.revision,
        cache.meta["whole"],
        **{name: cache.arrays[name] for name in ARRAYS},
        train_clients=cache.arrays.get(CLIENTS),
        class_names=tuple(cache.meta["class_names"]),
        path=cache.path,
        cautions=tuple(f"{name}: {caution}" for caution in (*noted, *uneven)),
    )


def _uneven(labels: npt.NDArray[np.int64], class_names: Sequence[str]) -> list[str]:
    """Return a line about the class of most test images, where it has far more than others."""
    if (found := majority(labels, len(class_names))) is None:
        return []
    label, share = found
    return [
        f"{100 * share:.0f} % of the test images are of class {class_names[label]!r}, and so"
        " accurate is a constant answer; compare balanced_linear_acc and balanced_knn_acc"
    ]
