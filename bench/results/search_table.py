"""Tables to search in: a line for each run and round that was measured, as one Parquet file.

Every setting that differs between runs of one method has a column of its own under its dotted name,
so that the file can be read without fedbench; the others are in the metadata of the schema.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fedbench.bench.results.leaderboard.comparability import (
    contender,
    metric_value,
    settings_of,
    training_of,
)
from fedbench.bench.results.metrics import FINAL_METRICS, METRICS, NEVER_READ
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.identity import canonical_json

Points = Sequence[Mapping[str, Any]]

VERSION, SETTINGS = "fedbench.table", "fedbench.settings"
IDENTITY = {
    "row_id": (pa.string(), "id of the run"),
    "method": (pa.string(), "method spec"),
    "dataset": (pa.string(), "data set"),
    "preset": (pa.string(), "preset that the run started from"),
    "status": (pa.string(), "ok, or diverged; a run that diverged has no later lines"),
    "seed": (pa.int64(), "seed of the run"),
    "round": (pa.int32(), "configured rounds done; 0 = before training [rounds]"),
}
"""Columns that every table has: type and meaning."""
COSTS = {
    "num_steps": (pa.int64(), "local steps of all clients so far [steps]"),
    "bytes_up": (pa.int64(), "sent by clients so far [B]"),
    "bytes_down": (pa.int64(), "sent to clients so far [B]"),
    "seconds": (pa.float64(), "training so far, on the machine of the run [s]"),
}
"""What a run has cost so far: type and meaning."""
_UNTRAINED = "untrained_"
_EVALUATION = "evaluation."


def search_table(runs: Sequence[tuple[Row, Points]], version: str) -> pa.Table:
    """Return the table of runs, ordered by method, configuration, seed and round.

    Of several runs that were trained alike the one with the most measured rounds is taken. A run
    that diverged has lines up to its last measured round. Equal arguments give equal tables.

    Args:
        runs: rows with the records of their rounds; failed ones are left out.
        version: of the table.

    Raises:
        ConfigError: if there is no run, or if runs have other data or were measured otherwise.
    """
    chosen: dict[tuple[str, int], tuple[list[dict[str, Any]], Row]] = {}
    preparatory = {  # rounds of each method before the configured ones
        row.method: len(points) - row.num_rounds for row, points in runs if row.status == "ok"
    }
    for row, points in sorted(runs, key=lambda run: run[0].row_id):
        if row.status in ("ok", "diverged"):
            key = contender(row), row.seed
            lines = _lines(row, points, preparatory.get(row.method, 0))
            if key not in chosen or len(lines) > len(chosen[key][0]):
                chosen[key] = lines, row
    if not chosen:
        raise ConfigError("no finished run is among the runs of the table")
    rows = [row for _, row in chosen.values()]
    _check_alike(rows)
    settings = [training_of(row.config_json) for row in rows]
    of_method: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row, values in zip(rows, settings, strict=True):
        of_method[row.method].append(values)
    varied = sorted(
        {
            name
            for alike in of_method.values()
            for name in alike[0]
            if len({canonical_json(values[name]) for values in alike}) > 1
        }
    )
    records = []
    columns = {name: _column([values.get(name) for values in settings]) for name in varied}
    for i, (lines, _) in enumerate(chosen.values()):
        own = {name: values[i] for name, (_, values) in columns.items()}
        records += [{**line, **own} for line in lines]
    records.sort(
        key=lambda r: (
            r["method"],
            canonical_json([r[name] for name in varied]),
            r["seed"],
            r["round"],
        )
    )
    known = {*IDENTITY, *COSTS, *varied}
    measured = {name for record in records for name in record} - known
    fields = [_field(name, *entry) for name, entry in IDENTITY.items()]
    fields += [_field(name, kind, "as configured") for name, (kind, _) in columns.items()]
    fields += [_field(name, *entry) for name, entry in COSTS.items()]
    fields += [_field(name, pa.float64(), _meaning(name)) for name in _ordered(measured)]
    fixed = {
        method: {k: v for k, v in alike[0].items() if k not in {"spec", *varied}}
        for method, alike in of_method.items()
    }
    metadata = {VERSION: version, SETTINGS: canonical_json(fixed)}
    return pa.Table.from_pylist(records, schema=pa.schema(fields, metadata=metadata))


def _lines(row: Row, points: Points, preparatory: int) -> list[dict[str, Any]]:
    """Return a run's lines: before training, at each measured round, and at its end."""
    common = {name: getattr(row, name) for name in IDENTITY if name != "round"}
    names = [*METRICS, *json.loads(row.metrics_json or "{}")]
    figures = {name: value for name in names if (value := metric_value(row, name)) is not None}
    untrained = {
        name.removeprefix(_UNTRAINED): value
        for name, value in figures.items()
        if name.startswith(_UNTRAINED)
    }
    final = {name: value for name, value in figures.items() if not name.startswith(_UNTRAINED)}
    lines = [{**common, "round": 0, **dict.fromkeys(COSTS, 0), **untrained}]
    spent = dict.fromkeys(COSTS, 0)
    for point in points:
        for name in COSTS:
            spent[name] += point.get(name) or 0
        found = {
            name.removeprefix("metrics."): value
            for name, value in point.items()
            if name.startswith("metrics.") and value is not None
        }
        done = point["round_index"] + 1 - preparatory
        if row.status == "ok" and done == row.num_rounds:
            found = final
        elif found:
            found["final_loss"] = point["loss"]
        if found:
            lines.append({**common, "round": done, **spent, **found})
    return lines


def _check_alike(rows: Sequence[Row]) -> None:
    """Raise ConfigError unless all runs have the same images and were measured alike."""
    problem = next(
        (
            name
            for name in ("dataset_revision", "benchmark_version")
            if len({getattr(row, name) for row in rows}) > 1
        ),
        None,
    )
    measured: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for name, value in settings_of(row.config_json).items():
            if name.startswith(_EVALUATION) and name.removeprefix(_EVALUATION) not in NEVER_READ:
                measured[name].add(canonical_json(value))
    problem = problem or next((name for name, seen in measured.items() if len(seen) > 1), None)
    if problem is not None:
        raise ConfigError(
            f"the runs differ in {problem}, so that their scores cannot be compared; take runs of"
            " one preset, measured alike"
        )


def _column(values: Sequence[Any]) -> tuple[pa.DataType, list[Any]]:
    """Return the type and the values of a setting's column; text where they are of several."""
    kinds = {type(value) for value in values if value is not None}
    for kind, allowed in (
        (pa.bool_(), {bool}),
        (pa.int64(), {int}),
        (pa.float64(), {int, float}),
        (pa.string(), {str}),
    ):
        if kinds <= allowed:
            return kind, [*values]
    texts = [v if v is None or isinstance(v, str) else canonical_json(v) for v in values]
    return pa.string(), texts


def _field(name: str, kind: pa.DataType, meaning: str) -> pa.Field[Any]:
    text, _, unit = meaning.removesuffix("]").partition(" [")
    return pa.field(name, kind, metadata={"doc": text, **({"unit": unit} if unit else {})})


def _meaning(name: str) -> str:
    if name.endswith("_acc"):
        return "accuracy of a probe, which reads labels [fraction]"
    return "see docs/objectives.md and docs/files.md"


def _ordered(names: set[str]) -> list[str]:
    """Return names of metrics: those with a column in every row first."""
    first = [name for name in FINAL_METRICS if name in names]
    return [*first, *sorted(names - {*first})]
