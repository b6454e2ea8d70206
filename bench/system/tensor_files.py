"""`.safetensors` files of named tensors and JSON values: partitions, checkpoints, clients' tensors.

The format needs no pickle, any tool can read it, and its tensors lie uncompressed at aligned
offsets: all workers can map one copy of the offsets of a million clients (an `.npz` can be neither
mapped nor checked as a whole).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedbench.bench.system.identity import canonical_json

_CHECKSUM = "sha256"


def digest(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 in hexadecimal of JSON values and arrays: names, types, shapes and content."""
    header = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    result = hashlib.sha256(canonical_json([dict(meta), header]).encode())
    for name in sorted(arrays):
        result.update(np.ascontiguousarray(arrays[name]).data)
    return result.hexdigest()


def encode(
    meta: Mapping[str, Any], tensors: Mapping[str, Tensor], *, checksum: bool = False
) -> bytes:
    """Return the content of a file; with one entry in `meta`, equal values give equal bytes.

    Args:
        meta: JSON values.
        tensors: on any device.
        checksum: whether to add the `digest` of both, which `read` verifies.
    """
    flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = {name: json.dumps(value, sort_keys=True) for name, value in meta.items()}
    if checksum:
        text[_CHECKSUM] = digest(meta, {name: value.numpy() for name, value in flat.items()})
    return save(flat, text)


def read(
    path: Path, prefix: str = "", *, checksum: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON values and the tensors of a file.

    Tensors are private maps of the file: nothing is read before it is used, processes share the
    memory, and a change to a tensor does not reach the file.

    Args:
        path: the file.
        prefix: only tensors whose names begin with it.
        checksum: whether the file must have a checksum that fits its content; needs no prefix.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is torn, altered, or not one that `encode` made.
    """
    try:
        with safe_open(path, "pt") as file:
            text = dict(file.metadata() or {})
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as err:
        raise ValueError(str(err)) from err
    expected = text.pop(_CHECKSUM, None)
    meta = {name: json.loads(value) for name, value in text.items()}
    if checksum and expected != digest(meta, {n: value.numpy() for n, value in tensors.items()}):
        raise ValueError("its checksum does not fit its content")
    return meta, tensors
