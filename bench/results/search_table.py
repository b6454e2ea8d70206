"""Tables of runs: a line for each run and round that was measured, as one Parquet file.

Every setting that differs between runs of one method has a column of its own under its dotted name,
so that the file can be read without fedbench; the others are in the metadata of the schema.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from fedbench.bench.method import registry
from fedbench.bench.results.store.row import FINAL_METRICS, Row
from fedbench.bench.results.store.schema import ROW_SCHEMA
from fedbench.bench.results.store.settings import (
    entry_id,
    evaluation_of,
    measured_by,
    training_of,
)
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.identity import canonical_json

Points = Sequence[Mapping[str, Any]]
Run = tuple[Row, Points]
"""A row and the records of its rounds."""

TABLE, SETTINGS = "fedbench.table", "fedbench.settings"
"""Keys of the schema's metadata: what the table is, and what all runs of a method share."""
FORMAT = 1
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
"""Costs of a run so far: type and meaning."""
_UNTRAINED = "untrained_"


def search_table(
    runs: Sequence[Run], version: str, meanings: Mapping[str, str] = MappingProxyType({})
) -> pa.Table:
    """Return the table of some runs, ordered by method, configuration, seed and round.

    A run that diverged has lines up to its last measured round. Equal arguments give equal tables.

    Args:
        runs: see `choose`.
        version: of the table.
        meanings: metric -> what it is, for those that have no column in rows.

    Raises:
        ConfigError: as `choose`.
    """
    runs = choose(runs)
    settings = [training_of(row.config_json) for row, _ in runs]
    of_method: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for (row, _), values in zip(runs, settings, strict=True):
        of_method[row.method].append(values)
    varied = sorted({name for trained in of_method.values() for name in _varied(trained)})
    columns = {name: _column([values.get(name) for values in settings]) for name in varied}
    records = []
    for i, (row, points) in enumerate(runs):
        values = {name: column[i] for name, (_, column) in columns.items()}
        records += [{**line, **values} for line in _lines(row, points)]
    records.sort(
        key=lambda line: (
            line["method"],
            [(line[name] is not None, 0 if line[name] is None else line[name]) for name in varied],
            line["seed"],
            line["round"],
        )
    )
    known = {*IDENTITY, *COSTS, *varied}
    measured = {name for record in records for name in record} - known
    fields = [_field(name, *entry) for name, entry in IDENTITY.items()]
    fields += [_field(name, kind, "as configured") for name, (kind, _) in columns.items()]
    fields += [_field(name, *entry) for name, entry in COSTS.items()]
    fields += [_field(name, pa.float64(), _meaning(name, meanings)) for name in _ordered(measured)]
    shared = {
        method: {k: v for k, v in trained[0].items() if k not in {"spec", *varied}}
        for method, trained in of_method.items()
    }
    first = runs[0][0]
    about = {
        "format": FORMAT,
        "version": version,
        "settings": varied,
        "dataset_revision": first.dataset_revision,
        "benchmark_version": first.benchmark_version,
        "measured_by": {
            k: v for row, _ in runs for k, v in measured_by(evaluation_of(row)).items()
        },
    }
    metadata = {TABLE: canonical_json(about), SETTINGS: canonical_json(shared)}
    return pa.Table.from_pylist(records, schema=pa.schema(fields, metadata=metadata))


