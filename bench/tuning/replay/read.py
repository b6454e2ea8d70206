"""Read a table that anybody may have written, and check every line of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedbench.bench.results.search_table import COSTS, FORMAT, IDENTITY, SETTINGS, TABLE
from fedbench.bench.results.store.checked import read_checked
from fedbench.bench.results.store.schema import read_table
from fedbench.bench.system.errors import StoreError

Line = Mapping[str, Any]
OK, DIVERGED = "ok", "diverged"
_SCALARS = (pa.bool_(), pa.int64(), pa.float64(), pa.string())
"""Types of columns of settings."""


@dataclass(frozen=True)
class SearchTable:
    """A table that was checked.

    Attributes:
        lines: column -> value; None where there is none, as for a metric that is not finite.
        settings: columns of settings.
        metrics: columns of metrics.
        shared: method spec -> settings that all of its runs have.
    """

    lines: Sequence[Line]
    settings: tuple[str, ...]
    metrics: tuple[str, ...]
    shared: Mapping[str, Mapping[str, Any]]


def read_search_table(place: str) -> SearchTable:
    """Return a table that `fedbench release --table` wrote.

    Args:
        place: the file, or its https address; compared with the `SHA256SUMS` beside it, if any.

    Raises:
        StoreError: if it cannot be read, or is no such table.
    """
    folder = Path(place).expanduser()
    with suppress(OSError):  # of a name that no system takes, which reading explains
        if folder.is_dir():
            inside = [str(path) for path in sorted(folder.glob("*.parquet"))]
            raise StoreError(
                f"{place!r} is a folder; name {inside[0] if inside else 'a Parquet file'!r}"
            )
    data, _ = read_checked(place, "table")
    try:
        table = _plain(read_table(data))
        about, shared = _metadata(table.schema)
        settings = tuple(about["settings"])
        metrics = _columns(table.schema, settings)
        lines = [_line(line, settings, metrics) for line in table.to_pylist()]
        _check_runs(lines)
    except StoreError as err:
        raise StoreError(f"{place!r}: {err}") from err
    except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as err:
        raise StoreError(f"{place!r} cannot be read as a table to search in: {err}") from err
    return SearchTable(lines, settings, metrics, shared)


def _plain(table: pa.Table) -> pa.Table:
    """Return a table with the type of text that fedbench writes; pandas writes another."""
    fields = [
        field.with_type(pa.string()) if field.type == pa.large_string() else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


def _metadata(schema: pa.Schema) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    metadata = schema.metadata or {}
    if TABLE.encode() not in metadata:
        raise StoreError("no table to search in; `fedbench release FOLDER --table GRID` writes one")
    about = json.loads(metadata[TABLE.encode()])
    shared = json.loads(metadata.get(SETTINGS.encode(), b"{}"))
    if about["format"] != FORMAT:
        raise StoreError(
            f"a table of format {about['format']}; this fedbench reads format {FORMAT}: install"
            " the version that wrote it"
        )
    return about, {spec: dict(values) for spec, values in shared.items()}


def _columns(schema: pa.Schema, settings: Sequence[str]) -> tuple[str, ...]:
    """Check the columns and return those of metrics."""
    if len({*schema.names}) < len(schema.names):
        raise StoreError("it has two columns of one name")
    kinds = {name: schema.field(name).type for name in schema.names}
    for name, (kind, _) in {**IDENTITY, **COSTS}.items():
        if kinds.get(name) != kind:
            raise StoreError(f"no table to search in: it has no column {name!r} of type {kind}")
    for name in settings:
        if kinds.get(name) not in _SCALARS:
            raise StoreError(f"it has no column of single values for the setting {name!r}")
    known = {*IDENTITY, *COSTS, *settings}
    return tuple(n for n, kind in kinds.items() if n not in known and kind == pa.float64())


def _line(line: Line, settings: Sequence[str], metrics: Sequence[str]) -> Line:
    """Return a line whose values are as they should be."""
    for name in (*IDENTITY, *COSTS):
        value = line[name]
        if value is None or (name in COSTS and not 0 <= value < math.inf):
            raise StoreError(f"run {line['row_id']}: {name} is {value}")
    if line["status"] not in (OK, DIVERGED):
        raise StoreError(f"run {line['row_id']}: status {line['status']!r}, not {OK} or {DIVERGED}")
    if line["round"] < 0:
        raise StoreError(f"run {line['row_id']}: round {line['round']}")
    for name in settings:
        if isinstance(line[name], float) and not math.isfinite(line[name]):
            raise StoreError(f"run {line['row_id']}: {name} is {line[name]}")
    finite: dict[str, Any] = {}
    for name in metrics:
        value = line[name]
        finite[name] = value if value is not None and math.isfinite(value) else None
        if name.endswith("_acc") and not 0 <= (finite[name] or 0) <= 1:
            raise StoreError(f"run {line['row_id']}: {name} is {value}, not in [0, 1]")
    return {**line, **finite}


def _check_runs(lines: Sequence[Line]) -> None:
    """Check that every run begins before training and is of one kind in all its lines."""
    kinds: dict[str, tuple[Any, ...]] = {}
    begun = {line["row_id"] for line in lines if line["round"] == 0}
    for line in lines:
        kind = tuple(line[name] for name in IDENTITY if name != "round")
        if kinds.setdefault(line["row_id"], kind) != kind:
            raise StoreError(f"run {line['row_id']}: its lines differ in method, seed or status")
        if line["row_id"] not in begun:
            raise StoreError(f"run {line['row_id']}: it has no line for round 0")
