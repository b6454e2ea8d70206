"""Reading one-record Parquet files, each once while it does not change."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TypeVar, cast

from fedbench.bench.results.store.replicas import replica_hash
from fedbench.bench.results.store.row import Record, Row
from fedbench.bench.results.store.schema import decode
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import read_limited

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
    try:
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
    with suppress(OSError):
        state = path.stat()
        return state.st_size, state.st_mtime_ns
    return None


def load_all(paths: Sequence[Path], model: type[R]) -> dict[Path, R | str | None]:
    """`load` many files."""
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(paths, threads.map(lambda path: load(path, model), paths), strict=True))


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
