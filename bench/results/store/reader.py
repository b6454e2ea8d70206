"""Reading one-record Parquet files, each once while it does not change."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fedbench.bench.results.store.index import INDEX, Mark, pack, unpack
from fedbench.bench.results.store.row import Record, Row
from fedbench.bench.results.store.schema import decode
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes

R = TypeVar("R", bound=Record)

_MANY = 64  # files from which threads and an index pay
_THREADS = 4


def read_error(path: Path, cause: OSError) -> StoreError:
    """The one-line error for a failed read."""
    why = cause.strerror or cause
    return StoreError(f"cannot read {str(path)!r}: {why}; check the path of the store")


def list_folder(folder: Path) -> list[Path]:
    """Entries of a folder, sorted; none if it does not exist.

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
    """Parquet files of a folder, sorted, without hidden (temporary) ones."""
    return [p for p in list_folder(folder) if p.suffix == ".parquet" and p.name[0] != "."]


class Reader:
    """Loads files of one record and remembers them by inode, size and time of change."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[Mark, Record | str]] = {}
        self._indexed: dict[Path, set[Path]] = {}

    def forget(self, path: Path) -> None:
        """Read `path` anew next time."""
        self._cache.pop(path, None)

    def load_all(self, paths: Sequence[Path], model: type[R]) -> dict[Path, R | str | None]:
        """`load` of many files of one folder, by its index or in threads where that pays."""
        fresh = [path for path in paths if path not in self._cache]
        if len(fresh) >= _MANY and paths[0].parent not in self._indexed:
            fresh = self._use_index(paths[0].parent, fresh, model)
        if len(fresh) < _MANY:
            return {path: self.load(path, model) for path in paths}
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(paths, threads.map(lambda p: self.load(p, model), paths), strict=True))

    def _use_index(self, folder: Path, fresh: Sequence[Path], model: type[R]) -> list[Path]:
        """Takes over what the folder's index knows; returns the files that it does not."""
        known: dict[str, tuple[Mark, R]] = {}
        with suppress(OSError, StoreError, ValueError):  # it only saves time
            known = unpack((folder / INDEX).read_bytes(), model)
        # An indexed file that has changed since, or is of a copied store, is read itself.
        found = {path for path in fresh if path.stem in known and _fits(path, known[path.stem][0])}
        self._cache.update({path: known[path.stem] for path in found})
        self._indexed[folder] = found
        return [path for path in fresh if path not in found]

    def save_index(self, folder: Path, model: type[Record]) -> None:
        """Write the folder's index, if many of the files that were read are not in it."""
        held = {
            path: (mark, record)
            for path, (mark, record) in self._cache.items()
            if path.parent == folder and isinstance(record, model)
        }
        if len(held.keys() - self._indexed.get(folder, set())) < _MANY:
            return
        with suppress(StoreError):  # it only saves time
            entries = {path.stem: entry for path, entry in held.items()}
            atomic_write_bytes(folder / INDEX, pack(entries, model))
            self._indexed[folder] = set(held)

    def load(self, path: Path, model: type[R]) -> R | str | None:
        """The record, or what is wrong with the file, or None if it has just gone."""
        try:
            mark = _mark(path)
            known = self._cache.get(path)
            if known is None or known[0] != mark:
                known = (mark, _parse(path, path.read_bytes(), model))
                self._cache[path] = known
        except FileNotFoundError:
            return None
        except OSError as cause:
            return str(read_error(path, cause))
        found = known[1]
        return found if isinstance(found, model | str) else None


def _mark(path: Path) -> Mark:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _fits(path: Path, mark: Mark) -> bool:
    try:
        return _mark(path) == mark
    except OSError:  # `Reader.load` says what is wrong
        return False


def _parse(path: Path, data: bytes, model: type[Record]) -> Record | str:
    try:
        records = decode(data, model)
    except StoreError as error:
        return f"{str(path)!r}: {error}"
    if len(records) != 1:
        return f"{str(path)!r}: holds {len(records)} rows instead of one"
    record = records[0]
    name = record.row_id if isinstance(record, Row) else str(getattr(record, "number", ""))
    if name != path.stem:
        return f"{str(path)!r}: its content is that of {name!r}; give it that name or delete it"
    return record
