"""Many searches on a table, and what they would have cost and lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.bench.evaluation.objectives.of_clients import DEFAULT
from fedbench.bench.method.registry import canonical_spec
from fedbench.bench.results.store.checked import plain_place
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.system.notebooks import Shown
from fedbench.bench.tuning.replay.search import SAMPLERS, Found, Space, search
from fedbench.bench.tuning.replay.tasks import Task, read_tasks
from fedbench.bench.tuning.rungs import HYPERBAND, NONE, Fidelity, check_fidelity, make_fidelity
from fedbench.bench.tuning.scoring import Scoring
from fedbench.bench.tuning.suggester import BATCH_SIZE, INDEPENDENT, check_sampler

TRIALS = 20
"""Of a search, by default."""
_QUANTILE = 0.9


@dataclass(frozen=True)
class TaskReplay:
    """Outcome of the searches on one task.

    Attributes:
        settings: what sets the task apart from the table's others, by dotted name.
        configurations: their number.
        left_out: number of configurations that lack one of `seeds`, and were not searched.
        seeds: those that the most configurations have run with.
        metric: accuracy by which searches are judged; the objective never reads it.
        best: highest mean accuracy of a configuration, over all seeds; luck included.
        accuracy: mean accuracy of the picks, of the seeds that did not score them where there are
            such.
        regret: mean loss in accuracy against the best configuration by the same seeds. That one was
            lucky with them, so that no search, however good, can be expected to reach 0.
        regret_90: 90 % of the searches lost at most this.
        noise: standard deviation of the accuracy between seeds; null with one seed.
        steps: local steps of a search, mean.
        share: these as a share of what its trials would make if all were run to the end.
        trials: of a search.
        judged_apart: False where no seed was left that had not scored; the regret is too low then.
        fidelity: `name`, `eta`, `rounds` of the rungs and `sizes` of the brackets; None if every
            trial is run to its end.
        picks: configurations picked, the most frequent first: `params`, `count`; `params` is null
            where no trial had an objective.
    """

    settings: Mapping[str, Any]
    configurations: int
    left_out: int
    seeds: tuple[int, ...]
    metric: str
    best: float
    accuracy: float
    regret: float
    regret_90: float
    noise: float | None
    steps: float
    share: float
    trials: int
    judged_apart: bool
    fidelity: Mapping[str, Any] | None
    picks: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, repr=False)
class Replay(Shown):
    """Searches replayed on a table.

    Attributes:
        spec: method spec.
        file: the table, or its address.
        objective: score that was maximised.
        sampler: that suggested.
        searches: number of searches on each task.
        tasks: outcome on each task of the table.
    """

    spec: str
    file: str
    objective: str
    sampler: str
    searches: int
    tasks: tuple[TaskReplay, ...]

    def __repr__(self) -> str:
        return f"<{self.searches} searches of {self.spec} on {len(self.tasks)} tasks>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return the tasks."""
        keys = ("settings", "metric", "best", "accuracy", "regret", "regret_90", "noise", "share")
        return keys, [[getattr(task, key) for key in keys] for task in self.tasks]

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `fedbench tune --table --json`."""
        return asdict(self)


def replay(
    spec: str,
    table: Path | str,
    *,
    set: Mapping[str, Any] | None = None,
    seed: int = 0,
    searches: int = 100,
    trials: int | None = None,
    seeds_per_trial: int = 1,
    sampler: str = "tpe",
    batch_size: int | None = None,
    objective: str = DEFAULT,
    fidelity: str = NONE,
    eta: int | None = None,
    rungs: int | None = None,
) -> Replay:
    """Repeat a search many times on a table of finished runs, without training.

    A search differs from that of `tune` in two ways. It chooses from the configurations of the
    table, so that a suggestion is replaced by the nearest one that was not taken yet, and no
    published values come first. And it is scored by seeds of the table in turn: search i by the
    i-th seed and those after it.

    Args:
        spec: method spec; the table has runs of it.
        table: file that `fedbench release --table` wrote, or its https address.
        set: settings to which the runs are restricted.
        seed: of the first search; the others follow.
        searches: number of searches on each task.
        trials: of each search; None = 20, or all configurations where there are fewer.
        seeds_per_trial: seeds whose scores are averaged.
        sampler: `random`, `grid` (in the order of the table), `tpe`, `gp` or `sobol`.
        batch_size: trials that are suggested together; None = 4, or a bracket.
        objective: score that is maximised; see `tune`.
        fidelity: `none`, `halving` or `hyperband`; rungs end after rounds that the table has.
        eta: one trial in so many goes on after a rung; None = 4.
        rungs: rungs of a bracket; see `tune`.

    Raises:
        FedbenchError: for a file that is no such table, or arguments that it does not suffice for.
    """
    file, scoring = plain_place(table), Scoring(objective)
    check_sampler(sampler)
    check_fidelity(fidelity, sampler, batch_size)
    if sampler not in SAMPLERS:
        raise UnknownNameError("sampler for a table", sampler, SAMPLERS)
    for option, value in (
        ("--searches", searches),
        ("--trials", trials),
        ("--seeds-per-trial", seeds_per_trial),
        ("--batch", batch_size),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{option}: must be at least 1 (got {value})")
    spec = canonical_spec(spec)
    planned = []
    for task in read_tasks(file, spec, set or {}):
        if scoring.metric not in task.figures:
            raise ConfigError(f"--objective {objective}: the table has no column {scoring.metric}")
        count = min(TRIALS, len(task.configurations)) if trials is None else trials
        _check_size(task, count, seeds_per_trial)
        plan = make_fidelity(
            fidelity,
            eta=eta,
            rungs=rungs,
            rounds=task.rounds[-1],
            least_rounds=0,
            size=batch_size or count,
        )
        size: int | Sequence[int] | None = batch_size or BATCH_SIZE
        if plan is not None:
            size = _brackets(plan, task, count)
        elif sampler in INDEPENDENT:
            size = None
        planned.append((task, partial(search, trials=count, batch_size=size, fidelity=plan), plan))
    outcomes = []
    for task, run, plan in planned:
        space, all_records = Space(task.configurations), {}
        found, scored = [], []
        for index in range(searches):
            first = index % len(task.seeds)
            seeds = [(first + k) % len(task.seeds) for k in range(seeds_per_trial)]
            if first not in all_records:
                all_records[first] = task.judged(scoring, seeds)
            found.append(
                run(
                    task,
                    space,
                    all_records[first],
                    sampler=sampler,
                    seed=seed + index,
                    seeds=seeds,
                )
            )
            scored.append(seeds)
        outcomes.append(_outcome(task, found, scored, run.keywords["trials"], plan))
    return Replay(
        spec=spec,
        file=file,
        objective=scoring.name,
        sampler=sampler,
        searches=searches,
        tasks=tuple(outcomes),
    )


def _check_size(task: Task, trials: int, seeds_per_trial: int) -> None:
    where = ", ".join(f"{key}={value}" for key, value in task.settings.items())
    where = f" with {where}" if where else ""
    for option, value, have, what in (
        ("--trials", trials, len(task.configurations), "configurations"),
        ("--seeds-per-trial", seeds_per_trial, len(task.seeds), "seeds"),
    ):
        if value > have:
            raise ConfigError(f"{option} {value}: the table has {have} {what}{where}")


def _brackets(plan: Fidelity, task: Task, trials: int) -> tuple[int, ...]:
    """Return the sizes of the brackets, after a check that the table has their rounds."""
    missing = [done for done in plan.rounds if done not in task.rounds]
    if missing:
        raise ConfigError(
            f"--fidelity {plan.name}: its rungs end after {_texts(plan.rounds)} rounds, and the"
            f" table has {_texts(task.rounds)}; give other --eta or --rungs"
        )
    plan.brackets(trials)
    if plan.name == HYPERBAND:
        return plan.sizes
    return (plan.sizes[0],)


def _texts(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _outcome(
    task: Task,
    found: Sequence[Found],
    scored: Sequence[Sequence[int]],
    trials: int,
    plan: Fidelity | None,
) -> TaskReplay:
    accuracies, regrets = [], []
    for one, seeds in zip(found, scored, strict=True):
        others = [s for s in range(len(task.seeds)) if s not in seeds] or [*seeds]
        by = task.accuracy[:, others].mean(axis=1)
        if one.picked is None:  # nothing was chosen: the encoder as it was before training
            values = (task.untrained[s].get(task.metric) for s in others)
            before = [value for value in values if value is not None]
            if len(before) < len(others):
                raise ConfigError(
                    f"no trial had an objective, and the table lacks {task.metric} before training"
                )
            accuracy = float(np.mean(before))
        else:
            accuracy = float(by[one.picked])
        accuracies.append(accuracy)
        regrets.append(float(by.max()) - accuracy)
    steps = float(np.mean([one.steps for one in found]))
    whole = float(np.mean([one.whole_steps for one in found]))
    picks = Counter(one.picked for one in found)
    return TaskReplay(
        settings=task.settings,
        configurations=len(task.configurations),
        left_out=task.left_out,
        seeds=task.seeds,
        metric=task.metric,
        best=float(task.accuracy.mean(axis=1).max()),
        accuracy=float(np.mean(accuracies)),
        regret=float(np.mean(regrets)),
        regret_90=float(np.quantile(regrets, _QUANTILE)),
        noise=task.noise,
        steps=steps,
        share=steps / whole if whole else 1.0,
        trials=trials,
        judged_apart=all(len({*seeds}) < len(task.seeds) for seeds in scored),
        fidelity=None if plan is None else plan.as_dict(),
        picks=tuple(
            {"params": None if i is None else dict(task.configurations[i]), "count": count}
            for i, count in sorted(
                picks.items(), key=lambda pick: (-pick[1], -1 if pick[0] is None else pick[0])
            )
        ),
    )
