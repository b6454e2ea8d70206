"""Reading one-record Parquet files, each once while it does not change."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fedbench.bench.results.store.replicas import replica_hash
from fedbench.bench.results.store.row import Record, Row
from fedbench.bench.results.store.schema import decode
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import read_limited

R = TypeVar("R", bound=Record)
Mark = tuple[int, int, int]
"""Size, time of change in nanoseconds, and inode of a file."""

MOST_BYTES = 2**28
"""Bytes of one record that is read; a pipe or a device in its place is refused."""
_MANY = 64  # files from which threads pay
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
    """Loads files of one record and remembers them by their marks."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[Mark, Record | str]] = {}

    def load_all(self, paths: Sequence[Path], model: type[R]) -> dict[Path, R | str | None]:
        """`load` many files, in threads where that pays."""
        if sum(path not in self._cache for path in paths) < _MANY:
            return {path: self.load(path, model) for path in paths}
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(paths, threads.map(lambda p: self.load(p, model), paths), strict=True))

    def load(self, path: Path, model: type[R]) -> R | str | None:
        """Return the record, or what is wrong with the file, or None if it has just gone."""
        try:
            mark = _mark(path)
            known = self._cache.get(path)
            if known is None or known[0] != mark:
                known = (mark, parse_record(path, read_limited(path, MOST_BYTES), model))
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
