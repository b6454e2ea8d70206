"""Rows of a Parquet file, some at a time, within bounds that a file of a few kB cannot break.

The `datasets` library decodes a whole row group at once: 7 kB of one repeated value can be 600 GB.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench.bench.data.cache import readable
from fedbench.bench.data.sources.decode import MAX_IMAGES
from fedbench.bench.data.sources.rows import Rows
from fedbench.bench.system.errors import DataError

RATIO, LEAST = 256, 1 << 30  # a file may unpack to so many times its size, and to 1 GiB anyway
_ROWS, _BYTES = 512, 1 << 28  # rows and, roughly, bytes that are decoded at a time


def parquet_rows(source: Path | bytes, place: str) -> Rows:
    """Open a file, or its content.

    Raises `DataError` if the footer says too many rows or bytes, and while rows are read if more
    bytes than the footer says come out: a value that is stored once and referred to by all rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_bytes = isinstance(source, bytes)
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    file = pq.ParquetFile(pa.BufferReader(source) if is_bytes else source)
    schema, metadata = file.schema_arrow, file.metadata
    check_number(metadata.num_rows, place)
    unpacked = sum(chunk.total_uncompressed_size for chunk in chunks_of(metadata, schema.names))
    check_unpacked(place, size, unpacked)

    def read(columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        chunks = chunks_of(metadata, columns)
        largest = max((largest_value(chunk, source) for chunk in chunks), default=0)
        unpacked = 0
        for batch in file.iter_batches(
            max(1, min(_ROWS, _BYTES // max(1, largest))), columns=columns
        ):
            unpacked += batch.nbytes
            check_unpacked(place, size, unpacked)
            yield from batch.to_pylist()

    return Rows(schema, read)


def chunks_of(metadata: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the footer's entries of all chunks of some columns, and of their fields."""
    begins = tuple(f"{column}." for column in columns)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if f"{chunk.path_in_schema}.".startswith(begins):
                yield chunk


def largest_value(chunk: Any, source: Path | bytes) -> int:
    """Return a bound on the bytes of one value that many rows may refer to."""
    if chunk.physical_type != "BYTE_ARRAY":
        return 0
    if "DELTA_BYTE_ARRAY" in chunk.encodings:  # each value may begin as the one before
        return int(chunk.total_uncompressed_size)
    if not chunk.has_dictionary_page:
        return 0
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        stream.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        head = stream.read(16)
    return _page_bytes(head) or int(chunk.total_uncompressed_size)


def check_footers(files: Iterable[Path], place: str) -> None:
    """Raise `DataError` if Parquet files have too many rows together, or a footer is torn."""
    import pyarrow.parquet as pq

    total = 0
    for file in files:
        with readable(file):
            total += pq.read_metadata(file).num_rows
        check_number(total, place)


def _page_bytes(head: bytes) -> int | None:
    """Return the unpacked size that the header of a page says; None if it has another form.

    A header begins with its fields 1 (type) and 2 (unpacked size), 32-bit integers of Thrift's
    compact protocol: 0x15, then the zigzag value in bytes of 7 bits, lowest first.
    """
    value, position = 0, 0
    for _ in range(2):
        if head[position : position + 1] != b"\x15":
            return None
        value, shift, more = 0, 0, True
        while more:
            position += 1
            if position >= len(head):
                return None
            value |= (head[position] & 0x7F) << shift
            shift, more = shift + 7, head[position] > 0x7F
        position += 1
    return value >> 1


def check_unpacked(place: str, size: int, unpacked: int) -> None:
    """Raise `DataError` if a file of `size` bytes unpacks to too many, or to at least those."""
    allowed = max(LEAST, RATIO * size)
    if unpacked > allowed:
        raise DataError(
            f"{place}: its {size:,} bytes unpack to {unpacked / 1e9:,.1f} GB or more; allowed:"
            f" {allowed / 1e9:,.1f} GB ({RATIO} times the file, at least 1 GiB)"
        )


def check_number(number: int, place: str) -> None:
    """Raise `DataError` for more rows than a data set may have."""
    if number > MAX_IMAGES:
        raise DataError(f"{place} has {number:,} rows; allowed: {MAX_IMAGES:,}, so take a part")
