"""A study's trials: which runs are due, and what becomes of their outcomes."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import Origin
from fedbench.bench.runs.run import forget_cell
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.cell import CellJob, Outcome
from fedbench.bench.tuning.suggester import Finished, Params, Suggester


@dataclass(frozen=True)
class Plan:
    """What all trials of a study have in common.

    Attributes:
        study_id: its name in the store.
        seeds: of a trial's runs.
        batch_size: trials that are suggested together.
        stop_hopeless: whether runs and trials may end early.
        configure: parameters and a seed -> the configuration of a run.
        revision: of the data set.
        preset: for the record.
        argv: for the record.
        store: where trials are kept.
        data_dir: cache of data sets; None = the default one.
        dataset: cache folder of the data set.
        checkpoints: root of another folder for runs; None = the store.
        workers: processes that train the clients of one run on CPUs.
        watched: a metric that is recorded and never fed to the search.
    """

    study_id: str
    seeds: tuple[int, ...]
    batch_size: int
    stop_hopeless: bool
    configure: Callable[[Params, int], RunConfig]
    revision: str
    preset: str
    argv: str
    store: Store
    data_dir: Path | None
    dataset: Path
    checkpoints: Path | None
    workers: int
    watched: str | None

    def forget(self, cell: str) -> None:
        """Delete the folder of a run: a trial leaves its record only."""
        forget_cell(Store(self.checkpoints or self.store.root), cell)


@dataclass
class _Open:
    params: Params
    left: deque[CellJob]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    running: int = 0
    skipped: bool = False
    error: str | None = None


class TrialSource:
    """Hands out the runs of a study and writes a record for every trial that is complete.

    Args:
        plan: the study.
        suggester: asks for parameters.
        num_trials: of the whole study.
        records: trials that need no further run.
    """

    def __init__(
        self,
        plan: Plan,
        suggester: Suggester,
        num_trials: int,
        records: Sequence[Mapping[str, Any]],
    ) -> None:
        self._plan, self._suggester = plan, suggester
        self._records = {record["number"]: record for record in records}
        self._open: dict[int, _Open] = {}
        self._trial_of: dict[str, tuple[int, int]] = {}
        runs = len(plan.seeds)
        self.total = num_trials * runs
        self.ended = sum(1 for number in self._records if number < num_trials) * runs

    @property
    def finished(self) -> bool:
        """Whether every trial has its record."""
        return not self._open and self._suggester.exhausted

    def next(self) -> CellJob | None:
        """A run of the first open trial that has one left; else of a new suggestion."""
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
        """Keep the outcome of a run; write the trial's record after the last one."""
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
        """Whether a trial's next seed waits for the one before it."""
        return self._plan.stop_hopeless

    def _begin(self, number: int, params: Params) -> None:
        plan, trial = self._plan, _Open(params, deque())
        self._open[number] = trial
        try:
            for seed in plan.seeds:
                config = plan.configure(params, seed)
                cell = cell_name(plan.study_id, number, seed)
                self._trial_of[cell] = (number, seed)
                label = f"trial {number}" + (f" seed={seed}" if len(plan.seeds) > 1 else "")
                job = CellJob(
                    cell=cell,
                    row_id=row_id(config, plan.revision),
                    label=label,
                    config=config,
                    origin=Origin(plan.preset, plan.study_id, None, plan.argv),
                    store=plan.store.root.resolve(),
                    data_dir=plan.data_dir,
                    dataset=plan.dataset,
                    revision=plan.revision,
                    checkpoints=plan.checkpoints,
                    workers=plan.workers,
                    shared=False,
                    stop_collapsed=plan.stop_hopeless,
                )
                trial.left.append(job)
        except ConfigError as err:  # values that are legal one by one but not together
            trial.error = str(err)
            trial.left.clear()
            self.total -= len(plan.seeds)
            self._close(number, trial)

    def _hopeless(self, number: int, trial: _Open) -> bool:
        """Whether what is known of a trial says that its other seeds are not worth their time."""
        first = trial.outcomes.get(self._plan.seeds[0])
        if first is None:
            return False
        if first.objective is None or first.status == "stopped":
            return True
        batch_start = number // self._plan.batch_size * self._plan.batch_size
        earlier = [
            record["seed_objectives"][0]
            for other, record in self._records.items()
            if other < batch_start and record["seed_objectives"][:1] not in ([], [None])
        ]
        return bool(earlier) and first.objective < statistics.median(earlier)

    def _close(self, number: int, trial: _Open) -> None:
        plan = self._plan
        outcomes = [trial.outcomes[seed] for seed in plan.seeds if seed in trial.outcomes]
        objectives = [outcome.objective for outcome in outcomes]
        found = [value for value in objectives if value is not None]
        status = _status(trial, outcomes)
        objective = mean(found) if status in ("ok", "stopped") else None
        record: dict[str, Any] = {
            "status": status,
            "seeds": [seed for seed in plan.seeds if seed in trial.outcomes],
            "params": trial.params,
            "objective": objective,
            "watched": self._watched(outcomes),
            "seconds": sum(outcome.seconds for outcome in outcomes),
            "error": trial.error or next((o.error for o in outcomes if o.error), None),
            "seed_objectives": objectives,
            "bytes": sum(outcome.bytes for outcome in outcomes),
        }
        plan.store.write_trial(plan.study_id, number, record)
        self._records[number] = {**record, "number": number}
        del self._open[number]
        for seed in plan.seeds:
            plan.forget(cell_name(plan.study_id, number, seed))
        self._suggester.tell(number, _told(record))

    def _watched(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        name = self._plan.watched
        if name is None:
            return {}
        rows = [outcome.row for outcome in outcomes if outcome.row is not None]
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        average = mean(values)
        return {} if average is None else {name: average}


def _status(trial: _Open, outcomes: Sequence[Outcome]) -> str:
    seen = {outcome.status for outcome in outcomes}
    if trial.error or "error" in seen:
        return "error"
    if "diverged" in seen:
        return "diverged"
    return "stopped" if trial.skipped or "stopped" in seen else "ok"


def cell_name(study_id: str, number: int, seed: int) -> str:
    """The folder of a trial's run; no other study, and no sweep, ever works in it."""
    return f"{study_id}.{number:04d}.{seed}"


def failed_trials(
    records: Sequence[Mapping[str, Any]], batch_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of failed trials: those to be run again, and those whose error is kept.

    Trials of a later batch were suggested knowing that the ones before had failed, so that another
    outcome would change the study.
    """
    last = max((record["number"] for record in records), default=0) // batch_size
    failed = [record["number"] for record in records if record["status"] == "error"]
    again = tuple(number for number in failed if number // batch_size == last)
    return again, tuple(number for number in failed if number // batch_size < last)


def finished_trials(records: Sequence[Mapping[str, Any]]) -> dict[int, Finished]:
    """Stored trials as the suggester takes them."""
    return {record["number"]: Finished(record["params"], _told(record)) for record in records}


def _told(record: Mapping[str, Any]) -> float | None:
    value: float | None = record["objective"]
    return math.nan if record["status"] == "diverged" else value
