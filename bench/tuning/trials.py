"""The plan of a study, and its trials: the runs that are due, and the records of their outcomes."""

from __future__ import annotations

import logging
import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig, row_id
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.evaluation.objectives.of_clients import DEFAULT
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import Origin
from fedbench.bench.runs.fields import flat_config, show
from fedbench.bench.runs.resolve import Resolved
from fedbench.bench.runs.run import command_line, forget_cell
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.identity import canonical_json, content_id
from fedbench.bench.tuning.cell import CellJob, Outcome
from fedbench.bench.tuning.rungs import Halving
from fedbench.bench.tuning.scoring import Scoring, metrics
from fedbench.bench.tuning.space import SearchSpace
from fedbench.bench.tuning.suggester import INDEPENDENT, Params, Suggester, ToldTrial
from fedbench.bench.tuning.untrained import NUM_SEEDS, SPREAD

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyPlan:
    """A study: the values that identify it, and those that all its trials share.

    Attributes:
        name: name that the user gave it; None = its method spec.
        base: the configuration that trials start from.
        configure: parameters and a seed -> the configuration of a run.
        space: the search space, without the dimensions that the user has set.
        points: parameters of the first trials; for the sampler `grid`, of all trials.
        sampler: name of the sampler.
        total: number of trials.
        seeds_per_trial: runs of each trial.
        batch_size: trials that are suggested together.
        stop_hopeless: whether runs and trials may end early.
        watched: a metric that is recorded and hidden from the search.
        store: store of the trials.
        dataset: the data set.
        checkpoints: root of another folder for runs; None = the store.
        workers: processes that train the clients of one run on CPUs.
        lanes: clients at a time in the process of a run; None = no lanes.
        scoring: the objective by which trials are ranked.
        halving: rounds after which trials are compared; None = all are run to their end.
    """

    name: str | None
    base: Resolved
    configure: Callable[[Params, int], Resolved]
    space: SearchSpace
    points: Sequence[Params]
    sampler: str
    total: int
    seeds_per_trial: int
    batch_size: int
    stop_hopeless: bool
    watched: str | None
    store: Store
    dataset: Dataset
    checkpoints: Path | None
    workers: int
    lanes: int | None = None
    scoring: Scoring = field(default_factory=Scoring)
    halving: Halving | None = None

    @cached_property
    def study_id(self) -> str:
        """Name in the store: a readable part, and a hash of everything that changes the trials."""
        name = (self.name or self.base.config.spec).lower()
        slug = re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:60] or "study"
        return f"{slug}-{content_id(canonical_json(self._identity()))[:10]}"

    @property
    def barrier(self) -> int | None:
        """Trials of which each waits for those before; None if no trial looks at another."""
        alone = self.sampler in INDEPENDENT and not self.stop_hopeless
        return None if alone else self.batch_size

    @property
    def seeds(self) -> range:
        """Seeds of a trial's runs."""
        first = self.base.config.seed
        return range(first, first + self.seeds_per_trial)

    @property
    def untrained_seeds(self) -> range:
        """Seeds of the untrained encoders beside which the trials are judged."""
        first = self.base.config.seed
        return range(first, first + NUM_SEEDS)

    def unmeasured(self, meta: Mapping[str, Any] | None) -> list[int]:
        """Return the seeds of untrained encoders whose figures the study's description lacks."""
        known = {record["seed"] for record in (meta or {}).get("untrained", ())}
        return [seed for seed in self.untrained_seeds if seed not in known]

    def _identity(self) -> dict[str, Any]:
        dimensions, values = self.space.dimensions, flat_config(self.base.config)
        return {
            "benchmark": BENCHMARK_VERSION,
            "data": self.dataset.revision,
            "base": {
                key: value
                for key, value in values.items()
                if key not in dimensions and key != "data.name"  # the revision says which images
            },
            "spec": self.base.config.spec,
            "space": {key: dim.model_dump(mode="json") for key, dim in dimensions.items()},
            "points": self.points,
            "sampler": self.sampler,
            "batch_size": self.batch_size,
            "seeds_per_trial": self.seeds_per_trial,
            "stop_hopeless": self.stop_hopeless,
            "name": self.name,
            **({} if self.scoring.name == DEFAULT else {"objective": self.scoring.name}),
            **({} if self.halving is None else {"fidelity": self.halving.as_dict()}),
        }

    def description(self) -> dict[str, Any]:
        """Return the content of `study.json`, as far as it is known from the start."""
        return {
            "study_id": self.study_id,
            "preset": self.base.preset,
            "optuna": version("optuna"),
            "seed": self.base.config.seed,
            "config": self.base.config.model_dump(mode="json"),
            "dataset": self.dataset.name,
            "whole": self.dataset.whole,
            **self._identity(),
        }

    def stored_batch_size(self) -> int | None:
        """Return the batch size of the stored study that has no other difference from this one.

        Of several the one with the most trials counts, then the one with the batch size of this.
        """
        absent = {"objective": None, "fidelity": None, "batch_size": None}
        ours = canonical_json({**absent, **self._identity(), "batch_size": None})
        found = []
        for study_id in self.store.studies():
            meta = self.store.study(study_id) or {}
            theirs = {key: meta.get(key) for key in {*absent, *self._identity()}}
            if canonical_json({**theirs, "batch_size": None}) == ours:
                size = theirs["batch_size"]
                count = len(self.store.trials(study_id))
                found.append((count, size == self.batch_size, size))
        return max(found)[-1] if found else None

    def trials(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the trials of the store, and those of them that need no further run."""
        stored = self.store.trials(self.study_id)
        again, _ = self.failed(stored)
        return stored, [trial for trial in stored if trial["number"] not in again]

    def failed(
        self, stored: Sequence[Mapping[str, Any]]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the numbers of failed trials: those to be run again, and those that stay."""
        if self.halving is None:
            return failed_trials(stored, self.barrier)
        failed = [trial for trial in stored if trial["status"] == "error"]
        again = tuple(trial["number"] for trial in failed if "rung" not in trial)
        return again, tuple(trial["number"] for trial in failed if "rung" in trial)

    def missing(self, complete: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of trials to run, given those that need no further run."""
        return self.total - sum(1 for trial in complete if trial["number"] < self.total)

    def cell(self, number: int, seed: int) -> str:
        """Return the name of a run's folder; no other study, and no sweep, works in it."""
        return f"{self.study_id}.{number:04d}.{seed}"

    def untrained_cell(self, seed: int) -> str:
        """Return the name of the folder in which an untrained encoder is measured."""
        return f"{self.study_id}.untrained.{seed}"

    def forget_runs(self, number: int) -> None:
        """Delete the folders of a trial's runs, since only its record is kept."""
        self._forget(self.cell(number, seed) for seed in self.seeds)

    def forget_untrained(self) -> None:
        """Delete the folders in which untrained encoders were measured."""
        self._forget(map(self.untrained_cell, self.untrained_seeds))

    def _forget(self, cells: Iterable[str]) -> None:
        place = Store(self.checkpoints or self.store.root)
        for cell in cells:
            forget_cell(place, cell)


@dataclass
class Open:
    """A trial with runs that are due or running."""

    params: Params
    left: deque[CellJob]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    running: int = 0
    skipped: bool = False
    error: str | None = None


class TrialSource:
    """Source of a study's runs, which writes a record for every trial that is complete.

    Args:
        plan: the study.
        suggester: suggests parameters.
        records: trials that need no further run.
        untrained: figures of untrained encoders, by seed; those of other seeds are measured first.
        record: stores these figures whenever there are more.
    """

    def __init__(
        self,
        plan: StudyPlan,
        suggester: Suggester,
        records: Sequence[Mapping[str, Any]],
        untrained: Mapping[int, Mapping[str, float]],
        record: Callable[[Mapping[int, Mapping[str, float]]], None],
    ) -> None:
        self._plan, self._suggester = plan, suggester
        self._untrained, self._record = dict(untrained), record
        self._before = {
            plan.untrained_cell(seed): seed
            for seed in plan.untrained_seeds
            if seed not in self._untrained
        }
        self._to_measure = deque(self._before)
        self._records = {record["number"]: record for record in records}
        self._open: dict[int, Open] = {}
        self._trial_of: dict[str, tuple[int, int]] = {}
        runs = plan.total * plan.seeds_per_trial
        self.total = runs + len(self._before)
        self.ended = runs - plan.missing(records) * plan.seeds_per_trial

    @property
    def finished(self) -> bool:
        """True once every trial has its record."""
        return not self._before and not self._open and self._suggester.exhausted

    def next(self) -> CellJob | None:
        """Return a run of the first open trial that has one left, else of a new suggestion.

        Untrained encoders come first.
        """
        if self._to_measure:
            cell = self._to_measure.popleft()
            seed = self._before[cell]
            config = self._plan.configure({}, seed).config
            job = self._job(cell, config, f"untrained encoder seed={seed}")
            return replace(job, untrained=True)
        if self._plan.scoring.gated and self._before:  # no trial is judged before they are known
            return None
        while True:
            for trial in self._open.values():
                if trial.left and not (self._by_seed and trial.running):
                    trial.running += 1
                    return trial.left.popleft()
            suggestion = self._suggester.ask()
            if suggestion is None:
                return None
            self._begin(suggestion.number, suggestion.params)

    def done(self, outcome: Outcome) -> None:
        """Take the outcome of a run; write the trial's record after the last one."""
        if outcome.job.untrained:
            seed = self._before.pop(outcome.job.cell)
            if outcome.figures is not None:
                self._untrained[seed] = outcome.figures
                self._record(self._untrained)
            else:
                _log.warning("%s: not measured: %s", outcome.job.label, outcome.error)
            return
        number, seed = self._trial_of.pop(outcome.job.cell)
        trial = self._open[number]
        trial.running -= 1
        trial.outcomes[seed] = outcome
        if self._by_seed and trial.left and self._hopeless(number, trial):
            self.total -= len(trial.left)
            trial.left.clear()
            trial.skipped = True
        if not trial.left and not trial.running:
            self._close(number, trial)

    @property
    def _by_seed(self) -> bool:
        """True if each seed of a trial waits for the one before it."""
        return self._plan.stop_hopeless

    def _begin(self, number: int, params: Params) -> None:
        plan, trial = self._plan, Open(params, deque())
        self._open[number] = trial
        try:
            for seed in plan.seeds:
                config = plan.configure(params, seed).config
                cell = plan.cell(number, seed)
                self._trial_of[cell] = (number, seed)
                given = " ".join(f"{key}={show(value)}" for key, value in params.items())
                named = f"trial {number}" + (f" seed={seed}" if plan.seeds_per_trial > 1 else "")
                label = f"{named} · {given}" if given else named
                trial.left.append(self._job(cell, config, label, number))
        except ConfigError as err:  # values that are legal one by one but not together
            trial.error = str(err)
            trial.left.clear()
            self.total -= plan.seeds_per_trial
            self._close(number, trial)

    def _job(self, cell: str, config: RunConfig, label: str, number: int | None = None) -> CellJob:
        """Return the job of a trial's run, or without `number` of an untrained encoder."""
        plan = self._plan
        return CellJob(
            cell=cell,
            row_id=row_id(config, plan.dataset.revision),
            label=label,
            config=config,
            origin=Origin(plan.base.preset, plan.study_id, None, command_line()),
            store=plan.store.root.resolve(),
            dataset=plan.dataset.path,
            revision=plan.dataset.revision,
            dataset_name=plan.dataset.name,
            checkpoints=plan.checkpoints,
            workers=plan.workers,
            lanes=plan.lanes,
            shared=False,
            stop_collapsed=plan.stop_hopeless,
        )

    def _hopeless(self, number: int, trial: Open) -> bool:
        """Judge by the first run of a trial if its other seeds would be a waste of time."""
        first = trial.outcomes.get(self._plan.seeds[0])
        if first is None:
            return False
        score = self._score(first)
        if score is None or first.status == "stopped":
            return True
        batch_start = number // self._plan.batch_size * self._plan.batch_size
        earlier = [
            record["seed_objectives"][0]
            for other, record in self._records.items()
            if other < batch_start and record["seed_objectives"][:1] not in ([], [None])
        ]
        return bool(earlier) and score < statistics.median(earlier)

    def _close(self, number: int, trial: Open) -> None:
        del self._open[number]
        self._finish(number, self._summary(number, trial))

    def _summary(self, number: int, trial: Open) -> dict[str, Any]:
        """Return the record of a trial whose runs have ended, or paused."""
        plan = self._plan
        outcomes = [trial.outcomes[seed] for seed in plan.seeds if seed in trial.outcomes]
        objectives = [self._score(outcome) for outcome in outcomes]
        known = [value for value in objectives if value is not None]
        status = _status(trial, outcomes)
        objective = mean(known) if status in ("ok", "stopped") else None
        spread, error = _means(outcomes, SPREAD), trial.error
        scores = _means(outcomes, metrics())
        if status == "ok":
            refusal = plan.scoring.refusal({**scores, **spread}, [*self._untrained.values()])
            if refusal is not None:
                status, objective, error = "refused", None, f"{refusal}: refused by the gate"
            elif objective is None:
                status, error = "refused", f"{plan.scoring.metric} is undefined"
        record: dict[str, Any] = {
            "status": status,
            "seeds": [seed for seed in plan.seeds if seed in trial.outcomes],
            "params": trial.params,
            "objective": objective,
            "watched": self._watched(outcomes),
            "seconds": sum(outcome.seconds for outcome in outcomes),
            "error": error or next((o.error for o in outcomes if o.error), None),
            "seed_objectives": objectives,
            "bytes": sum(outcome.bytes for outcome in outcomes),
            "spread": spread,
            "scores": scores,
        }
        return record

    def _finish(self, number: int, record: Mapping[str, Any]) -> None:
        """Write the record of a trial, delete its runs, and tell the search."""
        plan = self._plan
        plan.store.write_trial(plan.study_id, number, record)
        self._records[number] = {**record, "number": number}
        plan.forget_runs(number)
        self._suggester.tell(number, *told(record))

    def _score(self, outcome: Outcome) -> float | None:
        """Return the score of a run; None if it has none."""
        scoring = self._plan.scoring
        if scoring.name == DEFAULT:
            return outcome.objective
        return scoring.of({scoring.metric: outcome.metric(scoring.metric)})

    def _watched(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        name = self._plan.watched
        if name is None:
            return {}
        average = mean([v for outcome in outcomes if (v := outcome.metric(name)) is not None])
        return {} if average is None else {name: average}


def _means(outcomes: Sequence[Outcome], names: Sequence[str]) -> dict[str, float]:
    """Return the means over seeds of the metrics that runs have."""
    means = {}
    for name in names:
        values = [value for one in outcomes if (value := one.metric(name)) is not None]
        if (average := mean(values)) is not None:
            means[name] = average
    return means


def _status(trial: Open, outcomes: Sequence[Outcome]) -> str:
    seen = {outcome.status for outcome in outcomes}
    if trial.error or "error" in seen:
        return "error"
    if "diverged" in seen:
        return "diverged"
    return "stopped" if trial.skipped or "stopped" in seen else "ok"


def failed_trials(
    records: Sequence[Mapping[str, Any]], barrier: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of failed trials: those to be run again, and those that stay failed.

    Trials of a later batch were suggested after these errors, so another outcome would change the
    study; without a barrier there is none.
    """
    failed = tuple(record["number"] for record in records if record["status"] == "error")
    if barrier is None:
        return failed, ()
    last = max((record["number"] for record in records), default=0) // barrier
    again = tuple(number for number in failed if number // barrier == last)
    return again, tuple(number for number in failed if number // barrier < last)


def told_trials(records: Sequence[Mapping[str, Any]]) -> dict[int, ToldTrial]:
    """Convert stored trials for the suggester."""
    return {record["number"]: ToldTrial(record["params"], *told(record)) for record in records}


def told(record: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return a trial's objective as `Suggester.tell` takes it, and the rounds if it fell early."""
    value: float | None = record["objective"]
    unranked = value is None and record["status"] in ("diverged", "refused", "stopped")
    rounds = record["rounds"] if record["status"] == "pruned" else None
    return (math.nan if unranked else value), rounds
