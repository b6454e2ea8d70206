"""What a table offers to a search: for each task the configurations, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.metrics import SPREAD_OF_PROJECTIONS
from fedbench.bench.results.search_table import COSTS, IDENTITY, SETTINGS, VERSION
from fedbench.bench.results.store.schema import read_table
from fedbench.bench.system.errors import ConfigError, StoreError, UnknownNameError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.tuning.scoring import Scoring
from fedbench.bench.tuning.suggester import Params

ACCURACIES = ("linear_acc", "knn_acc")
"""What a search is judged by: the first of these that every finished run has."""
_WORLD = ("data.", "federation.", "privacy.")
"""Sections whose settings make tasks; settings of the others are searched."""

Array = NDArray[np.float64]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """Runs of one method on data and a federation of one kind.

    Attributes:
        settings: what sets it apart from the table's other tasks, by dotted name.
        configurations: searched values of each configuration, in the order of the table.
        left_out: number of configurations that lack a seed.
        seeds: seeds that every configuration has.
        rounds: measured rounds, ascending; the last is the whole run.
        metric: accuracy by which a search is judged.
        accuracy: (configurations, seeds), of whole runs; of a run that diverged, that before
            training.
        steps: (configurations, seeds, rounds), local steps so far; a run that diverged makes none
            after its last measured round.
        figures: metric -> (configurations, seeds, rounds), NaN where it is undefined.
        untrained: metrics of encoders before training, one for each seed.
    """

    settings: Params
    configurations: tuple[Params, ...]
    left_out: int
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    metric: str
    accuracy: Array
    steps: Array
    figures: Mapping[str, Array]
    untrained: tuple[Mapping[str, float], ...]

    @cached_property
    def noise(self) -> float | None:
        """Standard deviation of the accuracy between seeds, pooled; None with one seed."""
        if len(self.seeds) < 2:
            return None
        return float(np.sqrt(self.accuracy.var(axis=1, ddof=1).mean()))

    def judged(self, scoring: Scoring, seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return what a study would record of each configuration after each measured round.

        Args:
            scoring: the objective.
            seeds: positions of the seeds whose scores are averaged.

        Returns:
            (configurations, rounds) records with `status`, `objective` and `score`.
        """
        names = [scoring.metric, "rho", "sep", "participation_ratio", SPREAD_OF_PROJECTIONS]
        known = [name for name in dict.fromkeys(names) if name in self.figures]

        def record(index: int, at: int) -> dict[str, Any]:
            runs = [
                {
                    name: float(value)
                    for name in known
                    if not np.isnan(value := self.figures[name][index, seed, at])
                }
                for seed in seeds
            ]
            if not all(runs):
                return {"status": "diverged", "objective": None, "score": None}
            score = mean(scoring.scores(runs))
            means = {n: mean([run[n] for run in runs if n in run]) for n in known}
            figures = {name: value for name, value in means.items() if value is not None}
            passes = score is not None and scoring.refusal(figures, self.untrained) is None
            status = "ok" if passes else "refused"
            return {"status": status, "objective": score if passes else None, "score": score}

        return [
            [record(index, at) for at in range(len(self.rounds))]
            for index in range(len(self.configurations))
        ]


def read_tasks(file: Path, spec: str, settings: Mapping[str, Any]) -> list[Task]:
    """Return the tasks of a method in a table.

    Args:
        file: as `fedbench release --table` writes it.
        spec: method spec.
        settings: settings to which the runs are restricted, by dotted name.

    Raises:
        StoreError: if the file cannot be read, or is no such table.
        UnknownNameError: if the table has no run of the method.
        ConfigError: for settings that no run has.
    """
    try:
        table = read_table(file.read_bytes())
    except OSError as err:
        raise StoreError(f"cannot read {str(file)!r}: {err.strerror or err}") from err
    except StoreError as err:
        raise StoreError(f"{str(file)!r}: {err}") from err
    _check_columns(file, table)
    lines = table.to_pylist()
    methods = sorted({line["method"] for line in lines})
    if spec not in methods:
        raise UnknownNameError("method of the table", spec, methods)
    lines = [line for line in lines if line["method"] == spec]
    metadata = table.schema.metadata or {}
    fixed = json.loads(metadata.get(SETTINGS.encode(), b"{}")).get(spec, {})
    lines = _restrict(lines, settings, fixed)
    varied = [
        name
        for name in table.column_names
        if "." in name and len({canonical_json(line[name]) for line in lines}) > 1
    ]
    of_tasks = [name for name in varied if name.startswith(_WORLD)]
    searched = [name for name in varied if name not in of_tasks]
    if not searched:
        raise ConfigError(f"all runs of {spec!r} in {str(file)!r} have the same hyperparameters")
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(canonical_json([line[name] for name in of_tasks]), []).append(line)
    metrics = [
        field.name
        for field in table.schema
        if field.type == pa.float64() and "." not in field.name and field.name not in COSTS
    ]
    return [
        _task({name: group[0][name] for name in of_tasks}, group, searched, metrics)
        for _, group in sorted(groups.items())
    ]