def choose(runs: Sequence[Run]) -> list[Run]:
    """Return one run of those that were trained alike, of each configuration and seed.

    All of a method are measured by the same settings: those that the most of them have, or of
    several such settings those with the most measured rounds. Among the runs that are left the one
    with the most measured rounds, then the most metrics, is taken.

    Args:
        runs: failed ones are left out.

    Raises:
        ConfigError: if there is no run, if runs have other data or were measured otherwise, or if
            a run has no record of its rounds.
    """
    of_method: dict[str, dict[tuple[str, int], list[Run]]] = {}
    for row, points in sorted(runs, key=lambda run: run[0].row_id):
        if row.status in ("ok", "diverged"):
            if row.status == "ok" and len(points) < row.num_rounds:
                raise ConfigError(
                    f"run {row.row_id} has records of {len(points)} of its {row.num_rounds} rounds;"
                    " copy its curve.parquet beside its row, or run it again"
                )
            trained = of_method.setdefault(row.method, {})
            trained.setdefault((entry_id(row), row.seed), []).append((row, points))
    if not of_method:
        raise ConfigError("no finished run is among the runs of the table")
    chosen = []
    for trained in of_method.values():
        rounds: Counter[str] = Counter()
        covered: Counter[str] = Counter()
        for alike in trained.values():
            most: dict[str, int] = {}
            for run in alike:
                by = canonical_json(measured_by(evaluation_of(run[0])))
                most[by] = max(most.get(by, 0), _num_measured(run))
            covered.update(most.keys())
            rounds.update(most)
        best = max(covered, key=lambda by: (covered[by], rounds[by], by))
        for alike in trained.values():
            kept = [
                run for run in alike if canonical_json(measured_by(evaluation_of(run[0]))) == best
            ]
            chosen.append(
                max(
                    kept or alike,  # `_check_alike` names what differs
                    key=lambda run: (_num_measured(run), len(run[0].metrics), run[0].row_id),
                )
            )
    _check_alike([row for row, _ in chosen])
    return chosen


def _num_measured(run: Run) -> int:
    return len(_lines(*run))


def _preparatory(row: Row, points: Points) -> int:
    """Return the rounds of a run before the configured ones."""
    if row.status == "ok":
        return len(points) - row.num_rounds
    config = json.loads(row.config_json)
    return registry.create(config["spec"], config["method"]).needs().preparatory_rounds


def _lines(row: Row, points: Points) -> list[dict[str, Any]]:
    """Return a run's lines: before training, at each measured round, and at its end."""
    common = {name: getattr(row, name) for name in IDENTITY if name != "round"}
    figures = {name: float(value) for name, value in row.metrics.items()}
    untrained = {
        name.removeprefix(_UNTRAINED): value
        for name, value in figures.items()
        if name.startswith(_UNTRAINED)
    }
    final = {name: value for name, value in figures.items() if not name.startswith(_UNTRAINED)}
    lines = [{**common, "round": 0, **dict.fromkeys(COSTS, 0), **untrained}]
    spent = dict.fromkeys(COSTS, 0)
    preparatory = _preparatory(row, points)
    for point in points:
        for name in COSTS:
            spent[name] += point.get(name) or 0
        metrics = {
            name.removeprefix("metrics."): value
            for name, value in point.items()
            if name.startswith("metrics.") and value is not None
        }
        done = point["round_index"] + 1 - preparatory
        if row.status == "ok" and done == row.num_rounds:
            metrics = final
        elif metrics:
            metrics["final_loss"] = point["loss"]
        if metrics and done >= 1:
            lines.append({**common, "round": done, **spent, **metrics})
    return lines


def _varied(trained: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of settings that differ; a field that a run does not read is None."""
    names = {name for settings in trained for name in settings}
    return {
        name
        for name in names
        if len({canonical_json(settings.get(name)) for settings in trained}) > 1
    }


def _check_alike(rows: Sequence[Row]) -> None:
    """Raise ConfigError unless all runs have the same images and were measured alike."""
    seen: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for name in ("dataset_revision", "benchmark_version"):
            seen[name].add(getattr(row, name))
        for name, value in measured_by(evaluation_of(row)).items():
            seen[name].add(canonical_json(value))
    different = [name for name, values in seen.items() if len(values) > 1]
    if different:
        raise ConfigError(
            f"the runs differ in {different[0]}, so that their scores cannot be compared; make the"
            " table from a store whose runs of the grid are measured alike"
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


def _meaning(name: str, meanings: Mapping[str, str]) -> str:
    if name in ROW_SCHEMA.names:
        metadata = ROW_SCHEMA.field(name).metadata or {}
        unit, text = (metadata.get(key, b"").decode() for key in (b"unit", b"doc"))
        return f"{text} [{unit}]" if unit else f"{text}"
    if name in meanings:
        return meanings[name]
    if name.endswith("_acc"):
        return "accuracy of a probe, which reads labels [fraction]"
    return "a metric of fedbench's rows"


def _ordered(names: set[str]) -> list[str]:
    """Return names of metrics: those with a column in every row first."""
    first = [name for name in FINAL_METRICS if name in names]
    return [*first, *sorted(names - {*first})]
