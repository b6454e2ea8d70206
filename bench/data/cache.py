"""The cache of decoded images: one folder per data set, read through memory maps by all processes.

A folder holds the four `ARRAYS` as .npy and `meta.json`. It appears under its name in one rename,
complete or not at all. The images of a split lie in the order of their SHA-256, so that neither
their revision nor a run on them depends on the order of a source. `meta.json` has a checksum of
itself and, of each array, the SHA-256 and the stamp (size, mtime, ctime) that its file had when it
was last hashed: it is hashed again only where the stamp differs.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import DataError, FedbenchError, exhausted
from fedbench.bench.system.files import atomic_write_text, lock_file, release_lock

LOGGER = logging.getLogger(__name__)

FORMAT_VERSION = 2
IMAGES: np.dtype[Any] = np.dtype("|u1")
LABELS: np.dtype[Any] = np.dtype("<i8")
ARRAYS = {
    "train_images": IMAGES,
    "train_labels": LABELS,
    "test_images": IMAGES,
    "test_labels": LABELS,
}

CLIENTS = "train_clients"
"""Further array of a set whose training images come with clients."""
_DTYPES = {**ARRAYS, CLIENTS: LABELS}

Verify = Literal["sizes", "stamps", "content"]
SPLITS = ("train", "test")
_BLOCK, _BLOCK_BYTES = 512, 1 << 26  # images and bytes that are copied at a time
_BRIEF = 200  # characters of a library's message


@dataclass(frozen=True, eq=False)
class Cache:
    """An opened cache folder."""

    path: Path
    # `name` of the data set, with an absolute path where it has one; `source`, identity of the data
    # from which it was made; `revision`; `whole`, revision of the set that it is a subset of,
    # without clients; `class_names` by label; `notes` of `CacheWriter`
    meta: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]  # by `ARRAYS`, and `CLIENTS` where there are any

    @property
    def revision(self) -> str:
        """SHA-256 over the arrays and the number of classes."""
        return str(self.meta["revision"])


class CacheWriter:
    """Writes the arrays of a data set, block by block.

    Plain writes rather than a writable map: on a full disk they raise, where a map would kill the
    process with SIGBUS.
    """

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, which exists and is empty."""
        self.folder = folder
        self.notes: dict[str, Any] = {}  # what `meta.json` says of how images were read

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write a whole array at once."""
        self.put_blocks(name, array.shape, [array])

    def put_blocks(
        self, name: str, shape: tuple[int, ...], blocks: Iterable[npt.NDArray[Any]]
    ) -> None:
        """Write an array of `ARRAYS` or `CLIENTS`, whose rows come in blocks, one at a time."""
        dtype, rows = _DTYPES[name], 0
        with (self.folder / f"{name}.npy").open("wb") as out:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            for block in blocks:
                if block.shape[1:] != shape[1:] or not np.can_cast(block.dtype, dtype, "safe"):
                    got = f"{block.dtype}{list(block.shape)}"
                    raise DataError(f"{name}: {got} does not fit into {dtype}{list(shape)}")
                out.write(np.ascontiguousarray(block, dtype=dtype).data)
                rows += len(block)
            out.flush()
            os.fsync(out.fileno())
        if rows != shape[0]:
            raise DataError(f"{name}: {shape[0]} rows were announced but {rows} arrived")


def content_sha256(array: npt.NDArray[Any]) -> str:
    """SHA-256 over dtype, shape and data."""
    digest = hashlib.sha256(f"{array.dtype.str}{list(array.shape)}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


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
    whole: str | None = None,
) -> Cache:
    """Open the cache at `path`; build it when it is absent, torn, altered or of another source.

    Any number of processes may call this at once: one builds, the others wait and then read.
    `source` is the identity of the data from which the cache is made; None when they are gone, in
    which case an intact cache is used as it is. `require` raises a `DataError` when building cannot
    succeed. `verify` "stamps" hashes files whose stamp changed, "content" all. `whole` is the
    revision of the set that a subset is taken from.
    """
    try:
        cache, reason = _usable(path, source, verify)
        if cache is not None:
            return cache
        if reason:
            LOGGER.warning("data cache: %s; it must be built again", reason)
        require()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise exhausted(err) or _unusable(path.parent, err) from err
        lock = path.parent / f".{path.name}.lock"
        held = lock_file(lock)
        if held is None:
            LOGGER.info("another process builds %s; waiting for it", path)
            held = lock_file(lock, wait=True)
        try:
            # Another process may have been faster.
            cache, _ = _usable(path, source, verify)
            return cache or _build(path, name, source or "", write, whole)
        finally:
            release_lock(held)
    except OSError as err:
        if (known := exhausted(err)) is not None:
            raise known from err
        file, root = Path(err.filename or path), path.parent
        if not file.is_relative_to(root) or file.is_relative_to(root / "raw"):  # of the source
            raise DataError(f"{name}: cannot read {err.filename}: {err.strerror}") from err
        raise _unusable(path, err) from err


def _unusable(path: Path, err: OSError) -> DataError:
    return DataError(
        f"cannot use the data cache {path}: {err.strerror or err}; choose another folder with"
        " --data-dir or FEDBENCH_DATA_DIR, or another HOME"
    )


def open_cache(path: Path, *, verify: Verify = "stamps") -> Cache:
    """Open a cache folder, a `DataError` if it is absent, torn or altered.

    With `verify` "sizes" nothing is hashed or written, which takes milliseconds.
    """
    meta = read_meta(path)
    arrays: dict[str, npt.NDArray[Any]] = {}
    stamps: dict[str, list[int]] = {}
    for name, entry in meta["arrays"].items():
        file, dtype = path / f"{name}.npy", _DTYPES[name]
        with readable(file):
            stamps[name] = stamp_of(file)
            # The maps of images are shared by all processes; labels are small and read at once.
            mode: Literal["r"] | None = "r" if dtype == IMAGES else None
            array = np.load(file, mmap_mode=mode, allow_pickle=False)
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
    if verify != "sizes" and any(stamps[n] != meta["arrays"][n]["stamp"] for n in stamps):
        for name, stamp in stamps.items():
            meta["arrays"][name]["stamp"] = stamp
        with suppress(DataError):  # a read-only cache works too; it is hashed at every start
            write_meta(path, meta)
    return Cache(path, meta, arrays)


def _usable(path: Path, source: str | None, verify: Verify) -> tuple[Cache | None, str]:
    """Return the cache, or None and what is damaged; "" if it is absent or of another source."""
    if not path.exists():
        return None, ""
    try:
        cache = open_cache(path, verify=verify)
    except DataError as err:
        return None, str(err)
    if source is None:
        LOGGER.warning("%s is gone; its cache %s is used", cache.meta["name"], path)
    elif cache.meta["source"] != source:
        return None, ""
    return cache, ""


def _build(path: Path, name: str, source: str, write: Write, whole: str | None) -> Cache:
    """Build in a temporary folder next to `path`, then rename; the caller holds the lock."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(stale)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        LOGGER.info("building the data cache %s from %s", path, name)
        given, fresh = folder / "given", folder / "new"
        given.mkdir()
        fresh.mkdir()
        writer = CacheWriter(given)
        class_names = write(writer)
        _write_in_order(given, fresh)
        entries: dict[str, dict[str, Any]] = {}
        for file in fresh.iterdir():
            array = np.load(file, mmap_mode="r", allow_pickle=False)
            entries[file.stem] = {
                "shape": list(array.shape),
                "sha256": content_sha256(array),
                "stamp": stamp_of(file),
            }
        parts = [*(entries[n]["sha256"] for n in ARRAYS), str(len(class_names))]
        parts += [entries[CLIENTS]["sha256"]] if CLIENTS in entries else []
        plain, revision = (
            hashlib.sha256("\n".join(some).encode()).hexdigest()
            for some in (parts[: len(ARRAYS) + 1], parts)
        )
        meta = {
            "format": FORMAT_VERSION,
            "name": name,
            "source": source,
            "class_names": list(class_names),
            "revision": revision,
            "whole": whole or plain,
            "notes": writer.notes,
            "arrays": entries,
        }
        write_meta(fresh, meta)
        if path.exists():  # stays in the temporary folder until the new one is in place
            path.rename(folder / "old")
        fresh.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return open_cache(path, verify="sizes")


