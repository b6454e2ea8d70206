"""Records as columns, and columns as the bytes of one Parquet file.

Columns come from the models in `row.py`, so that model and files cannot drift apart; a golden test
fixes the result. Units and meanings travel in the field metadata.

A row has flat columns, so that any tool groups runs by a setting, a metric or a version:

    config.client.lr    metric.linear_acc    cost.bytes_up    platform.torch

What is no number, text or truth value stays JSON: nulls, lists and empty parts of a configuration
in `config_json`, traffic in `traffic_json`. A column that is missing or null says nothing: the
setting has its default, the metric was not measured. Before schema 5 the whole configuration was
in `config_json`, and further metrics in `metrics_json`; the same code reads both forms.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.store.row import (
    COSTS,
    METRICS,
    SCHEMA_VERSION,
    PaperCell,
    Record,
    Row,
    Trial,
    first_problem,
    strict_json,
)
from fedbench.bench.system.checksums import KEY, ZEROS, add_checksum, has_checksum
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.identity import canonical_json

CONFIG, METRIC, COST, PLATFORM = "config.", "metric.", "cost.", "platform."
"""Beginnings of columns that hold a setting, a metric, a cost, a version."""
_JSON = {
    "traffic": "traffic_json",
    "privacy": "privacy_json",
    "platforms": "platform_json",
    "scaled": "scaled_json",
    # Of these only what cannot have a column of its own.
    "settings": "config_json",
    "environment": "env_json",
    "further": "metrics_json",
}
"""Fields of a row that are JSON, and their columns."""
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_MEANINGS = {
    "config": "setting of the run; null = its default, or in config_json",
    "metric": "metric; null = not measured",
    "platform": "version of the environment",
}
_LARGEST = 2**63 - 1
"""Of int64; a larger number stays JSON."""


def column_of(name: str) -> str:
    """Return the column of a field of `Row`.

    >>> [column_of(name) for name in ("seed", "linear_acc", "bytes_up", "traffic")]
    ['seed', 'metric.linear_acc', 'cost.bytes_up', 'traffic_json']
    """
    start = METRIC if name in METRICS else COST if name in COSTS else ""
    return _JSON.get(name, f"{start}{name}")


COLUMNS = {name: column_of(name) for name in Row.model_fields}
"""Field of `Row` -> its column."""
_FIELDS = {column: name for name, column in COLUMNS.items()}


def to_columns(row: Row, nested: Collection[str] = ()) -> dict[str, Any]:
    """Return the columns of a row that have a value; those in `nested` stay in JSON."""
    record: dict[str, Any] = {}
    for name, value in dict(row).items():
        column = COLUMNS[name]
        if name == "settings":
            value = _spread(value, CONFIG, nested, record)
        elif name == "environment":
            value = _spread(value, PLATFORM, nested, record)
        elif name == "further":
            record |= {f"{METRIC}{metric}": float(number) for metric, number in value.items()}
            continue
        if name in _JSON:
            value = canonical_json(value) if value else None
        if value is not None:
            record[column] = value
    return record


def _spread(
    values: Mapping[str, Any], start: str, nested: Collection[str], record: dict[str, Any]
) -> dict[str, Any]:
    """Give a column in `record` to each value that can have one; return the others."""
    rest: dict[str, Any] = {}
    for key, value in values.items():
        column = f"{start}{key}"
        if "." in key or column in nested:
            rest[key] = value
        elif isinstance(value, dict) and value:
            if inner := _spread(value, f"{column}.", nested, record):
                rest[key] = inner
        elif type(value) in _TYPES and (type(value) is not int or abs(value) <= _LARGEST):
            record[column] = value
        else:
            rest[key] = value
    return rest


def from_columns(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row by name, from its columns of any schema.

    Raises:
        StoreError: for JSON that is none, or columns that contradict each other.
    """
    given = {column: value for column, value in record.items() if value is not None}
    fields: dict[str, Any] = {"settings": {}, "environment": {}, "further": {}}
    for name, column in _JSON.items():
        if column in given:
            fields[name] = _parsed(column, given.pop(column), list if name == "platforms" else dict)
    parts = {CONFIG: fields["settings"], PLATFORM: fields["environment"], METRIC: fields["further"]}
    for column, value in given.items():
        start, dot, name = column.partition(".")
        if column in _FIELDS or start + dot not in parts:  # or as before schema 5, or a stranger's
            fields[_FIELDS.get(column, column)] = value
        else:
            _put(parts[start + dot], name, value, column)
    further = fields["further"].items()
    fields["further"] = {k: v for k, v in further if k not in METRICS and v is not None}
    return fields


