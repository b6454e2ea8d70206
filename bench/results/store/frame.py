"""All rows of a store as one table, which is kept in `leaderboard.parquet`.

Opening a Parquet file of sixty columns takes over a millisecond, a row of a large one a twentieth
of that. Each row of the table therefore has size and time of change of its own file: only files
that are new or have changed are read, and their rows validated. Beside the columns of the rows
(`schema.py`) the table has what is derived from configurations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fedbench.bench.results.store.files import (
    PACKED,
    THREADS,
    Mark,
    file_mark,
    load,
    read_error,
    read_pack,
    tables_in,
)
from fedbench.bench.results.store.replicas import replica_hash
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import (
    COLUMNS,
    COST,
    METRIC,
    ROW_SCHEMA,
    UNPACKED_BOARD,
    decode_table,
    nested_settings,
    read_table,
    row_table,
    table_bytes,
)
from fedbench.bench.results.store.settings import evaluation_of, hyperparameters, task_of
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.identity import canonical_json

if TYPE_CHECKING:
    import pandas as pd

FURTHER = pa.schema(
    {
        "place": pa.string(),  # the file that it is in, below the store
        "file": pa.string(),  # the name that a file of its own has, without the ending
        "size": pa.int64(),  # of the file [B]
        "changed": pa.int64(),  # time of its last change [ns]
        "replica": pa.string(),  # hash of the results, which tells replicas apart
        "whole_config": pa.string(),  # all settings, as JSON
        "task": pa.string(),  # keys of the class but for evaluation and data's name, as JSON
        "evaluation": pa.string(),  # settings of the evaluation, as JSON
        "hyperparameters": pa.string(),  # settings that are in no class, as JSON
        "unmoved": pa.bool_(),  # whether a run that was to train has moved no weight
        "without_gradient": pa.string(),  # trained parts that the loss never reached
    }
)
"""Columns beside those of a row."""
_SCHEMA = pa.schema([*ROW_SCHEMA, *FURTHER], metadata=ROW_SCHEMA.metadata)
_FILE = ("place", "file", "size", "changed")
_Place = tuple[str, str, int, int]
"""The columns `_FILE` of a row."""
Rows = Callable[[Sequence[int]], list[Row]]
_VERSION = b"fedbench.derived_by"
_ORDER = (
    "dataset", "partition", "alpha", "method", "config_id", "seed", "row_id",
    "failed", "finished_at", "replica",
)  # fmt: skip
"""Order of rows; of the rows of one run the first to finish leads, and failed ones come last."""


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a frame, in the order of a store."""
    return _plain_names(_sorted(_table([(row, ("", "", 0, 0)) for row in rows])))


def _plain_names(table: pa.Table) -> pd.DataFrame:
    """Return a table as a frame: metrics and costs by their names, settings as `config_json`.

    A metric of the name of another column keeps `metric.` before it.
    """
    short = {n: n.partition(".")[2] for n in table.schema.names if n.startswith((METRIC, COST))}
    others = {*table.schema.names}
    names = {n: s for n, s in short.items() if s not in others and COLUMNS.get(s, n) == n}
    shown = table.drop_columns(["config_json"])  # what has no column of its own
    frame: pd.DataFrame = shown.rename_columns({**names, "whole_config": "config_json"}).to_pandas()
    return frame


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with None for every missing value, and without numpy's numbers."""
    return frame.astype(object).where(frame.notna(), None)


def lines(frame: pd.DataFrame) -> Iterator[Any]:
    """Return the lines of a frame with columns as attributes; missing values are None.

    Choose the columns first: all are copied.
    """
    return iter(plain(frame).itertuples(index=False, name="Line"))


