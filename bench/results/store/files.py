"""Files of one record, and of many runs with their rounds; each is read once until it changes.

A file in `packed/` has the columns of rows, and their rounds. A store reads its packed runs like
those that have files of their own, and writes new runs beside them; a packed run is never written
again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
from pydantic import TypeAdapter

from fedbench.bench.results.store.replicas import replica_hash, replica_key
from fedbench.bench.results.store.row import Record, Row
from fedbench.bench.results.store.schema import (
    ROW_SCHEMA,
    UNPACKED_BOARD,
    decode,
    decode_table,
    read_table,
    row_table,
)
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import read_limited
from fedbench.bench.system.identity import canonical_json

R = TypeVar("R", bound=Record)
Mark = tuple[int, int]
"""Size of a file, and time of its last change in nanoseconds."""

MOST_BYTES = 2**28
"""Bytes of one record that is read; a pipe or a device in its place is refused."""
THREADS = 4


def read_error(path: Path, cause: OSError) -> StoreError:
    """Return the one-line error for a failed read."""
    why = cause.strerror or cause
    return StoreError(f"cannot read {str(path)!r}: {why}; check the path of the store")


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted; none if it does not exist.

    Raises:
        StoreError: when it is a file or may not be read.
    """
    try:  # by name, since paths are compared part by part
        return sorted(folder.iterdir(), key=attrgetter("name"))
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise read_error(folder, cause) from cause


def tables_in(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted, without hidden (temporary) ones."""
    return [p for p in list_folder(folder) if p.suffix == ".parquet" and p.name[0] != "."]


def file_mark(path: Path) -> Mark | None:
    """Return what tells a file from its earlier versions; None if reading it says what is wrong."""
    # No inode, which differs in a copy of a store, and between nodes that share one.
    with suppress(OSError):
        state = path.stat()
        return state.st_size, state.st_mtime_ns
    return None


def load(path: Path, model: type[R]) -> R | str | None:
    """Return the record, or what is wrong with the file, or None if it has just gone."""
    try:
        return cast("R", _load(path, file_mark(path), model))
    except FileNotFoundError:
        return None
    except OSError as cause:
        return str(read_error(path, cause))
    except StoreError as error:
        return str(error)


@lru_cache(2**12)
def _load(path: Path, mark: Mark | None, model: type[Record]) -> Record:
    return parse_record(path, read_limited(path, MOST_BYTES), model)


def parse_record(path: Path, data: bytes, model: type[R]) -> R:
    """Return the record in a file's bytes; a StoreError says what is wrong with the file."""
    try:
        records = decode(data, model)
        if len(records) != 1:
            raise StoreError(f"holds {len(records)} rows instead of one")
        record = records[0]
        name = record.row_id if isinstance(record, Row) else str(getattr(record, "number", ""))
        if isinstance(record, Row) and "@" in path.stem:
            name += f"@{replica_hash(record)}"
        if name != path.stem:
            raise StoreError(f"its content is that of {name}; give it that name or delete it")
    except StoreError as error:
        raise StoreError(f"{str(path)!r}: {error}") from error
    return record


PACKED = "packed"
CURVE = "curve_json"
VERSION = "fedbench.release"
_MOST_TEXT = 2**25
_POINTS = TypeAdapter(list[dict[str, Any]])
_PLAIN = frozenset({int, float, bool, type(None)})
"""Types of the values of a point."""
Points = Sequence[Mapping[str, Any]]


def pack(
    runs: Sequence[tuple[Row, Points]], version: str, nested: Collection[str] = ()
) -> pa.Table:
    """Return rows with their rounds as a table; a run's replicas follow it.

    Settings in `nested` stay JSON, as those do of which the rows have several types.
    """
    table = row_table([row for row, _ in runs], nested)
    curves = pa.array([canonical_json(list(points)) for _, points in runs], pa.string())
    meaning = "records of its rounds as a JSON list, as curve.parquet has them"
    field = pa.field(CURVE, pa.string(), metadata={"doc": meaning, "unit": "json"})
    metadata = {**(ROW_SCHEMA.metadata or {}), VERSION.encode(): version.encode()}
    return table.append_column(field, curves).replace_schema_metadata(metadata)


class Pack:
    """The content of one file.

    Raises:
        StoreError: if its bytes are damaged, or those of another file.
    """

    def __init__(self, data: bytes) -> None:
        self._table = read_table(data, UNPACKED_BOARD)
        kinds = dict(zip(self._table.schema.names, self._table.schema.types, strict=True))
        for name in ("row_id", CURVE):
            if kinds.get(name) != pa.string() or self._table.column(name).null_count:
                raise StoreError(f"no packed runs: it has no column {name}")
        self._curves = self._table.column(CURVE).to_pylist()
        if max(map(len, self._curves), default=0) > _MOST_TEXT:
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
        names = self.places.items() if row_id in self.places else ()
        return self._rows([at for name, at in names if name.partition("@")[0] == row_id])

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
        return check_points(_POINTS.validate_json(text))
    except (ValueError, TypeError) as err:
        raise StoreError(f"{CURVE} holds no list of rounds") from err


def check_points(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of a curve; a StoreError if one has no round, or a value is no number."""
    for point in points:
        if type(point.get("round_index")) is not int or not _PLAIN.issuperset(
            map(type, point.values())
        ):
            raise StoreError(
                "not of this store: it holds no list of rounds, whose values are numbers"
            )
    return points


def packs(root: Path) -> Iterator[Pack]:
    """Yield the files of packed runs of a store that can be read."""
    for path in tables_in(root / PACKED):
        with suppress(OSError, StoreError):  # one of the store's problems
            pack = read_pack(path, file_mark(path))
            if pack.places:
                yield pack


@lru_cache(64)
def read_pack(path: Path, mark: Mark | None) -> Pack:
    """Return the content of a file, read once while its size and time do not change."""
    return Pack(read_limited(path, MOST_BYTES))