def _parsed(column: str, text: Any, kind: type) -> Any:
    try:
        value = strict_json(text)
    except (TypeError, ValueError) as err:
        raise StoreError(f"not of this store: {column}: {err}") from err
    if not isinstance(value, kind):
        raise StoreError(f"not of this store: {column}: is {type(value).__name__}")
    return value


def _put(values: dict[str, Any], name: str, value: Any, column: str) -> None:
    """Put a value below its dotted name; only settings nest, not `mim.loss`."""
    *groups, last = name.split(".") if column.startswith(CONFIG) else [name]
    for group in groups:
        values = values.setdefault(group, {})
        if not isinstance(values, dict):
            raise StoreError(f"not of this store: {column}: {group} holds a value")
    values[last] = value


def row_table(rows: Sequence[Row], nested: Collection[str] = ()) -> pa.Table:
    """Return rows as a table with the columns in which one of them has a value.

    A setting that is text in some rows and a number in others stays JSON, as do those in `nested`.
    """
    records = [to_columns(row) for row in rows]
    kinds: dict[str, set[type]] = {}
    for record in records:
        for column in record.keys() - _FIELDS.keys():
            kinds.setdefault(column, set()).add(type(record[column]))
    mixed = {column for column, of in kinds.items() if len(of) > 1 and of != {int, float}}
    if mixed := mixed.union(nested) & kinds.keys():
        records = [to_columns(row, mixed) for row in rows]
    known = [field for field in ROW_SCHEMA if any(field.name in record for record in records)]
    further = []
    for column in sorted(kinds.keys() - mixed):
        kind = float if float in kinds[column] else kinds[column].pop()
        meaning = {"doc": _MEANINGS[column.partition(".")[0]]}
        further.append(pa.field(column, _TYPES[kind], metadata=meaning))
    fields = pa.schema([*known, *further], metadata=ROW_SCHEMA.metadata)
    return pa.Table.from_pylist(records, schema=fields)


def nested_settings(table: pa.Table) -> set[str]:
    """Return the columns that settings would have which rows of a table hold as JSON.

    Nulls, lists and empty parts have none in any row.
    """
    texts = filter(None, table.column("config_json").unique().to_pylist())
    settings = [item for text in texts for item in flatten(json.loads(text)).items()]
    return {f"{CONFIG}{name}" for name, value in settings if type(value) in _TYPES}


R = TypeVar("R", bound=Record)

UNPACKED, UNPACKED_BOARD = 2**28, 2**31
"""Bytes that a table may unpack to, and one of many rows: a row takes some 30 kB."""


def _arrow_field(name: str, said: Mapping[str, Any]) -> pa.Field:
    """Return the column of a field, which a model's JSON schema describes."""
    given, *null = said.get("anyOf", [said])
    as_json = "object" in (given["type"], given.get("items", {}).get("type"))
    types = {
        "string": pa.string(),
        "date-time": pa.timestamp("us", tz="UTC"),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "integer": pa.int32() if said.get("arrow") == "int32" else pa.int64(),
        "array": pa.list_(pa.int32()),
    }
    kind = pa.string() if as_json else types[given.get("format", given["type"])]
    metadata = {"doc": said["description"]} | ({"unit": said["unit"]} if "unit" in said else {})
    return pa.field(name, kind, nullable=as_json or bool(null), metadata=metadata)


def _schema(model: type[Record], version: int = SCHEMA_VERSION) -> pa.Schema:
    names = COLUMNS if model is Row else {}
    properties = model.model_json_schema()["properties"].items()
    fields = [_arrow_field(names.get(name, name), said) for name, said in properties]
    return pa.schema(fields, metadata={"fedbench.schema_version": str(version)})


