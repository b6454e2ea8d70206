"""Rows of a Parquet file, some at a time, within bounds that a file of a few kB cannot break.

The `datasets` library decodes a whole row group at once: 7 kB of one repeated value can be 600 GB.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.bench.data.cache import first_line
from fedbench.bench.data.sources.decode import MAX_IMAGES
from fedbench.bench.system.errors import DataError

RATIO, LEAST = 256, 1 << 30  # a file may unpack to so many times its size, and to 1 GiB anyway
_ROWS, _BYTES = 512, 1 << 28  # rows and, roughly, bytes that are decoded at a time


class ParquetRows:
    """The rows of a file as dictionaries, with the part of `datasets.IterableDataset` in use.

    Raises `DataError` if the footer says too many rows or bytes, or if more bytes than the footer
    says come out: a value that is stored once and referred to by all rows.
    """

    def __init__(
        self, source: Path | bytes, place: str, columns: Sequence[str] | None = None
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.place = place
        self._source, self._columns = source, columns
        is_bytes = isinstance(source, bytes)
        self._size = len(source) if isinstance(source, bytes) else source.stat().st_size
        self._file = pq.ParquetFile(pa.BufferReader(source) if is_bytes else source)
        check_number(self._file.metadata.num_rows, place)
        unpacked = sum(chunk.total_uncompressed_size for chunk in self._chunks())
        check_unpacked(place, self._size, unpacked)

    @cached_property
    def features(self) -> Any:
        """Types of all columns, as `datasets.Features`."""
        from datasets import Features

        return Features.from_arrow_schema(self._file.schema_arrow)

    def select_columns(self, columns: Sequence[str]) -> "ParquetRows":
        """Return the rows with some columns alone."""
        return ParquetRows(self._source, self.place, columns)

    def cast_column(self, column: str, feature: Any) -> "ParquetRows":
        """Return the same: images are not decoded here."""
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in their order."""
        largest = max(map(self._largest_value, self._chunks()), default=0)
        number = max(1, min(_ROWS, _BYTES // max(1, largest)))
        unpacked = 0
        for batch in self._file.iter_batches(number, columns=self._columns):
            unpacked += batch.nbytes
            check_unpacked(self.place, self._size, unpacked)
            yield from batch.to_pylist()

    def _chunks(self) -> Iterator[Any]:
        """Yield the footer's entries of all chunks of the columns."""
        metadata = self._file.metadata
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                if self._columns is None or chunk.path_in_schema.split(".")[0] in self._columns:
                    yield chunk

    def _largest_value(self, chunk: Any) -> int:
        """Return a bound on the bytes of one value that many rows may refer to."""
        if chunk.physical_type != "BYTE_ARRAY":
            return 0
        if "DELTA_BYTE_ARRAY" in chunk.encodings:  # each value may begin as the one before
            return int(chunk.total_uncompressed_size)
        if not chunk.has_dictionary_page:
            return 0
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        if isinstance(self._source, bytes):
            head = self._source[start : start + 16]
        else:
            with self._source.open("rb") as stream:
                stream.seek(start)
                head = stream.read(16)
        return _page_bytes(head) or int(chunk.total_uncompressed_size)


def check_footers(files: Iterable[Path], place: str) -> None:
    """Raise `DataError` if Parquet files have too many rows together, or a footer is torn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    total = 0
    for file in files:
        try:
            total += pq.read_metadata(file).num_rows
        except (OSError, pa.ArrowException) as err:
            raise DataError(f"{file} cannot be read ({first_line(err)})") from err
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
