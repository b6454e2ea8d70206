"""Tables of images: Parquet files, Arrow files and whatever else has a schema and batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedbench.bench.data.cache import first_line
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources.decode import Picture
from fedbench.bench.system.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")
ROWS = 512  # rows read at a time


class Table(Protocol):
    """Part of a split: its name in messages, its schema, its rows in batches."""

    @property
    def path(self) -> Path:
        """Place, for messages."""
        ...

    def schema(self) -> pa.Schema:
        """Return names, kinds and metadata of the columns."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these columns, in order."""
        ...


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file."""

    path: Path

    def schema(self) -> pa.Schema:
        """Return the file's schema."""
        import pyarrow.parquet as pq

        return pq.read_schema(self.path)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as parquet:
            yield from parquet.iter_batches(ROWS, columns=list(columns))


@dataclass(frozen=True)
class ArrowTable:
    """An Arrow file in the streaming format, as the `datasets` library saves it."""

    path: Path

    def schema(self) -> pa.Schema:
        """Return the file's schema."""
        import pyarrow as pa

        with pa.memory_map(str(self.path)) as source, pa.ipc.open_stream(source) as reader:
            return reader.schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows."""
        import pyarrow as pa

        with pa.memory_map(str(self.path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                yield batch.select(list(columns))


def table_of(path: Path) -> Table:
    """Return a file as a table, by its suffix."""
    return ArrowTable(path) if path.suffix == ".arrow" else ParquetTable(path)


@dataclass(frozen=True)
class TablePictures:
    """Images of one split, table by table, row by row.

    Attributes:
        tables: in order.
        texts: class by label, where labels are text.
        reading: columns of the label and of the client.
        unlabelled: further tables, whose labels are not read.
    """

    tables: Sequence[Table]
    texts: Mapping[str, int] = field(default_factory=dict)
    reading: Reading = PLAIN
    unlabelled: Sequence[Table] = ()

    def __iter__(self) -> Iterator[Picture]:
        """Yield the pictures in the order of the tables.

        Raises:
            DataError: a file is torn, a column is missing, or a value is.
        """
        for table in (*self.tables, *self.unlabelled):
            yield from self._pictures(table, labelled=table not in self.unlabelled)

    def _pictures(self, table: Table, *, labelled: bool) -> Iterator[Picture]:
        import pyarrow as pa

        row, file, client = 0, table.path, self.reading.client_column
        try:
            schema = table.schema()
            image, label = columns_of(schema, file, self.reading)
            if client is not None and client not in schema.names:
                raise _no_column("data.natural_column", client, schema, file)
            label = label if labelled else None
            names = dict.fromkeys(name for name in (image, label, client) if name is not None)
            for batch in table.batches(list(names)):
                images: Any = batch.column(image)
                if pa.types.is_struct(images.type):
                    images = images.field("bytes")
                count = batch.num_rows
                labels = [None] * count if label is None else batch.column(label).to_pylist()
                clients = [None] * count if client is None else batch.column(client).to_pylist()
                for data, value, of in zip(images.to_pylist(), labels, clients, strict=True):
                    if data is None:
                        raise DataError(f"{file}, row {row}: no image bytes")
                    if client is not None and (of is None or isinstance(of, (list, dict))):
                        raise DataError(f"{file}, row {row}: {client!r} is {of!r}; needed: a value")
                    single = single_label(value, file, row)
                    number = self.texts[single] if isinstance(single, str) else single
                    yield Picture(file, HIDDEN if number is None else number, row, data, of)
                    row += 1
        except (pa.ArrowException, OSError) as err:
            raise _unreadable(file, row, err) from err

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names of the Hub's schema metadata, or None."""
        import pyarrow as pa

        if self.texts:
            return tuple(self.texts)
        if not self.tables:
            return None
        try:
            schema = self.tables[0].schema()
        except (pa.ArrowException, OSError) as err:
            raise _unreadable(self.tables[0].path, 0, err) from err
        _, label = columns_of(schema, self.tables[0].path, self.reading)
        try:
            metadata = json.loads((schema.metadata or {})[b"huggingface"])
            names = metadata["info"]["features"][label]["names"]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None  # the key is optional, and so is every part of it
        return tuple(map(str, names)) if isinstance(names, list) and names else None


def texts_of(tables: Sequence[Table], reading: Reading) -> dict[str, int]:
    """Number the labels of all tables in order of their text; empty if labels are integers."""
    import pyarrow as pa

    names: set[str] = set()
    for table in tables:
        row = 0
        try:
            _, label = columns_of(table.schema(), table.path, reading)
            if label is None or not _is_label(table.schema().field(label).type, text=True):
                continue
            for batch in table.batches([label]):
                for value in batch.column(0).to_pylist():
                    single = single_label(value, table.path, row)
                    names.update([] if single is None else [str(single)])
                    row += 1
        except (pa.ArrowException, OSError) as err:
            raise _unreadable(table.path, row, err) from err
    return {name: number for number, name in enumerate(sorted(names))}


def single_label(value: Any, file: Path, row: int) -> Any:
    """Return a label, or the only one of a list; None for none."""
    if not isinstance(value, list):
        return value
    if len(value) != 1 or value[0] is None:
        raise DataError(f"{file}, row {row}: {len(value)} labels in a list; allowed: one")
    return value[0]


def _is_label(kind: Any, *, text: bool | None = None) -> bool:
    """True for integers and text, or lists of these; `text` asks for text alone."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    return is_text if text else is_text or bool(pa.types.is_integer(kind))


def columns_of(schema: pa.Schema, file: Path, reading: Reading) -> tuple[str, str | None]:
    """Names of the image and of the label column; None where nothing could be a label."""
    import pyarrow as pa

    def is_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    def is_image(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(f.name == "bytes" and is_bytes(f.type) for f in kind.fields)
        return is_bytes(kind)

    kinds = {field.name: field.type for field in schema}
    image = next((n for n in IMAGE_COLUMNS if n in kinds and is_image(kinds[n])), None)
    used = (image, reading.client_column)
    fitting = [name for name, kind in kinds.items() if name not in used and _is_label(kind)]
    label = next((name for name in LABEL_COLUMNS if name in fitting), None)
    if label is None and len(fitting) == 1:
        (label,) = fitting
    if (wanted := reading.label_column) is not None:
        if wanted not in kinds or not _is_label(kinds[wanted]):
            raise _no_column("data.label_column", wanted, schema, file)
        label = wanted
    # Without any column that could be meant the images are unlabelled.
    meant = fitting or [name for name in LABEL_COLUMNS if name in kinds]
    if image is None or (label is None and meant):
        raise DataError(
            f"{file}: needed are an image column ({' or '.join(IMAGE_COLUMNS)}: struct of bytes and"
            f" path) and a label column ({', '.join(LABEL_COLUMNS)}, or the only other one of"
            f" integers or text, or data.label_column=NAME); found: {_listed(schema)}"
        )
    return image, label


def _no_column(key: str, name: str, schema: pa.Schema, file: Path) -> DataError:
    return DataError(
        f"{key}={name}: {file} has no such column of integers or text; found: {_listed(schema)}"
    )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _unreadable(file: Path, row: int, err: BaseException) -> DataError:
    kind = "Arrow" if file.suffix == ".arrow" else "Parquet"
    return DataError(f"{file} cannot be read as {kind} at or after row {row} ({first_line(err)})")