ROW_SCHEMA = _schema(Row)
"""Columns of every row; those of its settings and further metrics follow them."""
TRIAL_SCHEMA = _schema(Trial)
PAPER_SCHEMA = _schema(PaperCell, version=2)  # which does not change with that of rows
_SCHEMAS: dict[type[Record], pa.Schema] = {Trial: TRIAL_SCHEMA, PaperCell: PAPER_SCHEMA}


def encode(records: Sequence[Record], model: type[Record]) -> bytes:
    """Return Parquet bytes with the model's schema; equal arguments give equal bytes.

    A file of one record is read with thousands like it: it is not compressed, and one of a row has
    neither empty columns nor their meanings.
    """
    if model is Row:
        table = row_table([record for record in records if isinstance(record, Row)])
    else:
        table = pa.Table.from_pylist([dict(r) for r in records], schema=_SCHEMAS[model])
    return table_bytes(table, alone=len(records) == 1)


def table_bytes(table: pa.Table, *, alone: bool = False) -> bytes:
    """Return the bytes of one Parquet file, with a checksum of all of them in its footer."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="none" if alone else "zstd",
        store_schema=not alone,
        # Nobody looks up single values, and headers are what costs in thousands of small files.
        use_dictionary=False,
        write_statistics=False,
        # Older than the checksum of the whole file, which is the one that is read.
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KEY: ZEROS})
    return add_checksum(bytes(sink.getvalue().to_pybytes()))


def read_table(data: bytes, most: int = UNPACKED) -> pa.Table:
    """Return the table in the bytes of one Parquet file that has a checksum.

    Raises:
        StoreError: when the bytes are not a whole Parquet file, the checksum does not fit, or the
            values would unpack to more than `most` bytes.
    """
    try:
        if not has_checksum(data):  # before anything is parsed
            raise ValueError("its checksum is missing")
        file = pq.ParquetFile(pa.BufferReader(data))
        _check_unpacked(file.metadata, most)
        return file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as cause:
        first = (str(cause).splitlines() or ["unreadable"])[0]
        raise StoreError(f"torn or altered: {first[:100]}") from cause


def _check_unpacked(metadata: pq.FileMetaData, most: int) -> None:
    """Refuse a file whose values would take more than `most` bytes.

    A page of a few bytes can stand for a thousand million equal numbers, or refer as often to a
    long text of a dictionary.
    """
    size = values = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            times = column.num_values if column.has_dictionary_page else 1
            size += column.total_uncompressed_size * times
            values += column.num_values
    if max(size, 8 * values) > most:
        raise StoreError(f"it unpacks to more than {most:,} bytes")


def decode(data: bytes, model: type[R]) -> list[R]:
    """Return the records in the bytes of one Parquet file; see `decode_table`."""
    return decode_table(read_table(data), model)


def to_records(table: pa.Table) -> list[dict[str, Any]]:
    """Return a table's rows as dicts, with times in UTC.

    pyarrow would import pandas for a time with a zone, which takes a quarter of a second.
    """
    kinds = enumerate(table.schema.types)
    times = {at: table.schema.names[at] for at, kind in kinds if pa.types.is_timestamp(kind)}
    for at, name in times.items():
        table = table.set_column(at, name, table.column(at).cast(pa.timestamp("us")))
    records: list[dict[str, Any]] = table.to_pylist()
    for record in records:
        for name in times.values():
            if record[name] is not None:
                record[name] = record[name].replace(tzinfo=UTC)
    return records


def decode_table(table: pa.Table, model: type[R]) -> list[R]:
    """Return the records in a table: columns that an older schema lacks are null, none is ignored.

    Raises:
        StoreError: a newer schema, or columns or values that the model refuses.
    """
    try:
        records = to_records(table)
    except (pa.ArrowException, ValueError, OverflowError) as cause:
        raise StoreError("its values cannot be read") from cause
    newest = max((v for r in records if isinstance(v := r.get("schema_version"), int)), default=0)
    if newest > SCHEMA_VERSION:
        raise StoreError(
            f"written by a newer fedbench (schema {newest}, this one knows {SCHEMA_VERSION});"
            " update fedbench"
        )
    if model is Row:
        records = [from_columns(record) for record in records]
    try:
        return [model(**record) for record in records]
    except ValidationError as cause:
        raise StoreError(f"not of this store: {first_problem(cause)}") from cause
