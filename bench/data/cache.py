"""The cache of decoded images: one folder per data set, read through memory maps by all processes.

A folder holds `train_images.npy`, `train_labels.npy`, `test_images.npy`, `test_labels.npy` and
`meta.json`. It appears under its name in one rename, complete or not at all. `meta.json` carries a
SHA-256 of each array and of itself, and the stamp (size, mtime, ctime) that each file had when its
content was last verified: hashing 180 MB at every start takes too long, so the content is hashed
again only where a stamp differs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import atomic_write_text, lock_file, release_lock

LOGGER = logging.getLogger(__name__)

FORMAT_VERSION = 1
IMAGES: np.dtype[Any] = np.dtype("|u1")
LABELS: np.dtype[Any] = np.dtype("<i8")
ARRAYS = {
    "train_images": IMAGES,
    "train_labels": LABELS,
    "test_images": IMAGES,
    "test_labels": LABELS,
}

Verify = Literal["sizes", "stamps", "content"]


@dataclass(frozen=True, eq=False)
class Cache:
    """An opened cache folder."""

    path: Path
    name: str
    source: str
    revision: str
    class_names: tuple[str, ...]
    arrays: Mapping[str, npt.NDArray[Any]]


class CacheWriter:
    """Writes the arrays of a cache folder block by block and hashes them on the way.

    Plain writes rather than a writable map: on a full disk they raise, where a map would kill the
    process with SIGBUS.
    """

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, which exists and is empty."""
        self._folder = folder
        self.entries: dict[str, dict[str, Any]] = {}

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write a whole array at once."""
        self.put_blocks(name, array.shape, [array])

    def put_blocks(
        self, name: str, shape: tuple[int, ...], blocks: Iterable[npt.NDArray[Any]]
    ) -> None:
        """Write an array whose rows come in blocks.

        Args:
            name: key of `ARRAYS`, which also gives the dtype.
            shape: shape of the whole array.
            blocks: `shape[0]` rows in all; each block is written before the next one is taken.

        Raises:
            DataError: a block of another shape, or not `shape[0]` rows in all.
        """
        dtype, file, rows = ARRAYS[name], self._folder / f"{name}.npy", 0
        digest = _begin_digest(dtype, shape)
        with file.open("wb") as out:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            for block in blocks:
                if block.shape[1:] != shape[1:] or not np.can_cast(block.dtype, dtype, "safe"):
                    raise DataError(
                        f"{name}: a block {block.dtype}{list(block.shape)} does not fit into"
                        f" {dtype}{list(shape)}"
                    )
                data = _bytes_of(np.ascontiguousarray(block, dtype=dtype))
                out.write(data)
                digest.update(data)
                rows += len(block)
            out.flush()
            os.fsync(out.fileno())
        if rows != shape[0]:
            raise DataError(f"{name}: {shape[0]} rows were announced but {rows} arrived")
        self.entries[name] = {"shape": list(shape), "sha256": digest.hexdigest()}


def content_sha256(array: npt.NDArray[Any]) -> str:
    """SHA-256 over dtype, shape and data, the same that `CacheWriter` computes."""
    digest = _begin_digest(array.dtype, array.shape)
    digest.update(_bytes_of(array))
    return digest.hexdigest()


def _begin_digest(dtype: np.dtype[Any], shape: tuple[int, ...]) -> hashlib._Hash:
    return hashlib.sha256(f"{dtype.str}{list(shape)}".encode())


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


Write = Callable[[CacheWriter], tuple[str, ...]]
"""Writes the four arrays and returns the class names."""


def ensure(
    path: Path,
    name: str,
    source: str | None,
    write: Write,
    *,
    require: Callable[[], None] = lambda: None,
    verify: Verify = "stamps",
) -> Cache:
    """Open the cache at `path`; build it when it is absent, torn, altered or of another source.

    Any number of processes may call this at once: one builds, the others wait and then read.

    Args:
        path: cache folder.
        name: data set name, recorded for readers.
        source: identity of the data from which the cache is made; None when they are gone, in
            which case an intact cache is used as it is.
        write: writes the arrays.
        require: raises `DataError` when building cannot succeed; called before anything is written.
        verify: "stamps" hashes files whose stamp changed, "content" hashes all.

    Raises:
        DataError: the source cannot be read, or the cache cannot be written.
    """
    reason = ""
    try:
        cache, reason = _usable(path, source, verify)
        if cache is not None:
            return cache
        require()
        return _build_locked(path, name, source or "", write, verify)
    except DataError as err:
        if reason:
            raise DataError(f"{err}; and its cache cannot be used: {reason}") from err
        raise
    except OSError as err:
        raise DataError(
            f"cannot use the data cache {path}: {err.strerror or err}; choose another folder with"
            " --data-dir or FEDBENCH_DATA_DIR"
        ) from err


def open_cache(path: Path, *, verify: Verify = "stamps") -> Cache:
    """Open the cache folder at `path`; "sizes" neither hashes nor writes and takes milliseconds.

    Raises:
        DataError: the folder is absent, torn or altered.
    """
    meta = read_meta(path)
    arrays: dict[str, npt.NDArray[Any]] = {}
    stamps: dict[str, list[int]] = {}
    for name, dtype in ARRAYS.items():
        file, entry = path / f"{name}.npy", meta["arrays"][name]
        try:
            stamps[name] = stamp_of(file)
            # The maps of images are shared by all processes; labels are small and read at once.
            mode: Literal["r"] | None = "r" if dtype == IMAGES else None
            array = np.load(file, mmap_mode=mode, allow_pickle=False)
        except (OSError, ValueError, EOFError) as err:
            raise DataError(f"{file} cannot be read ({first_line(err)})") from err
        changed = stamps[name] != entry["stamp"]
        if (array.dtype, list(array.shape)) != (dtype, entry["shape"]) or (
            stamps[name][0] != entry["stamp"][0]
        ):
            raise DataError(f"{file} has not the size or layout that it was written with")
        if (verify == "content" or (verify == "stamps" and changed)) and (
            content_sha256(array) != entry["sha256"]
        ):
            raise DataError(f"{file} was altered: its SHA-256 differs from the recorded one")
        array.setflags(write=False)
        arrays[name] = array
    if verify != "sizes" and any(stamps[n] != meta["arrays"][n]["stamp"] for n in ARRAYS):
        _renew_stamps(path, meta, stamps)
    return Cache(
        path, meta["name"], meta["source"], meta["revision"], tuple(meta["class_names"]), arrays
    )


def _usable(path: Path, source: str | None, verify: Verify) -> tuple[Cache | None, str]:
    """Return the cache if it can be used as it is, else None and the damage; "" for no damage."""
    if not path.exists():
        return None, ""
    try:
        cache = open_cache(path, verify=verify)
    except DataError as err:
        LOGGER.warning("data cache: %s", err)
        return None, str(err)
    if source is None:
        LOGGER.warning("%s is gone; its cache %s is used", cache.name, path)
    elif cache.source != source:
        LOGGER.info("data cache: the source of %s has changed", path)
        return None, ""
    return cache, ""


def _build_locked(path: Path, name: str, source: str, write: Write, verify: Verify) -> Cache:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.parent / f".{path.name}.lock"
    held = lock_file(lock)
    if held is None:
        LOGGER.info("another process builds %s; waiting for it", path)
        held = lock_file(lock, wait=True)
    try:
        cache, _ = _usable(path, source, verify)  # another process may have been faster
        return cache or _build(path, name, source, write)
    finally:
        release_lock(held)


def _build(path: Path, name: str, source: str, write: Write) -> Cache:
    """Build in a temporary folder beside `path`, then rename; the caller holds the lock."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(stale)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        LOGGER.info("building the data cache %s from %s", path, name)
        fresh = folder / "new"
        fresh.mkdir()
        writer = CacheWriter(fresh)
        class_names = write(writer)
        entries = writer.entries
        digests = "\n".join(entries[n]["sha256"] for n in ARRAYS)
        meta = {
            "format": FORMAT_VERSION,
            "name": name,
            "source": source,
            "class_names": list(class_names),
            "revision": hashlib.sha256(digests.encode()).hexdigest(),
            "arrays": {n: {**entries[n], "stamp": stamp_of(fresh / f"{n}.npy")} for n in ARRAYS},
        }
        write_meta(fresh, meta)
        _check_consistent(open_cache(fresh, verify="sizes"))
        if path.is_dir():  # stays in the temporary folder until the new one is in place
            path.rename(folder / "old")
        elif path.exists():
            path.unlink()
        fresh.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return open_cache(path, verify="sizes")


