"""Checked, memory-mapped files of named arrays: how a partition is kept beside its run.

One `.safetensors` file: it holds several arrays and text without pickle, any tool can read it, and
its arrays lie uncompressed at aligned offsets, so all workers can map one copy of the offsets of a
million clients (an `.npz` can be neither mapped nor checked as a whole).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import atomic_write_bytes
from fedbench.bench.system.identity import canonical_json

Arrays = Mapping[str, npt.NDArray[Any]]

_DTYPES: dict[str, np.dtype[Any]] = {
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F32": np.dtype("<f4"),
}
_CHECKSUM = "sha256"


def digest(meta: Mapping[str, Any], arrays: Arrays) -> str:
    """SHA-256 in hexadecimal of JSON values and arrays: names, types, shapes and content."""
    header = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    result = hashlib.sha256(canonical_json([dict(meta), header]).encode())
    for name in sorted(arrays):
        result.update(arrays[name].tobytes())
    return result.hexdigest()


def write(path: Path, meta: Mapping[str, Any], arrays: Arrays) -> None:
    """Write all or nothing: a reader sees the old file or the whole new one.

    Args:
        path: The file; missing folders above it are made.
        meta: JSON values.
        arrays: int16, int32, int64 or float32.

    Raises:
        StoreError: The file cannot be written.
    """
    text = {name: canonical_json(value) for name, value in meta.items()}
    text[_CHECKSUM] = digest(meta, arrays)
    body = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, text)
    atomic_write_bytes(path, body)


def read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The values and the arrays of a file, arrays as read-only maps, content verified.

    Raises:
        DataError: The file is missing, torn, altered, or not one of these.
    """
    if not path.is_file():
        raise DataError(f"no partition file {path}; deal the data again to write it")
    try:
        meta, arrays, checksum = _parse(path)
        actual = digest(meta, arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise _torn(path, f"{type(err).__name__}: {err}") from err
    if actual != checksum:
        raise _torn(path, "its checksum does not fit its content")
    return meta, arrays


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]], str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"its header cannot have {length} bytes")
        header = json.loads(file.read(length))
    text = header.pop("__metadata__")
    checksum = text.pop(_CHECKSUM)
    room = size - 8 - length
    if sum(np.diff(entry["data_offsets"]).item() for entry in header.values()) != room:
        raise ValueError(f"its arrays do not fill {size} bytes")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        count = math.prod(shape)
        if not 0 <= begin <= end <= room or end - begin != count * dtype.itemsize:
            raise ValueError(f"array {name!r} does not fit its place")
        arrays[name] = (
            np.memmap(path, dtype, "r", offset=8 + length + begin, shape=shape)
            if count
            else np.empty(shape, dtype)  # nothing cannot be mapped
        )
    return {name: json.loads(value) for name, value in text.items()}, arrays, checksum


def _torn(path: Path, reason: str) -> DataError:
    return DataError(
        f"partition file {path} is torn or altered: {reason}; delete it and deal again"
    )
