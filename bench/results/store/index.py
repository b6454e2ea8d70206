"""Many one-record files as one: a copy that saves opening each, used only where it fits the files.

Opening a Parquet file of sixty columns costs over a millisecond, a row of a large one a twentieth
of that. The index of a folder holds its records with the inode, size and time of change that each
file had; a file that differs is read itself. It may be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from fedbench.bench.results.store.row import Record
from fedbench.bench.results.store.schema import decode, encode, read_table, table_bytes

R = TypeVar("R", bound=Record)
Mark = tuple[int, int, int]
"""A file's inode, size, and time of change in nanoseconds."""

INDEX = ".index.parquet"
_MARKS = b"fedbench.marks"


def pack(entries: Mapping[str, tuple[Mark, R]], model: type[R]) -> bytes:
    """The bytes of an index, from each file's name without its ending to what it holds."""
    table = read_table(encode([record for _, record in entries.values()], model))
    marks = json.dumps([[name, *mark] for name, (mark, _) in entries.items()])
    metadata = {**(table.schema.metadata or {}), _MARKS: marks.encode()}
    return table_bytes(table.replace_schema_metadata(metadata))


def unpack(data: bytes, model: type[R]) -> dict[str, tuple[Mark, R]]:
    """The inverse of `pack`.

    Raises:
        StoreError: for bytes that are no index of such records.
    """
    metadata = read_table(data).schema.metadata or {}
    marks = json.loads(metadata.get(_MARKS, b"[]"))
    records = decode(data, model)
    pairs = zip(marks, records, strict=False)
    return {name: ((inode, size, time), record) for (name, inode, size, time), record in pairs}
