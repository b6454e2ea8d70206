"""Tasks of a table: for each its configurations, and the measurements of their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.metrics import SPREAD_OF_PROJECTIONS
from fedbench.bench.system.errors import ConfigError, StoreError, UnknownNameError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.tuning.replay.read import OK, Line, read_search_table
from fedbench.bench.tuning.scoring import Scoring
from fedbench.bench.tuning.suggester import Params

ACCURACIES = ("linear_acc", "knn_acc")
"""Searches are judged by the first of these that every finished run has."""
_WORLD = ("data.", "federation.", "privacy.")
"""Sections whose settings make tasks; settings of the others are searched."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Runs of one method on data and a federation of one kind.

    Attributes:
        settings: what sets it apart from the table's other tasks, by dotted name.
        configurations: searched values of each configuration, in the order of the table.
        left_out: number of configurations that lack one of `seeds`.
        seeds: those that the most configurations have run with.
        rounds: measured rounds, ascending; the last is the whole run.
        metric: accuracy by which a search is judged.
        accuracy: (configurations, seeds), of whole runs; of a run that diverged, that before
            training, measured by another run of its seed if not by itself.
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
        """Return the record that a study would have of each configuration after each round.

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


def read_tasks(file: str, spec: str, settings: Mapping[str, Any]) -> list[Task]:
    """Return the tasks of a method in a table.

    Args:
        file: as `fedbench release --table` writes it, or its address.
        spec: method spec, canonical.
        settings: settings to which the runs are restricted, by dotted name.

    Raises:
        StoreError: if the file cannot be read, or is no such table.
        UnknownNameError: if the table has no run of the method.
        ConfigError: for settings that no run has, and for a task without two configurations.
    """
    table = read_search_table(file)
    methods = sorted({line["method"] for line in table.lines})
    if spec not in methods:
        raise UnknownNameError("method of the table", spec, methods)
    lines = [line for line in table.lines if line["method"] == spec]
    lines = _restrict(lines, settings, table.settings, table.shared.get(spec, {}))
    varied = [name for name in table.settings if len({line[name] for line in lines}) > 1]
    of_tasks = [name for name in varied if name.startswith(_WORLD)]
    searched = [name for name in varied if name not in of_tasks]
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(canonical_json([line[name] for name in of_tasks]), []).append(line)
    return [
        _task({name: group[0][name] for name in of_tasks}, group, searched, table.metrics)
        for group in groups.values()
    ]


def _restrict(
    lines: Sequence[Line], given: Mapping[str, Any], varied: Sequence[str], shared: Line
) -> list[Line]:
    """Return the lines with the given settings; `shared` are those that all of them have."""
    for name, value in given.items():
        if name not in shared and name not in varied:
            raise UnknownNameError("setting of the table", name, [*varied, *shared])
        values = [line.get(name, shared.get(name)) for line in lines]
        if value not in values:
            texts = sorted({canonical_json(one) for one in values})
            raise ConfigError(f"{name}={value}: the table has {', '.join(texts)} [--set]")
        lines = [line for line, one in zip(lines, values, strict=True) if one == value]
    return [*lines]


Runs = dict[str, dict[int, dict[int, Line]]]
"""Configuration, seed, round -> line."""


def _task(
    settings: Params, lines: Iterable[Line], searched: Sequence[str], metrics: Sequence[str]
) -> Task:
    where = ", ".join(f"{name}={value}" for name, value in settings.items()) or "the table"
    runs: Runs = {}
    for line in lines:
        key = canonical_json([line[name] for name in searched])
        by_round = runs.setdefault(key, {}).setdefault(line["seed"], {})
        if line["round"] in by_round:
            raise StoreError(
                f"{where}: runs {by_round[line['round']]['row_id']} and {line['row_id']} have the"
                f" same settings and seed; a table has one of them"
            )
        by_round[line["round"]] = line
    seeds = _seeds(runs)
    kept = {key: by_seed for key, by_seed in runs.items() if {*seeds} <= {*by_seed}}
    firsts = [by_seed[seeds[0]][0] for by_seed in kept.values()]
    names = [name for name in searched if len({first[name] for first in firsts}) > 1]
    if not names:
        raise ConfigError(
            f"{where}: it has one configuration with seeds {', '.join(map(str, seeds))}, and a"
            " search needs two; name other settings by --set"
        )
    finished = [
        by_seed[seed] for by_seed in kept.values() for seed in seeds if _is_ok(by_seed[seed])
    ]
    rounds = _rounds(where, finished)
    metric = next(
        (m for m in ACCURACIES if all(run[rounds[-1]].get(m) is not None for run in finished)), None
    )
    if metric is None:
        raise ConfigError(f"{where}: its runs have none of {', '.join(ACCURACIES)}")
    shape = len(kept), len(seeds), len(rounds)
    accuracy, steps = np.zeros(shape[:2]), np.zeros(shape)
    figures = {column: np.full(shape, np.nan) for column in metrics}
    begun = [[by_seed[seed][0] for by_seed in kept.values()] for seed in seeds]
    untrained = [next((line for line in of if line[metric] is not None), of[0]) for of in begun]
    for i, by_seed in enumerate(kept.values()):
        for j, seed in enumerate(seeds):
            by_round = by_seed[seed]
            last = by_round[rounds[-1]] if _is_ok(by_round) else by_round[0]
            if last[metric] is None:  # nobody trained it yet: every run of a seed begins with it
                last = untrained[j]
            if last[metric] is None:
                raise ConfigError(f"{where}: no run of seed {seed} has {metric} before training")
            accuracy[i, j] = last[metric]
            for k, done in enumerate(rounds):
                steps[i, j, k] = max(by_round[at]["num_steps"] for at in by_round if at <= done)
                for column in metrics:
                    value = by_round.get(done, {}).get(column)
                    figures[column][i, j, k] = np.nan if value is None else value
    return Task(
        settings=settings,
        configurations=tuple({name: first[name] for name in names} for first in firsts),
        left_out=len(runs) - len(kept),
        seeds=seeds,
        rounds=rounds,
        metric=metric,
        accuracy=accuracy,
        steps=steps,
        figures=figures,
        untrained=tuple(
            {name: line[name] for name in metrics if line[name] is not None} for line in untrained
        ),
    )


def _seeds(runs: Runs) -> tuple[int, ...]:
    """Return the seeds that the most configurations have run with; of several, the most seeds."""
    counts = Counter(tuple(sorted(by_seed)) for by_seed in runs.values())
    return max(counts, key=lambda seeds: (counts[seeds], len(seeds), seeds))


def _is_ok(by_round: Mapping[int, Line]) -> bool:
    return by_round[0]["status"] == OK  # type: ignore[no-any-return]


def _rounds(where: str, finished: Sequence[Mapping[int, Line]]) -> tuple[int, ...]:
    """Return the rounds at which all finished runs were measured."""
    if not finished:
        raise ConfigError(f"{where}: every run of it diverged")
    if len({max(by_round) for by_round in finished}) > 1:
        raise ConfigError(f"{where}: its runs do not end after the same round")
    rounds = sorted(set.intersection(*({*by_round} for by_round in finished)) - {0})
    if not rounds:
        raise ConfigError(f"{where}: its runs have no round")
    return tuple(rounds)