def _write_in_order(given: Path, fresh: Path) -> None:
    """Copy the arrays of a folder into another, the images of each split sorted by SHA-256.

    Memory stays at one block of images. Equal images with one label follow in the order of their
    clients, so that no order of the source matters.
    """
    writer = CacheWriter(fresh)
    for split in SPLITS:
        images = np.load(given / f"{split}_images.npy", mmap_mode="r")
        files = {name: given / f"{name}.npy" for name in (f"{split}_labels", f"{split}_clients")}
        columns = {name: np.load(file) for name, file in files.items() if file.exists()}
        labels = columns[f"{split}_labels"]
        ties = columns.get(f"{split}_clients", np.zeros_like(labels)).tolist()
        hashes = map(_image_sha256, images, labels)
        keys = list(zip(hashes, ties, strict=True))
        order = np.array(sorted(range(len(labels)), key=keys.__getitem__))
        step = max(1, min(_BLOCK, _BLOCK_BYTES // max(1, images[0].nbytes)))
        parts = (order[start : start + step] for start in range(0, len(order), step))
        writer.put_blocks(f"{split}_images", images.shape, (images[part] for part in parts))
        for name, values in columns.items():
            writer.put(name, values[order])


def _image_sha256(image: npt.NDArray[Any], label: Any) -> bytes:
    """SHA-256 over the shape of an image, its label and its pixels."""
    digest = hashlib.sha256(f"{list(image.shape)} {int(label)} ".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def read_meta(path: Path) -> dict[str, Any]:
    """Return the content of `meta.json`; `DataError` if it is absent, torn or of another format."""
    file = path / "meta.json"
    with readable(file):
        meta = parse_json(file.read_bytes())
    if meta.get("format") != FORMAT_VERSION:
        raise DataError(
            f"{path} has cache format {meta.get('format')}, this fedbench reads {FORMAT_VERSION}"
        )
    return meta


def write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Write `meta.json` with a checksum of itself, in one step."""
    text = json_with_checksum(meta, indent=1)
    atomic_write_text(path / "meta.json", text, error=DataError)


def stamp_of(file: Path) -> list[int]:
    """Size in bytes, mtime and ctime in ns; ctime shows changes that restore the mtime."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


@contextmanager
def readable(what: object) -> Iterator[None]:
    """Turn any error, as libraries raise those of every kind for torn files, into a `DataError`."""
    try:
        yield
    except FedbenchError:
        raise
    except Exception as err:
        raise exhausted(err) or DataError(f"{what} cannot be read ({first_line(err)})") from err


def first_line(err: BaseException) -> str:
    """First line of an error's text, which may quote a whole row, or its class without one."""
    text = getattr(err, "strerror", None) or str(err)  # without the path, which is said already
    return (text.splitlines() or [type(err).__name__])[0][:_BRIEF]
