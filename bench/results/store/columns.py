"""Rows as flat columns, so that any tool groups runs by a setting, a metric or a version.

A configuration, metrics, costs and versions have a column for each of their values:

    config.client.lr    metric.linear_acc    cost.bytes_up    platform.torch

What is no number, text or truth value stays JSON: nulls, lists and empty parts of a configuration
in `config_json`, traffic in `traffic_json`. A column that is missing or null says nothing: the
setting has its default, the metric was not measured. Before schema 5 the whole configuration was
in `config_json`, and further metrics in `metrics_json`; the same code reads both forms.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fedbench.bench.results.store.row import COSTS, METRICS, Row, parse_json
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.identity import canonical_json

CONFIG, METRIC, COST, PLATFORM = "config.", "metric.", "cost.", "platform."
"""Beginnings of columns that hold a setting, a metric, a cost, a version."""
_WHOLE = {
    "traffic": "traffic_json",
    "privacy": "privacy_json",
    "platforms": "platform_json",
    "scaled": "scaled_json",
}
"""Fields of a row that are JSON."""
_REST = {"settings": "config_json", "environment": "env_json", "further": "metrics_json"}
"""Fields of a row whose values have columns of their own, and the column of all others."""
_JSON = {**_WHOLE, **_REST}
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_MEANINGS = {
    "config": "setting of the run; null = its default, or in config_json",
    "metric": "metric; null = not measured",
    "platform": "version of the environment",
}
_LARGEST = 2**63 - 1


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
        value = parse_json(text)
    except (TypeError, ValueError) as err:
        raise StoreError(f"not of this store: {column}: {err}") from err
    if not isinstance(value, kind):
        raise StoreError(f"not of this store: {column}: is {type(value).__name__}")
    return value


def _put(values: dict[str, Any], name: str, value: Any, column: str) -> None:
    """Put a value below its dotted name."""
    *groups, last = name.split(".") if column.startswith(CONFIG) else [name]
    for group in groups:
        values = values.setdefault(group, {})
        if not isinstance(values, dict):
            raise StoreError(f"not of this store: {column}: {group} holds a value")
    values[last] = value


def row_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Return rows as a table with the columns in which one of them has a value.

    A setting that is text in some rows and a number in others stays JSON.

    Args:
        rows: any number.
        schema: of the columns that rows of every configuration have.
    """
    records = [to_columns(row) for row in rows]
    kinds: dict[str, set[type]] = {}
    for record in records:
        for column in record.keys() - _FIELDS.keys():
            kinds.setdefault(column, set()).add(type(record[column]))
    mixed = {column for column, of in kinds.items() if len(of) > 1 and of != {int, float}}
    if mixed:
        records = [to_columns(row, mixed) for row in rows]
    known = [field for field in schema if any(field.name in record for record in records)]
    further = []
    for column in sorted(kinds.keys() - mixed):
        kind = float if float in kinds[column] else kinds[column].pop()
        meaning = {"doc": _MEANINGS[column.partition(".")[0]]}
        further.append(pa.field(column, _TYPES[kind], metadata=meaning))
    fields = pa.schema([*known, *further], metadata=schema.metadata)
    return pa.Table.from_pylist(records, schema=fields)