class Frame:
    """The table of a store, in `file`."""

    def __init__(self, root: Path) -> None:
        self.file, self._root = root / "leaderboard.parquet", root
        self._problems: list[str] = []
        self._table: pa.Table | None = None
        self._mark: Mark | None = None  # of the file when it was read or written
        self._is_new = False  # the file lacks what the table has
        self._rows: list[Row] | None = None
        self._frame: pd.DataFrame | None = None

    def rows(self) -> list[Row]:
        """Return the readable rows."""
        table = self._up_to_date()
        if self._rows is None:
            self._rows = decode_table(table.drop_columns(FURTHER.names), Row)
        return [*self._rows]

    def columns(self, *names: str) -> tuple[dict[str, list[Any]], Rows]:
        """Return columns of the readable rows, and what makes the rows at places of these lists."""
        table = self._up_to_date()

        def rows(places: Sequence[int]) -> list[Row]:
            chosen = table.take(pa.array([*places], pa.int64()))  # typed, as it may be empty
            return decode_table(chosen.drop_columns(FURTHER.names), Row)

        return table.select(names).to_pydict(), rows

    def frame(self, write: Callable[[Path, bytes], None]) -> pd.DataFrame:
        """Return the readable rows as a frame, which must not be changed.

        The file is brought up to date with `write`, if that works.
        """
        table = self._up_to_date()
        if self._is_new:
            with suppress(StoreError):
                self.save(write)
            table = self._table
        if self._frame is None:
            self._frame = _plain_names(table)
        return self._frame

    def problems(self) -> list[str]:
        """Return a line for every row that is unreadable."""
        self._up_to_date()
        return self._problems

    def save(self, write: Callable[[Path, bytes], None]) -> bool:
        """Bring the file up to date with `write`; return False if there are no rows."""
        # Listed again after a write: another process may have added a row meanwhile.
        while (table := self._up_to_date()).num_rows and self._is_new:
            write(self.file, table_bytes(table.replace_schema_metadata(_metadata())))
            self._mark, self._is_new = file_mark(self.file), False
        return bool(table.num_rows)

    def _up_to_date(self) -> pa.Table:
        paths = [*tables_in(self._root / "rows"), *tables_in(self._root / PACKED)]
        marks = {path.relative_to(self._root).as_posix(): file_mark(path) for path in paths}
        table = self._table
        if table is None or file_mark(self.file) != self._mark:
            self._mark, table = file_mark(self.file), self._stored()
            self._is_new = table is None
        known = _SCHEMA.empty_table() if table is None else table
        columns = (known.column(name).to_pylist() for name in _FILE)
        whole = [marks.get(place) == (*mark,) for place, _, *mark in zip(*columns, strict=True)]
        kept = known.filter(pa.array(whole, pa.bool_()))
        new = sorted(marks.keys() - {*kept.column("place").to_pylist()})
        with ThreadPoolExecutor(THREADS) as threads:
            found = threads.map(_read, [self._root / place for place in new])
            loaded = dict(zip(new, found, strict=True))
        self._problems = [text for text in loaded.values() if isinstance(text, str)]
        added = [
            (row, (place, name, *(marks[place] or (0, 0))))
            for place, rows in loaded.items()
            if not isinstance(rows, str)
            for name, row in rows.items()
        ]
        if added or not all(whole):
            more = _table(added, nested_settings(kept))
            try:
                joined = pa.concat_tables([kept, more], promote_options="permissive")
            except pa.ArrowTypeError:  # `method.target`: text of byol, true or false of orchestra
                files = zip(*(kept.column(name).to_pylist() for name in _FILE), strict=True)
                old = zip(decode_table(kept.drop_columns(FURTHER.names), Row), files, strict=True)
                joined = _table([*old, *added])
            known = _sorted(joined)
            self._is_new = True
        if known is not self._table:
            self._table, self._rows, self._frame = known, None, None
        return known

    def _stored(self) -> pa.Table | None:
        """Return the table in the file, if this code would have made it of the same rows."""
        with suppress(OSError, StoreError):  # it only saves time
            table = read_table(self.file.read_bytes(), UNPACKED_BOARD)
            if (table.schema.metadata or {}).get(_VERSION) == _metadata()[_VERSION]:
                return table
        return None


def _read(path: Path) -> Mapping[str, Row] | str:
    """Return the rows in a file by name, or what is wrong with it."""
    if path.parent.name != PACKED:
        row = load(path, Row)
        return row if isinstance(row, str) else {path.stem: row} if row else {}
    try:
        return read_pack(path, file_mark(path)).rows
    except OSError as cause:
        return str(read_error(path, cause))
    except StoreError as error:
        return f"{str(path)!r}: {error}"


@cache
def _metadata() -> Mapping[bytes, bytes]:
    """Return the metadata of the file, with a hash of the code that derives columns."""
    store = Path(__file__).parent
    # All of config/: parameters of a partitioner decide which fields of the data count.
    files = sorted([*store.glob("*.py"), *(store.parents[1] / "config").rglob("*.py")])
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return {**(ROW_SCHEMA.metadata or {}), _VERSION: code.encode()}


def _table(rows: Sequence[tuple[Row, _Place]], nested: Collection[str] = ()) -> pa.Table:
    """Return rows with their places and what is derived of them."""
    derived = [
        {
            **dict(zip(_FILE, file, strict=True)),
            "replica": replica_hash(row),
            "whole_config": canonical_json(row.settings),
            "task": json.dumps(task_of(row)),
            "evaluation": json.dumps(evaluation_of(row)),
            "hyperparameters": canonical_json(hyperparameters(row.settings, row.scaled)),
            "unmoved": row.unmoved,
            "without_gradient": ", ".join(row.without_gradient) or None,
        }
        for row, file in rows
    ]
    table = row_table([row for row, _ in rows], nested)
    more = pa.Table.from_pylist(derived, schema=FURTHER)
    for name in FURTHER.names:
        table = table.append_column(name, more.column(name))
    return pa.concat_tables([_SCHEMA.empty_table(), table], promote_options="permissive")


def _sorted(table: pa.Table) -> pa.Table:
    table = table.append_column("failed", pc.equal(table.column("status"), "error"))
    ordered = table.sort_by([(name, "ascending") for name in _ORDER])
    return ordered.drop_columns(["failed"]).combine_chunks()