def _check_columns(file: Path, table: pa.Table) -> None:
    kinds = {name: table.schema.field(name).type for name in table.column_names}
    wanted = {name: kind for name, (kind, _) in {**IDENTITY, **COSTS}.items()}
    missing = [name for name, kind in wanted.items() if kinds.get(name) != kind]
    empty = [name for name in wanted if name not in missing and table.column(name).null_count]
    if empty:
        raise StoreError(f"{str(file)!r}: column {empty[0]!r} has lines without a value")
    if missing or VERSION.encode() not in (table.schema.metadata or {}):
        what = f"it has no column {missing[0]!r} of the right type" if missing else "no version"
        raise StoreError(
            f"{str(file)!r} is no table to search in ({what});"
            " `fedbench release FOLDER --table GRID` writes one"
        )


def _restrict(
    lines: Sequence[Line], settings: Mapping[str, Any], fixed: Mapping[str, Any]
) -> list[Line]:
    """Return the lines with these settings; `fixed` are those that all of them share."""
    for name, value in settings.items():
        if name not in fixed and ("." not in name or name not in lines[0]):
            known = [*(column for column in lines[0] if "." in column), *fixed]
            raise UnknownNameError("setting of the table", name, known)
        of = [line.get(name, fixed.get(name)) for line in lines]
        if value not in of:
            texts = sorted({canonical_json(one) for one in of})
            raise ConfigError(f"{name}={value}: the table has {', '.join(texts)} [--set]")
        lines = [line for line, one in zip(lines, of, strict=True) if one == value]
    return [*lines]


def _task(
    settings: Params, lines: Iterable[Line], searched: Sequence[str], metrics: Sequence[str]
) -> Task:
    runs: dict[str, dict[int, dict[int, Line]]] = {}  # configuration, seed, round
    values: dict[str, Params] = {}
    for line in lines:
        params = {name: line[name] for name in searched}
        key = canonical_json(params)
        values[key] = params
        by_round = runs.setdefault(key, {}).setdefault(line["seed"], {})
        if line["round"] in by_round:
            raise ConfigError(
                f"seed {line['seed']} of {params} has two lines for round {line['round']}; make"
                " the table of runs of one grid"
            )
        by_round[line["round"]] = line
    seeds = sorted({seed for by_seed in runs.values() for seed in by_seed})
    kept = [key for key, by_seed in runs.items() if len(by_seed) == len(seeds)]
    finished = [
        by_round
        for key in kept
        for by_round in runs[key].values()
        if next(iter(by_round.values()))["status"] == "ok"
    ]
    name = ", ".join(f"{key}={value}" for key, value in settings.items()) or "the table"
    if not finished:
        raise ConfigError(f"{name}: no configuration has a finished run with each of its seeds")
    rounds = sorted(set.intersection(*({*by_round} for by_round in finished)) - {0})
    if not rounds or len({max(by_round) for by_round in finished}) > 1:
        raise ConfigError(f"{name}: its runs do not end after the same round")
    metric = next(
        (m for m in ACCURACIES if all(_has(run[rounds[-1]], m) for run in finished)), None
    )
    if metric is None:
        raise ConfigError(f"{name}: its runs have none of {', '.join(ACCURACIES)}")
    shape = len(kept), len(seeds), len(rounds)
    accuracy, steps = np.zeros(shape[:2]), np.zeros(shape)
    figures = {column: np.full(shape, np.nan) for column in metrics}
    for i, key in enumerate(kept):
        for j, seed in enumerate(seeds):
            by_round = runs[key][seed]
            last = by_round.get(rounds[-1], by_round.get(0, {}))
            accuracy[i, j] = np.nan if last.get(metric) is None else last[metric]
            for k, done in enumerate(rounds):
                steps[i, j, k] = max(by_round[at]["num_steps"] for at in by_round if at <= done)
                for column in metrics:
                    value = by_round.get(done, {}).get(column)
                    figures[column][i, j, k] = np.nan if value is None else value
    if np.isnan(accuracy).any():
        raise ConfigError(f"{name}: a run that diverged lacks {metric} before training")
    untrained = [runs[kept[0]][seed].get(0, {}) for seed in seeds]
    return Task(
        settings=settings,
        configurations=tuple(values[key] for key in kept),
        left_out=len(runs) - len(kept),
        seeds=tuple(seeds),
        rounds=tuple(rounds),
        metric=metric,
        accuracy=accuracy,
        steps=steps,
        figures=figures,
        untrained=tuple({n: line[n] for n in metrics if _has(line, n)} for line in untrained),
    )


def _has(line: Line, name: str) -> bool:
    return line.get(name) is not None
