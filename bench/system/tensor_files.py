"""`.safetensors` files of named tensors and JSON values: partitions, checkpoints, clients' tensors.

The format needs no pickle, any tool can read it, and all workers can map one copy of the offsets of
a million clients. A file carries one checksum over all of its bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from fedbench.bench.system.checksums import KEY, ZEROS, add_checksum, has_checksum
from fedbench.bench.system.identity import canonical_json

_ENTRY = "fedbench"


def digest(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 in hexadecimal of JSON values and arrays: names, types, shapes and content."""
    header = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    result = hashlib.sha256(canonical_json([dict(meta), header]).encode())
    for name in sorted(arrays):
        result.update(np.ascontiguousarray(arrays[name]).data)
    return result.hexdigest()


def encode(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a file, with its checksum; equal values give equal bytes."""
    flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    values = json.loads(json.dumps(dict(meta), sort_keys=True))  # keys become text, as when read
    # One entry: safetensors writes several in an order that changes from call to call.
    return add_checksum(save(flat, {_ENTRY: json.dumps({"values": values, KEY: ZEROS})}))


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what `encode` was given, after checking it; `ValueError` if anything is wrong."""
    try:
        if not has_checksum(data):
            raise ValueError("it has no checksum")
        size = int.from_bytes(data[:8], "little")
        values = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_ENTRY])["values"]
        return dict(values), load(data)
    except (SafetensorError, KeyError, TypeError, RecursionError) as err:
        raise ValueError(f"it is not a message of fedbench ({type(err).__name__})") from err


def read(
    path: Path, prefix: str | tuple[str, ...] = ""
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON values and the tensors of a file, after checking them.

    Tensors are private maps of the file: processes share the memory, and a change to a tensor does
    not reach the file. With a prefix, or several, only tensors of such names are read. Raises
    `OSError`, and `ValueError` if it is torn, altered, or not one that `encode` made.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        if not has_checksum(data):
            raise ValueError("it has no checksum")
    try:
        with safe_open(path, "pt") as file:
            values = json.loads((file.metadata() or {})[_ENTRY])["values"]
            names = [name for name in sorted(file.keys()) if name.startswith(prefix)]
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, KeyError, TypeError) as err:
        raise ValueError(f"it is not a tensor file of fedbench ({err})") from err
    except RecursionError as err:
        raise ValueError("the JSON of its header is nested too deeply") from err
    return values, tensors
