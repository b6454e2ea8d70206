"""The files of a cache folder: arrays written block by block, and `meta.json` with checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.errors import DataError

FORMAT_VERSION = 1
IMAGES: np.dtype[Any] = np.dtype("|u1")
LABELS: np.dtype[Any] = np.dtype("<i8")
ARRAYS = {
    "train_images": IMAGES,
    "train_labels": LABELS,
    "test_images": IMAGES,
    "test_labels": LABELS,
}
CHUNK = 1 << 22  # bytes hashed at a time

Append = Callable[[npt.NDArray[Any]], None]


class CacheWriter:
    """Writes the arrays of a cache folder block by block and hashes them on the way.

    Plain writes rather than a writable map: on a full disk they raise, where a map would kill the
    process with SIGBUS.
    """

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, which exists and is empty."""
        self._folder = folder
        self.entries: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def array(self, name: str, shape: tuple[int, ...]) -> Iterator[Append]:
        """Create the array `name`, one of `ARRAYS`; the body appends blocks of rows to it.

        Args:
            name: key of `ARRAYS`, which also gives the dtype.
            shape: final shape; `shape[0]` rows must be appended.

        Raises:
            DataError: a block of another shape, or not `shape[0]` rows in all.
        """
        dtype, file, rows = ARRAYS[name], self._folder / f"{name}.npy", 0
        digest = _digest(dtype, shape)
        with file.open("wb") as out:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)

            def append(block: npt.NDArray[Any]) -> None:
                nonlocal rows
                if block.shape[1:] != shape[1:] or not np.can_cast(block.dtype, dtype, "safe"):
                    raise DataError(
                        f"{name}: a block {block.dtype}{list(block.shape)} does not fit into"
                        f" {dtype}{list(shape)}"
                    )
                data = np.ascontiguousarray(block, dtype=dtype).reshape(-1).view(np.uint8).data
                out.write(data)
                digest.update(data)
                rows += len(block)

            yield append
            out.flush()
            os.fsync(out.fileno())
        if rows != shape[0]:
            raise DataError(f"{name}: {shape[0]} rows were announced but {rows} arrived")
        self.entries[name] = {"shape": list(shape), "sha256": digest.hexdigest()}

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write a whole array at once."""
        with self.array(name, array.shape) as append:
            append(array)


def read_meta(path: Path) -> dict[str, Any]:
    """The content of `meta.json`.

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
    temporary = path / f".meta.{os.getpid()}.tmp"
    try:
        with temporary.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path / "meta.json")
    finally:
        temporary.unlink(missing_ok=True)


def stamp_of(file: Path) -> list[int]:
    """Size in bytes, mtime and ctime in ns; ctime shows changes that restore the mtime."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(dtype: np.dtype[Any], shape: tuple[int, ...]) -> hashlib._Hash:
    return hashlib.sha256(f"{dtype.str}{list(shape)}".encode())


def content_sha256(array: npt.NDArray[Any]) -> str:
    """SHA-256 over dtype, shape and data, the same that `CacheWriter` computes."""
    digest, data = _digest(array.dtype, array.shape), array.reshape(-1).view(np.uint8).data
    for start in range(0, len(data), CHUNK):
        digest.update(data[start : start + CHUNK])
    return digest.hexdigest()


def _checksum(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def first_line(err: BaseException) -> str:
    """The first line of an error's text, or its kind."""
    return (str(err).splitlines() or [type(err).__name__])[0]
