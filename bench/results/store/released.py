"""Releases: all rows of a board with their curves as one Parquet file, or its https address.

A release is unpacked once into the cache, below the SHA-256 of its bytes. Beside it may lie a file
`SHA256SUMS`, as `sha256sum` writes it; the release is then checked against it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

import pyarrow as pa

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import (
    ROW_SCHEMA,
    decode_table,
    read_table,
    table_bytes,
)
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.identity import canonical_json

CURVE = "curve_json"
CURVE_MEANING = "records of its rounds as a JSON list, as curve.parquet has them"
SUMS = "SHA256SUMS"
RELEASE = "fedbench-results.parquet"
"""Name of the file in the folder that `fedbench release` writes."""
VERSION = "fedbench.release"
Points = Sequence[Mapping[str, Any]]
Fill = Callable[[Path, Sequence[tuple[Row, Points]]], None]
_ADDRESS = re.compile(r"^(https?):/+", re.IGNORECASE)
_SECONDS = 60.0  # without a byte from the server
_log = logging.getLogger(__name__)


def is_release(place: str) -> bool:
    """Return True for the name of a Parquet file, or an address."""
    return place.endswith(".parquet") or _ADDRESS.match(place) is not None


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
    data, name = _checked(place) if _ADDRESS.match(place) is None else _fetched(place)
    folder = root / "releases" / hashlib.sha256(data).hexdigest()[:32]
    if folder.is_dir():
        return folder
    try:
        table = read_table(data)
        if CURVE not in table.schema.names:
            raise StoreError(f"no release: it has no column {CURVE}; see `fedbench release`")
        curves = [_points(text) for text in table.column(CURVE).to_pylist()]
        rows = decode_table(table.drop_columns([CURVE]), Row)
    except (StoreError, ValueError, TypeError) as err:
        raise StoreError(f"{name}: {err}") from err
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
    except pa.ArrowException as err:
        raise StoreError(f"{name}: a curve has values of several types: {err}") from err
    return folder


def _points(text: str) -> list[dict[str, Any]]:
    """Return the records of a curve; raise ValueError or TypeError for anything else."""
    points = json.loads(text)
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError(f"{CURVE} holds no list of rounds")
    return points


def _checked(place: str) -> tuple[bytes, str]:
    """Return the bytes of a file, checked where the sums lie beside it, and its name."""
    path = Path(place).expanduser()
    try:
        data = path.read_bytes()
    except FileNotFoundError as err:
        raise StoreError(f"there is no release at {place!r}; name another with --store") from err
    except OSError as err:
        raise StoreError(f"cannot read the release {place!r}: {err.strerror or err}") from err
    sums = path.with_name(SUMS)
    if sums.is_file():
        _compare(data, sums.read_text(encoding="utf-8", errors="replace"), path.name, place)
    return data, place


def _fetched(place: str) -> tuple[bytes, str]:
    """Return the bytes at an address, checked where the sums lie beside it, and the address.

    A path makes one slash of two behind the scheme; they are put back.
    """
    address = _ADDRESS.sub(lambda found: f"{found[1].lower()}://", place)
    parts = urlsplit(address)
    path = PurePosixPath(parts.path)
    sums = _download(urlunsplit(parts._replace(path=str(path.with_name(SUMS)), query="")), address)
    data = _download(address, address)
    if data is None:
        raise StoreError(f"there is no release at {address} (HTTP 404)")
    if sums is None:
        _log.warning("%s is not checked: no %s lies beside it", address, SUMS)
    else:
        _compare(data, sums.decode("utf-8", errors="replace"), path.name, address)
    return data, address


def _download(address: str, release: str) -> bytes | None:
    """Return what an address holds, or None if the server has nothing there."""
    try:
        with urlopen(address, timeout=_SECONDS) as answer:
            return bytes(answer.read())
    except HTTPError as err:
        if err.code == 404:
            return None
        raise StoreError(f"cannot fetch {release}: the server answers {err.code}") from err
    except (OSError, HTTPException, ValueError) as err:
        why = getattr(err, "reason", None) or err
        raise StoreError(f"cannot fetch {release}: {why}") from err


def _compare(data: bytes, sums: str, name: str, place: str) -> None:
    """Refuse bytes that are not those of the sums."""
    lines = [parts for line in sums.splitlines() if len(parts := line.split(maxsplit=1)) == 2]
    expected = {file.lstrip("*"): value for value, file in lines}.get(name)
    if expected is None:
        _log.warning("%s is not checked: the %s beside it does not name it", place, SUMS)
    elif expected != hashlib.sha256(data).hexdigest():
        raise StoreError(
            f"{place} is not the file of the {SUMS} beside it: torn, altered, or of another"
            " release; fetch both again"
        )
