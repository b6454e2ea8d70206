"""One search on a task: Optuna suggests, the table answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.bench.results.leaderboard.studies import best_trial
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.tuning.replay.tasks import Task
from fedbench.bench.tuning.rungs import Fidelity, decide
from fedbench.bench.tuning.suggester import Params, Suggester
from fedbench.bench.tuning.trials import told

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SAMPLERS = ("random", "grid", "tpe", "gp", "sobol")
"""Samplers that can search a finite set; CMA-ES learns from points of its own only."""
_IN_ORDER = ("random", "grid")
_LOG_RATIO = 10.0
"""Ratio of the largest to the smallest value from which a range is searched on a log scale."""

Records = Sequence[Sequence[Mapping[str, Any]]]
"""(configurations, rounds) records, as `Task.judged` gives them."""


@dataclass(frozen=True)
class Found:
    """Outcome of a search.

    Attributes:
        picked: position of the best trial's configuration; None if no trial had an objective.
        steps: local steps of all its runs.
        whole_steps: local steps that its trials would make if all were run to the end.
    """

    picked: int | None
    steps: float
    whole_steps: float


class Space:
    """The hyperparameters of a task as Optuna sees them, and the configurations within.

    Ranges of numbers span the values of the table, on a log scale if they differ by a factor of
    ten; everything else is a choice.

    Args:
        configurations: searched values of each configuration.
    """

    def __init__(self, configurations: Sequence[Params]) -> None:
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        self.distributions: dict[str, BaseDistribution] = {}
        self._axes: dict[str, Callable[[Any], list[float]]] = {}
        self.position = {canonical_json(one): i for i, one in enumerate(configurations)}
        for name in configurations[0]:
            values = list(dict.fromkeys(one[name] for one in configurations))
            if {type(value) for value in values} <= {int, float}:
                low, high = min(values), max(values)
                log = low > 0 and high / low >= _LOG_RATIO
                whole = all(isinstance(value, int) for value in values)
                kind = IntDistribution if whole else FloatDistribution
                self.distributions[name] = kind(low, high, log=log)
                self._axes[name] = partial(_along, low, high, log)
            else:
                self.distributions[name] = CategoricalDistribution(values)
                self._axes[name] = partial(_among, values)
        self._points = np.array([self._point(one) for one in configurations])

    def _point(self, params: Params) -> list[float]:
        """Return coordinates of which every hyperparameter has a range of 1."""
        return [x for name, axis in self._axes.items() for x in axis(params[name])]

    def nearest(self, params: Params, used: NDArray[np.bool_]) -> int:
        """Return the position of the nearest unused configuration; ties: the first."""
        distances = np.square(self._points - self._point(params)).sum(axis=1)
        return int(np.argmin(np.where(used, np.inf, distances)))


def _along(low: float, high: float, log: bool, value: float) -> list[float]:
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return [(value - low) / (high - low)]


def _among(choices: Sequence[Any], value: Any) -> list[float]:
    """Coordinates of which two choices are a distance of 1 apart."""
    return [0.5**0.5 * (value == choice) for choice in choices]


def search(
    task: Task,
    space: Space,
    records: Records,
    *,
    sampler: str,
    seed: int,
    trials: int,
    batch_size: int | Sequence[int] | None,
    fidelity: Fidelity | None,
    seeds: Sequence[int],
) -> Found:
    """Search a task once, as `tune` would search it.

    `random` and `grid` take the configurations in random order and in that of the table. For the
    other samplers a suggestion is replaced by the nearest configuration that was not taken yet,
    and they are told so.

    Args:
        task: the task.
        space: of the task.
        records: of the task, for the objective and these seeds.
        sampler: one of `SAMPLERS`.
        seed: of the search.
        trials: at most as many as there are configurations.
        batch_size: trials that are suggested together, or sizes that repeat; None = all.
        fidelity: rounds as fidelity; None = every trial is run to its end.
        seeds: positions of the seeds that score a trial, for the cost.
    """
    count = len(task.configurations)
    used = np.zeros(count, dtype=bool)

    def snap(params: Params) -> Params:
        position = space.nearest(params, used)
        used[position] = True
        return dict(task.configurations[position])

    order = [*range(count)]
    if sampler == "random":
        numpy_generator(seed, "replay").shuffle(order)
    ordered = sampler in _IN_ORDER
    suggester = Suggester(
        "replay",
        space.distributions,
        sampler="grid" if ordered else sampler,
        seed=seed,
        total=trials,
        batch_size=batch_size,
        points=[dict(task.configurations[position]) for position in order] if ordered else (),
        snap=None if ordered else snap,
    )
    ended: list[dict[str, Any]] = []
    taken: list[int] = []
    steps = 0.0

    def cost(position: int, after: int, before: int | None) -> float:
        made = task.steps[position, seeds, after]
        return float((made if before is None else made - task.steps[position, seeds, before]).sum())

    def ask() -> tuple[int, int]:
        suggestion = suggester.ask()
        assert suggestion is not None  # a batch is as large as a bracket
        position = space.position[canonical_json(suggestion.params)]
        taken.append(position)
        return suggestion.number, position

    last = len(task.rounds) - 1
    if fidelity is None:
        while not suggester.exhausted:
            number, position = ask()
            record = records[position][last]
            steps += cost(position, last, None)
            ended.append({**record, "number": number})
            suggester.tell(number, *told(record))
    else:
        for bracket in fidelity.brackets(trials):
            left = dict(ask() for _ in bracket.trials)
            outcomes: dict[int, dict[str, Any]] = {}
            before = None
            for rung, done in enumerate(bracket.rounds):
                at = task.rounds.index(done)
                members = []
                for number, position in left.items():
                    steps += cost(position, at, before)
                    record = records[position][at]
                    members.append({**record, "number": number, "seed_objectives": None})
                    fell = record["status"] == "ok" and at < last
                    status = "pruned" if fell else record["status"]
                    outcomes[number] = {**record, "status": status, "rounds": done}
                keep = 0 if at == last else bracket.counts(rung, len(members))[1]
                kept = decide(bracket, rung, members, keep)["kept"]
                left, before = {number: left[number] for number in kept}, at
            for number in sorted(outcomes):
                ended.append({**outcomes[number], "number": number})
                suggester.tell(number, *told(outcomes[number]))
    best = best_trial(ended)
    whole = float(task.steps[taken][:, seeds, last].sum())
    return Found(None if best is None else taken[best["number"]], steps, whole)
