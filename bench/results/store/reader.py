"""Reading one-record Parquet files, each once while it does not change.

Opening a Parquet file of sixty columns costs over a millisecond, a row of a large one a twentieth
of that. `leaderboard.parquet` therefore records a mark (size, time of change) of the file of each
of its rows, and a row whose file still has that mark is taken from there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fedbench.bench.results.store.replicas import replica_hash
from fedbench.bench.results.store.row import Record, Row
from fedbench.bench.results.store.schema import (
    UNPACKED_BOARD,
    decode,
    decode_table,
    encode,
    read_table,
)
from fedbench.bench.system.errors import StoreError

R = TypeVar("R", bound=Record)
Mark = tuple[int, int, int]
"""Size, time of change in nanoseconds, and inode of a file; written are the first two, and its
name."""

_MARKS = b"fedbench.marks"
_MANY = 64  # files from which threads and marks pay
_THREADS = 4


def read_error(path: Path, cause: OSError) -> StoreError:
    """Return the one-line error for a failed read."""
    why = cause.strerror or cause
    return StoreError(f"cannot read {str(path)!r}: {why}; check the path of the store")


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted; none if it does not exist.

    Raises:
        StoreError: when it is a file or may not be read.
    """
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise read_error(folder, cause) from cause


def tables_in(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted, without hidden (temporary) ones."""
    return [p for p in list_folder(folder) if p.suffix == ".parquet" and p.name[0] != "."]


class Reader:
    """Loads files of one record and remembers them by their marks.

    Args:
        all_rows: `leaderboard.parquet` of the store.
    """

    def __init__(self, all_rows: Path) -> None:
        self._all_rows: Path | None = all_rows
        self._cache: dict[Path, tuple[Mark, Record | str]] = {}

    def forget(self, path: Path) -> None:
        """Read `path` anew next time."""
        self._cache.pop(path, None)

    def load_all(self, paths: Sequence[Path], model: type[R]) -> dict[Path, R | str | None]:
        """`load` many files of one folder, in threads where that pays."""
        new = [path for path in paths if path not in self._cache]
        if len(new) >= _MANY and model is Row and self._all_rows is not None:
            self._load_marked(new, self._all_rows)
            self._all_rows = None  # once is enough
            new = [path for path in new if path not in self._cache]
        if len(new) < _MANY:
            return {path: self.load(path, model) for path in paths}
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(paths, threads.map(lambda p: self.load(p, model), paths), strict=True))

    def _load_marked(self, paths: Sequence[Path], all_rows: Path) -> None:
        """Take the rows of unchanged files from the file of all rows."""
        with suppress(OSError, StoreError, ValueError):  # it only saves time
            table = read_table(all_rows.read_bytes(), UNPACKED_BOARD)
            marks = json.loads((table.schema.metadata or {}).get(_MARKS, b"[]"))
            rows = zip(marks, decode_table(table, Row) if marks else [], strict=True)
            marked = {mark[2]: (tuple(mark[:2]), row) for mark, row in rows if len(mark) == 3}
            for path in paths:
                if path.stem in marked and marked[path.stem][0] == (mark := _mark(path))[:2]:
                    self._cache[path] = mark, marked[path.stem][1]

    def encode_all(self, rows: Sequence[tuple[str, Row]], folder: Path) -> bytes:
        """Return rows that were loaded as Parquet bytes, with marks where the rows are many.

        Args:
            rows: each with the name of its file, without the ending.
            folder: of their files.
        """
        if len(rows) < _MANY:
            return encode([row for _, row in rows], Row)
        paths = [folder / f"{name}.parquet" for name, _ in rows]
        marks = [
            (*self._cache[path][0][:2], path.stem) if path in self._cache else () for path in paths
        ]
        return encode([row for _, row in rows], Row, {_MARKS: json.dumps(marks).encode()})

    def load(self, path: Path, model: type[R]) -> R | str | None:
        """Return the record, or what is wrong with the file, or None if it has just gone."""
        try:
            mark = _mark(path)
            known = self._cache.get(path)
            if known is None or known[0] != mark:
                known = (mark, parse_record(path, path.read_bytes(), model))
                self._cache[path] = known
        except FileNotFoundError:
            return None
        except OSError as cause:
            return str(read_error(path, cause))
        record = known[1]
        return record if isinstance(record, model | str) else None


def _mark(path: Path) -> Mark:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def same_rows(old: bytes, new: bytes) -> bool:
    """Return True if two files of all rows are equal, or have marks and differ only in them.

    Marks differ between copies of a store and between nodes that share one: if that were a reason
    to write, they would overwrite each other's file for ever.
    """
    if old == new:
        return True
    with suppress(StoreError):  # a torn file has no rows
        tables = [read_table(data, UNPACKED_BOARD) for data in (old, new)]
        if all(_MARKS in (table.schema.metadata or {}) for table in tables):
            left, right = (table.replace_schema_metadata() for table in tables)
            return bool(left.equals(right, check_metadata=True))
    return False


def parse_record(path: Path, data: bytes, model: type[Record]) -> Record | str:
    """Return the record in a file's bytes, or a line that says what is wrong with the file."""
    try:
        records = decode(data, model)
    except StoreError as error:
        return f"{str(path)!r}: {error}"
    if len(records) != 1:
        return f"{str(path)!r}: holds {len(records)} rows instead of one"
    record = records[0]
    name = record.row_id if isinstance(record, Row) else str(getattr(record, "number", ""))
    if name != path.stem.partition("@")[0]:
        return f"{str(path)!r}: its content is that of {name!r}; give it that name or delete it"
    if isinstance(record, Row) and "@" in path.stem:
        chosen = replica_hash(record)
        if path.stem.partition("@")[2] != chosen:
            return f"{str(path)!r}: its content is that of {name}@{chosen}; give it that name"
    return record
