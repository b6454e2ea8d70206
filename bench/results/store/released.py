"""Releases: all rows of a board with their curves as one Parquet file, or its https address.

A release is compared with the `SHA256SUMS` that lies beside it, and unpacked once into the cache,
below the SHA-256 of its bytes.
"""

import hashlib
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import urlopen

import pyarrow as pa
from pydantic import TypeAdapter

from fedbench.bench.results.store.columns import row_table
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import (
    ROW_SCHEMA,
    UNPACKED_BOARD,
    decode_table,
    read_table,
)
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import read_limited, user_path
from fedbench.bench.system.identity import canonical_json

SUMS = "SHA256SUMS"
CURVE = "curve_json"
CURVE_MEANING = "records of its rounds as a JSON list, as curve.parquet has them"
RELEASE = "fedbench-results.parquet"
"""Name of the file in the folder that `fedbench release` writes."""
VERSION = "fedbench.release"
_ADDRESS = re.compile(r"^(https?):/+", re.IGNORECASE)
_LARGEST = 2**28
"""Bytes of a file; a release of 1,000 runs with their rounds has 1 MB."""
_SECONDS = 60.0
"""Longest time without a byte from the server."""
_MOST_TEXT = 2**25
_POINTS = TypeAdapter(list[dict[str, Any]])
_log = logging.getLogger(__name__)
Points = Sequence[Mapping[str, Any]]
Fill = Callable[[Path, Sequence[tuple[Row, Points]]], None]


def is_release(place: str) -> bool:
    """Return True for the name of a Parquet file, or an address."""
    return place.endswith(".parquet") or _ADDRESS.match(place) is not None


def pack(runs: Sequence[tuple[Row, Points]], version: str) -> pa.Table:
    """Return the table of a release: rows with curves; a run's replicas follow it."""
    table = row_table([row for row, _ in runs], ROW_SCHEMA)
    curves = pa.array([canonical_json(list(points)) for _, points in runs], pa.string())
    meaning = {"doc": CURVE_MEANING, "unit": "json"}
    table = table.append_column(pa.field(CURVE, pa.string(), metadata=meaning), curves)
    metadata = {**(ROW_SCHEMA.metadata or {}), VERSION.encode(): version.encode()}
    return table.replace_schema_metadata(metadata)


def unpacked(place: str, root: Path, fill: Fill) -> Path:
    """Return the folder of the release at a place below `root`, filled where it is not there yet.

    Raises:
        StoreError: if nothing can be read there, or what is read is damaged or no release.
    """
    data = read_checked(place)
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
        raise StoreError(f"{place}: {err}") from err
    except (ValueError, TypeError) as err:
        raise StoreError(f"{place}: {CURVE} holds no list of rounds") from err
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
            made = Path(temporary) / "store"
            fill(made, list(zip(rows, curves, strict=True)))
            made.mkdir(exist_ok=True)  # a release may have no rows
            made.rename(folder)
    except OSError as err:
        if not folder.is_dir():  # else another process was faster
            raise StoreError(
                f"cannot unpack {place} to {str(folder.parent)!r}: {err.strerror or err};"
                " name another place with FEDBENCH_DATA_DIR"
            ) from err
    return folder


def read_checked(place: str) -> bytes:
    """Return the bytes at a path or an address; a StoreError if their checksum does not match."""
    if address := _ADDRESS.match(place):
        place = _ADDRESS.sub(r"\1://", place)  # a `Path` makes one slash of two
        data, sums = _download(place), _download(urljoin(place, SUMS))
    else:
        file = user_path(place)
        data, sums = _read(file), _read(file.with_name(SUMS))
    if data is None:
        raise StoreError(f"there is no release at {place!r}; name another with --store")
    name = place.partition("?")[0].rpartition("/")[2]
    text = "" if sums is None else sums.decode(errors="replace")
    lines = [parts for line in text.splitlines() if len(parts := line.split(maxsplit=1)) == 2]
    expected = {file.lstrip("*"): value for value, file in lines}.get(name)
    if expected is None:
        if address or sums is not None:
            _log.warning("%s is not checked: no %s beside it names it", place, SUMS)
    elif expected != hashlib.sha256(data).hexdigest():
        raise StoreError(
            f"{place} is not the file of the {SUMS} beside it: torn, altered, or of another"
            " version; fetch both again"
        )
    return data


def _read(path: Path) -> bytes | None:
    try:
        return read_limited(path, _LARGEST)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StoreError(f"cannot read the release {str(path)!r}: {err.strerror or err}") from err


def _download(address: str) -> bytes | None:
    """Return what an address holds, or None if the server has nothing there."""
    try:
        with urlopen(address, timeout=_SECONDS) as answer:
            data: bytes = answer.read(_LARGEST + 1)
            missing = answer.length or 0  # 0 where the server did not say how long it is
        if len(data) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes, too many for such a file")
        if missing:
            raise ValueError(f"the connection ended {missing:,} bytes too early")
        return data
    except (OSError, HTTPException, ValueError) as err:
        if isinstance(err, HTTPError):
            err.close()
            if err.code == 404:
                return None
        why = " ".join(str(getattr(err, "reason", None) or err).split())[:200]
        raise StoreError(
            f"cannot fetch {address}: {why}; download it, and name the file instead"
        ) from err