def _check_consistent(cache: Cache) -> None:
    """Raise `DataError` unless images and labels fit together."""
    train, test = cache.arrays["train_images"], cache.arrays["test_images"]
    for split in ("train", "test"):
        images, labels = cache.arrays[f"{split}_images"], cache.arrays[f"{split}_labels"]
        if len(images) == 0 or images.ndim != 4 or labels.shape != (len(images),):
            raise DataError(
                f"{cache.name}: {split} has images {list(images.shape)} and labels"
                f" {list(labels.shape)}; needed: (N, C, H, W) and (N,) with N >= 1"
            )
        if labels.min() < 0 or labels.max() >= len(cache.class_names):
            raise DataError(
                f"{cache.name}: {split} labels span {labels.min()}..{labels.max()};"
                f" allowed: 0..{len(cache.class_names) - 1}"
            )
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{cache.name}: training images are {list(train.shape[1:])} (C, H, W) but test images"
            f" {list(test.shape[1:])}; they must agree"
        )


def _renew_stamps(path: Path, meta: dict[str, Any], stamps: Mapping[str, list[int]]) -> None:
    """Record the new stamps of files whose content has just been verified."""
    for name in ARRAYS:
        meta["arrays"][name]["stamp"] = stamps[name]
    try:
        write_meta(path, meta)
    except DataError as err:  # a read-only cache works too; it is hashed at every start
        LOGGER.info("data cache: stamps of %s cannot be renewed (%s)", path, err)


def read_meta(path: Path) -> dict[str, Any]:
    """Return the content of `meta.json`.

    Raises:
        DataError: it is absent, torn, altered, or of another format version.
    """
    file = path / "meta.json"
    try:
        meta: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        recorded = meta.pop("checksum")
        intact = recorded == _checksum(meta)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as err:
        raise DataError(f"{file} cannot be read ({first_line(err)})") from err
    if not intact:
        raise DataError(f"{file} was altered: its checksum differs")
    if meta.get("format") != FORMAT_VERSION:
        raise DataError(f"{path} has cache format {meta.get('format')}, not {FORMAT_VERSION}")
    return meta


def write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Write `meta.json` with a checksum of itself, in one step."""
    text = json.dumps({**meta, "checksum": _checksum(meta)}, ensure_ascii=False, indent=1)
    atomic_write_text(path / "meta.json", text, error=DataError)


def _checksum(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def stamp_of(file: Path) -> list[int]:
    """Size in bytes, mtime and ctime in ns; ctime shows changes that restore the mtime."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def first_line(err: BaseException) -> str:
    """First line of an error's text, or its class where there is none."""
    return (str(err).splitlines() or [type(err).__name__])[0]
