"""`.safetensors` files of named tensors and JSON values: partitions, checkpoints, clients' tensors.

The format needs no pickle, any tool can read it, and its tensors lie uncompressed at aligned
offsets: all workers can map one copy of the offsets of a million clients (an `.npz` can be neither
mapped nor checked as a whole).

A file carries one checksum over all of its bytes. Files of older versions have one of each tensor
and of the header, one over everything, or none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedbench.bench.system.checksums import KEY, ZEROS, add_checksum, has_checksum
from fedbench.bench.system.identity import canonical_json

_ENTRY = "fedbench"
_OLD_CHECKSUM = "sha256"


def digest(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 in hexadecimal of JSON values and arrays: names, types, shapes and content."""
    header = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    result = hashlib.sha256(canonical_json([dict(meta), header]).encode())
    for name in sorted(arrays):
        result.update(np.ascontiguousarray(arrays[name]).data)
    return result.hexdigest()


def encode(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a file, with its checksum; equal values give equal bytes.

    Args:
        meta: JSON values.
        tensors: on any device.
    """
    flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    values = json.loads(json.dumps(dict(meta), sort_keys=True))  # keys become text, as when read
    # One entry: safetensors writes several in an order that changes from call to call.
    return add_checksum(save(flat, {_ENTRY: json.dumps({"values": values, KEY: ZEROS})}))


def read(
    path: Path, prefix: str | tuple[str, ...] = ""
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON values and the tensors of a file, after checking them.

    Tensors are private maps of the file: processes share the memory, and a change to a tensor does
    not reach the file.

    Args:
        path: the file.
        prefix: only tensors whose names begin with it, or with one of several.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is torn, altered, or not one that `encode` made.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        is_checked = has_checksum(data)
    try:
        with safe_open(path, "pt") as file:
            text = dict(file.metadata() or {})
            all_names = set(file.keys())
            names = [name for name in sorted(all_names) if name.startswith(prefix)]
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as err:
        raise ValueError(str(err)) from err
    if _ENTRY not in text:
        return _oldest_values(text, tensors, whole=len(names) == len(all_names)), tensors
    body = _parsed(text[_ENTRY])
    if not is_checked:
        _check_entries(body, tensors, all_names)
    values: dict[str, Any] = body["values"]
    return values, tensors


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as err:
        raise ValueError("the JSON of its header is nested too deeply") from err


def _oldest_values(
    text: dict[str, str], tensors: Mapping[str, Tensor], *, whole: bool
) -> dict[str, Any]:
    """Return the JSON values of an older file, after checking its checksum if it has one."""
    if any('sha256"' in value for value in text.values()):
        raise ValueError("the name of its header's entry is altered")
    expected = text.pop(_OLD_CHECKSUM, None)
    values = {name: _parsed(value) for name, value in text.items()}
    if expected is not None and whole:  # only partitions had one, and they are read whole
        arrays = {name: value.numpy() for name, value in tensors.items()}
        if expected != digest(values, arrays):
            raise ValueError("its checksum does not fit its content")
    return values


def _check_entries(body: Any, tensors: Mapping[str, Tensor], all_names: set[str]) -> None:
    """Compare an older file with the checksums of its header and of each tensor."""
    if not isinstance(body, dict) or body.pop("sha256", None) != _sha256(body):
        raise ValueError("the checksum of its header does not fit")
    entries = body["tensors"]
    if entries.keys() != all_names:
        raise ValueError("its tensors are not those of its header")
    for name, value in tensors.items():
        content = value.reshape(-1).view(torch.uint8).numpy()
        found = [str(value.dtype), list(value.shape), hashlib.sha256(content.data).hexdigest()]
        if found != entries[name]:
            raise ValueError(f"the checksum of {name!r} does not fit")


def _sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
