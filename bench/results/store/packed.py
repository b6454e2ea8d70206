"""Runs of a store that are packed: many rows with their rounds in a few files, `packed/*.parquet`.

Such a file has the columns of a release (`released.py`). A store reads its packed runs like those
that have files of their own, and writes new runs beside them; a packed run is never written again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from fedbench.bench.results.store.columns import row_table
from fedbench.bench.results.store.reader import MOST_BYTES, Mark, file_mark, read_error, tables_in
from fedbench.bench.results.store.replicas import replica_key
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import (
    ROW_SCHEMA,
    UNPACKED_BOARD,
    decode_table,
    read_table,
)
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import read_limited
from fedbench.bench.system.identity import canonical_json

PACKED = "packed"
CURVE = "curve_json"
VERSION = "fedbench.release"
_MEANING = {"doc": "records of its rounds as a JSON list, as curve.parquet has them"}
_MOST_TEXT = 2**25
_POINTS = TypeAdapter(list[dict[str, Any]])
Points = Sequence[Mapping[str, Any]]


def pack(runs: Sequence[tuple[Row, Points]], version: str) -> pa.Table:
    """Return rows with their rounds as a table; a run's replicas follow it."""
    table = row_table([row for row, _ in runs], ROW_SCHEMA)
    curves = pa.array([canonical_json(list(points)) for _, points in runs], pa.string())
    field = pa.field(CURVE, pa.string(), metadata={**_MEANING, "unit": "json"})
    metadata = {**(ROW_SCHEMA.metadata or {}), VERSION.encode(): version.encode()}
    return table.append_column(field, curves).replace_schema_metadata(metadata)


class Pack:
    """The content of one file.

    Raises:
        StoreError: if its bytes are damaged, or those of another file.
    """

    def __init__(self, data: bytes) -> None:
        self._table = read_table(data, UNPACKED_BOARD)
        if CURVE not in self._table.schema.names:
            raise StoreError(f"no release: it has no column {CURVE}; see `fedbench release`")
        self._curves = self._table.column(CURVE).to_pylist()
        if max((len(text or "") for text in self._curves), default=0) > _MOST_TEXT:
            raise StoreError(f"{CURVE} has more than {_MOST_TEXT:,} characters")

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each row by the name that its file would have: a run's first by its id."""
        found: dict[str, int] = {}
        for at, row_id in enumerate(self._table.column("row_id").to_pylist()):
            found[replica_key(*self._rows([at])) if row_id in found else row_id] = at
        return found

    @cached_property
    def rows(self) -> dict[str, Row]:
        """The rows by name."""
        return dict(zip(self.places, self._rows(range(len(self._curves))), strict=True))

    def of(self, row_id: str) -> list[Row]:
        """Return the rows of one run."""
        rows = self.rows.values() if row_id in self.places else ()
        return [row for row in rows if row.row_id == row_id]

    def curve(self, name: str) -> list[dict[str, Any]]:
        """Return the rounds of a run by its name."""
        return _points(self._curves[self.places[name]])

    def check(self) -> None:
        """Raise a StoreError where any of its values is none that fedbench writes."""
        for text in self._curves:
            _points(text)
        _ = self.rows

    def _rows(self, places: Sequence[int]) -> list[Row]:
        table = self._table.drop_columns([CURVE])
        return decode_table(table.take(pa.array(places, pa.int64())), Row)


def _points(text: Any) -> list[dict[str, Any]]:
    try:
        return _POINTS.validate_json(text)
    except (ValueError, TypeError) as err:
        raise StoreError(f"{CURVE} holds no list of rounds") from err


def packs(root: Path) -> Iterator[Pack]:
    """Yield the files of packed runs of a store that can be read."""
    for path in tables_in(root / PACKED):
        with suppress(StoreError):  # one of the store's problems
            yield read_pack(path, file_mark(path))


@lru_cache(64)
def read_pack(path: Path, mark: Mark | None) -> Pack:
    """Return the content of a file, read once while its size and time do not change."""
    try:
        return Pack(read_limited(path, MOST_BYTES))
    except OSError as cause:
        raise read_error(path, cause) from cause
    except StoreError as err:
        raise StoreError(f"{str(path)!r}: {err}") from err
