"""Releases: all rows of a board with their curves as one Parquet file, or its https address.

A release is unpacked once into the cache, below the SHA-256 of its bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from fedbench.bench.results.store.checked import is_address, read_checked
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import (
    ROW_SCHEMA,
    UNPACKED_BOARD,
    decode_table,
    read_table,
    table_bytes,
)
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.identity import canonical_json

CURVE = "curve_json"
CURVE_MEANING = "records of its rounds as a JSON list, as curve.parquet has them"
RELEASE = "fedbench-results.parquet"
"""Name of the file in the folder that `fedbench release` writes."""
VERSION = "fedbench.release"
_MOST_TEXT = 2**25
_POINTS = TypeAdapter(list[dict[str, Any]])
Points = Sequence[Mapping[str, Any]]
Fill = Callable[[Path, Sequence[tuple[Row, Points]]], None]


def is_release(place: str) -> bool:
    """Return True for the name of a Parquet file, or an address."""
    return place.endswith(".parquet") or is_address(place)


def pack(runs: Sequence[tuple[Row, Points]], version: str) -> bytes:
    """Return the bytes of a release; equal arguments give equal bytes.

    Args:
        runs: rows, each with the records of its rounds; replicas after the row that leads.
        version: of the release.
    """
    table = pa.Table.from_pylist([dict(row) for row, _ in runs], schema=ROW_SCHEMA)
    curves = pa.array([canonical_json(list(points)) for _, points in runs], pa.string())
    meaning = {"doc": CURVE_MEANING, "unit": "json"}
    table = table.append_column(pa.field(CURVE, pa.string(), metadata=meaning), curves)
    metadata = {**(ROW_SCHEMA.metadata or {}), VERSION.encode(): version.encode()}
    return table_bytes(table.replace_schema_metadata(metadata))


def unpacked(place: str, root: Path, fill: Fill) -> Path:
    """Return the folder of a release below `root`, made where it is not there yet.

    Args:
        place: the file or the address.
        root: of the cache.
        fill: writes a store of rows and rounds to a folder.

    Raises:
        StoreError: if it cannot be had, is damaged, or is none.
    """
    data, name = read_checked(place)
    folder = root / "releases" / hashlib.sha256(data).hexdigest()[:32]
    if folder.is_dir():
        return folder
    try:
        table = read_table(data, UNPACKED_BOARD)
        if CURVE not in table.schema.names:
            raise StoreError(f"no release: it has no column {CURVE}; see `fedbench release`")
        texts = table.column(CURVE).to_pylist()
        if max(map(len, texts), default=0) > _MOST_TEXT:  # each `{}` of it becomes an object
            raise StoreError(f"{CURVE} has more than {_MOST_TEXT:,} characters")
        curves = [_POINTS.validate_json(text) for text in texts]
        rows = decode_table(table.drop_columns([CURVE]), Row)
    except StoreError as err:
        raise StoreError(f"{name}: {err}") from err
    except (ValueError, TypeError) as err:
        raise StoreError(f"{name}: {CURVE} holds no list of rounds") from err
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as place:
            made = Path(place) / "store"
            fill(made, list(zip(rows, curves, strict=True)))
            made.mkdir(exist_ok=True)  # a release may have no rows
            made.rename(folder)
    except OSError as err:
        if not folder.is_dir():  # else another process was faster
            raise StoreError(
                f"cannot unpack {name} to {str(folder.parent)!r}: {err.strerror or err};"
                " name another place with FEDBENCH_DATA_DIR"
            ) from err
    return folder
