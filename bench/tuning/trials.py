"""Plan and trials of a study: Optuna suggests them in batches, runs come and go in any order.

Optuna suggests a batch before any of its results is known, and gets the results in the order of the
trials, so that suggestions depend neither on when trials end nor on kills: a study continues by
asking for all trials again and comparing with the stored ones. Every trial has a sampler seeded by
its number, unless the sampler has a state.
"""

import json
import logging
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from math import isfinite
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.execution.execute import points_of
from fedbench.bench.execution.run import command_line, forget_cell
from fedbench.bench.experiment.experiment import Experiment, Origin
from fedbench.bench.experiment.fields import flat_config, show
from fedbench.bench.method.ids import counted
from fedbench.bench.results.chance import terms_at_chance
from fedbench.bench.results.leaderboard.statistics import MIN_FOR_INTERVAL, mean
from fedbench.bench.results.leaderboard.studies import best_trial, with_ranks
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, DataError, StoreError
from fedbench.bench.system.identity import canonical_json, content_id
from fedbench.bench.system.seeding import derive
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.rungs import Halving
from fedbench.bench.tuning.samplers import SAMPLERS
from fedbench.bench.tuning.scoring import MOVEMENT, NUM_SEEDS, SPREAD, Scoring, metrics
from fedbench.bench.tuning.search import Search
from fedbench.bench.tuning.space import SearchSpace
from fedbench.bench.tuning.verdict import Verdict, judge

Params = dict[str, Any]
_log = logging.getLogger(__name__)
_BITS = 2**32
WATCHED = "knn_acc"  # the metric that `watch_labels` measures besides the objective


@dataclass(frozen=True)
class StudyPlan:
    """A study: the values that identify it, and those that all its trials share."""

    search: Search  # as asked for
    base: Experiment  # that trials start from
    configure: Callable[[Params, int], Experiment]  # parameters and a seed -> that of a run
    space: SearchSpace  # without the dimensions that the user has set
    points: Sequence[Params]  # parameters of the first trials; for the sampler `grid`, of all
    total: int  # number of trials
    batch_size: int  # trials that are suggested together
    executor: Executor
    halving: Halving | None = None  # None = all trials are run to their end

    @property
    def store(self) -> Store:
        """The store of the study."""
        return self.executor.store

    @cached_property
    def scoring(self) -> Scoring:
        """The objective by which trials are ranked."""
        return Scoring(self.search.scored_by)

    @cached_property
    def study_id(self) -> str:
        """Name in the store: a readable part, and a hash of everything that changes the trials."""
        name = (self.search.study_name or self.base.config.spec).lower()
        slug = re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:60] or "study"
        return f"{slug}-{content_id(canonical_json(self._identity()))[:10]}"

    @property
    def barrier(self) -> int | None:
        """Trials of which each waits for those before; None if no trial looks at another."""
        return self.batch_size if SAMPLERS[self.search.sampler].learns else None

    @property
    def seeds(self) -> range:
        """Seeds of a trial's runs."""
        first = self.base.config.seed
        return range(first, first + self.search.seeds_per_trial)

    @property
    def untrained_seeds(self) -> range:
        """Seeds of the encoders before training with which the trials are compared."""
        first = self.base.config.seed
        return range(first, first + NUM_SEEDS)

    @property
    def untrained(self) -> list[Mapping[str, float]]:
        """Seed and figures of each encoder before training that the stored study has."""
        return [*(self.store.study(self.study_id) or {}).get("untrained", ())]

    def verdict(self, trials: Sequence[Mapping[str, Any]]) -> Verdict:
        """Judge the study by all its trials, of which one at least has an objective."""
        started = self.base.config.model.weights is not None
        leads = self.leads(trials)
        return judge(trials, self.untrained, self.scoring, leads, started=started)

    def unmeasured(self) -> list[int]:
        """Return the seeds of encoders before training that the stored study does not have."""
        known = {figures["seed"] for figures in self.untrained}
        return [seed for seed in self.untrained_seeds if seed not in known]

    @property
    def preset_params(self) -> Params:
        """Values of the preset in the fields that trials vary."""
        values = flat_config(self.base.config)
        return {key: values.get(key) for key in self.space.dimensions}

    @property
    def checked(self) -> list[Mapping[str, Any]]:
        """Runs of best trials and preset on further seeds: records of `params seed objective`."""
        return [*(self.store.study(self.study_id) or {}).get("checked", ())]

    @property
    def fresh_seeds(self) -> range:
        """Seeds of the runs in `checked`: a best trial is best on those that it was chosen by."""
        return range(self.seeds.stop, self.seeds.stop + MIN_FOR_INTERVAL)

    @property
    def num_checks(self) -> int:
        """Number of such runs that a study needs, unless the preset is its best trial."""
        return 0 if self.scoring.ranked else 2 * len(self.fresh_seeds)

    def compared(self, trials: Sequence[Mapping[str, Any]]) -> list[Params]:
        """Return the parameters of best trial and preset; empty if they cannot be compared."""
        best, preset = best_trial(trials), self.preset_params
        if best is None or best["params"] == preset or self.scoring.ranked:
            return []
        ended = {trial["status"] for trial in trials if trial["params"] == preset}
        return [] if ended & {"diverged", "error"} else [dict(best["params"]), preset]

    def leads(self, trials: Sequence[Mapping[str, Any]]) -> list[float] | None:
        """Return by how much the best trial is ahead of the preset on each fresh seed.

        A seed under which a run has failed or diverged is left out. None if there is no such pair.
        """
        if not (compared := self.compared(trials)):
            return None
        known = {(canonical_json(c["params"]), c["seed"]): c["objective"] for c in self.checked}
        found = [
            [known.get((canonical_json(params), seed)) for params in compared]
            for seed in self.fresh_seeds
        ]
        return [best - preset for best, preset in found if best is not None and preset is not None]

    def unchecked(self, trials: Sequence[Mapping[str, Any]]) -> list[tuple[Params, int]]:
        """Return parameters and seed of each run that is missing to judge the best trial."""
        tried = {(canonical_json(c["params"]), c["seed"]) for c in self.checked}
        return [
            (params, seed)
            for params in self.compared(trials)
            for seed in self.fresh_seeds
            if (canonical_json(params), seed) not in tried
        ]

    def _identity(self) -> dict[str, Any]:
        dimensions, objective = self.space.dimensions, self.scoring.name
        # Revision and hash say which images and weights, and the objective which scores.
        named = {*dimensions, "spec", "data.name", "evaluation.objectives", "model.weights"}
        values = counted(self.base.config.model_dump(mode="json", exclude={"code"}))
        return {
            "benchmark": BENCHMARK_VERSION,
            "data": self.base.dataset.revision,
            "base": {key: value for key, value in values.items() if key not in named},
            "spec": self.base.config.spec,
            "space": {key: dim.model_dump(mode="json") for key, dim in dimensions.items()},
            "points": self.points,
            "sampler": self.search.sampler,
            "batch_size": self.batch_size,
            "seeds_per_trial": self.search.seeds_per_trial,
            "name": self.search.study_name,
            **({"code": self.base.config.code} if self.base.config.code else {}),
            **({} if objective == DEFAULT else {"objective": objective}),
            **({} if self.halving is None else {"fidelity": self.halving.as_dict()}),
        }

    def outdated(self) -> tuple[str, ...]:
        """Return the stored studies that differ from this one in the code of packages only.

        Those whose values a stored run has are left out.
        """
        if not self.base.config.code:
            return ()
        mine = json.loads(canonical_json(self._identity()))
        names = {*mine, "objective", "fidelity"} - {"code"}
        used = {row.study_id for row in self.store.rows()}
        others = {i: self.store.study(i) or {} for i in self.store.studies() if i not in used}
        return tuple(
            study_id
            for study_id, meta in others.items()
            if study_id != self.study_id
            and meta.get("code")
            and all(meta.get(name) == mine.get(name) for name in names)
        )

    def description(self) -> dict[str, Any]:
        """Return the content of `study.json`, as far as it is known from the start."""
        return {
            "study_id": self.study_id,
            "preset": self.base.origin.preset,
            "optuna": version("optuna"),
            "seed": self.base.config.seed,
            "config": self.base.config.model_dump(mode="json"),
            "dataset": self.base.dataset.name,
            "whole": self.base.dataset.whole,
            **self._identity(),
        }

    def trials(self) -> list[dict[str, Any]]:
        """Return the trials of the store."""
        return with_ranks(self.store.trials(self.study_id), self.scoring.name)

    def kept(self, stored: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the trials that need no further run; with halving, those of whole brackets.

        A failed one is run again, unless others were suggested, or went on to another rung, after
        it: another outcome would change the study.
        """
        last = max((trial["number"] for trial in stored), default=0)

        def stays(trial: Mapping[str, Any]) -> bool:
            if trial["status"] != "error":
                return True
            if "rung" in trial:  # of those that it competed with, some went on
                return True
            size = self.barrier
            return size is not None and trial["number"] // size < last // size

        kept = [trial for trial in stored if stays(trial)]
        if self.halving is None:
            return kept
        numbers = {trial["number"] for trial in kept}
        brackets = [b for b in self.halving.brackets(self.total) if numbers.issuperset(b)]
        return [trial for trial in kept if any(trial["number"] in b for b in brackets)]

    def missing(self, stored: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of trials to run."""
        return self.total - sum(1 for trial in self.kept(stored) if trial["number"] < self.total)

    def run_name(self, run: int | str, seed: int) -> str:
        """Return the name of a run's folder; no other study, and no sweep, works in it.

        A run is the number of a trial, on a fresh seed too, or `preset` or `untrained`.
        """
        return f"{self.study_id}.{run if isinstance(run, str) else f'{run:04d}'}.{seed}"

    def forget_runs(self, numbers: Iterable[int]) -> None:
        """Delete the folders of trials' runs, since only their records are kept."""
        self.forget(self.run_name(number, seed) for number in numbers for seed in self.seeds)

    def forget(self, names: Iterable[str]) -> None:
        """Delete folders of runs."""
        for name in names:
            forget_cell(self.executor.cells, name)


@dataclass
class Open:
    """A trial with runs that are due or running."""

    params: Params
    left: deque[Job]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    error: str | None = None


class Trials:
    """The runs of a study, as jobs; writes a record for every trial that is complete.

    Trials with `records` need no further run. Encoders before training that the stored study does
    not have are measured first.
    """

    def __init__(self, plan: StudyPlan, records: Sequence[Mapping[str, Any]]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._plan, self._space = plan, plan.space.distributions()
        self._sampler, self._seed = SAMPLERS[plan.search.sampler], plan.base.config.seed
        seed = derive(self._seed, "sampler") % _BITS
        sampler = self._sampler.make(seed, self._space)  # kept where it is stateful
        self._optuna = optuna.create_study(direction="maximize", sampler=sampler)
        self._batch: dict[int, Trial] = {}
        self._suggested: deque[int] = deque()
        self._seen: set[Setting] = set()  # settings that have a trial
        self._unseen = plan.space.settings() if plan.space.size is not None else iter(())
        self._next = 0
        self._untrained = plan.untrained
        self._records = {record["number"]: record for record in records}
        self._open: dict[int, Open] = {}
        self._takes: dict[str, Callable[[Outcome], None]] = {}  # by the names of jobs
        self._to_measure = deque(map(self._start, plan.unmeasured()))
        self._unmeasured = len(self._to_measure)
        self._to_check: deque[Job] = deque()
        done = sum(number in self._records for number in range(plan.total))
        self.ended = done * len(plan.seeds)
        # Fewer as soon as some turn out not to be needed.
        self.total = plan.total * len(plan.seeds)

    @property
    def finished(self) -> bool:
        """True once every trial has its record."""
        waiting = self._takes or self._open or self._suggested or self._batch
        return not waiting and self._next >= self._plan.total

    def next(self) -> Job | None:
        """Return a run of the first open trial that has one left, else of a new suggestion.

        Encoders before training come first, and runs on further seeds of best trial and preset
        last. None = the next run depends on missing outcomes.
        """
        if self._to_measure:
            return self._to_measure.popleft()
        if self._plan.scoring.gated and self._unmeasured:  # no trial is judged before
            return None
        while True:
            for trial in self._open.values():
                if trial.left:
                    return trial.left.popleft()
            while not self._suggested and not self._batch and self._next < self._plan.total:
                self._ask_batch()
                self._tell_batch()
            if not self._suggested:  # a batch runs, or this was the last trial
                return self._to_check.popleft() if self._to_check else None
            number = self._suggested.popleft()
            self._begin(number, dict(self._batch[number].params))

    def _ask_batch(self) -> None:
        plan, size = self._plan, self._plan.barrier or self._plan.total
        end = min(plan.total, self._next - self._next % size + size)
        for number in range(self._next, end):
            if number < len(plan.points):
                self._optuna.enqueue_trial(plan.points[number])
            if not self._sampler.stateful:
                seed = derive(self._seed, "sampler", number) % _BITS
                self._optuna.sampler = self._sampler.make(seed, self._space)
            trial = self._ask()
            stored = self._records.get(number)
            if _setting(trial.params) in self._seen and (
                stored is None or stored["params"] != trial.params  # one of an earlier version
            ):
                trial = self._ask_another(trial)
            self._seen.add(_setting(trial.params))
            self._batch[number] = trial
            if stored is None:
                self._suggested.append(number)
            else:
                where = f"trial {number} of study {plan.study_id!r}"
                check_params(where, stored["params"], trial.params)
        self._next = end

    def _ask(self) -> Trial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ExperimentalWarning of samplers
            return self._optuna.ask(fixed_distributions=self._space)

    def _ask_another(self, repeated: Trial) -> Trial:
        """Return a trial of the first setting that has none; in a space with ranges, the given one.

        The same setting would have the same bits again; a finite space holds one for each trial.
        """
        for params in self._unseen:
            if _setting(params) not in self._seen:
                self._optuna.tell(repeated, state=TrialState.FAIL)  # it says nothing
                self._optuna.enqueue_trial(params)
                return self._ask()
        return repeated

    def _tell_batch(self) -> None:
        """Give Optuna a complete batch in the order of numbers, whatever the order of completion.

        It ranks a diverged trial last, so that it leaves too high rates; an error says nothing.
        """
        if not self._records.keys() >= self._batch.keys():
            return
        known = [self._records[number] for number in sorted(self._records) if number < self._next]
        objectives = {
            record["number"]: record["objective"]
            for record in with_ranks(known, self._plan.scoring.name)
        }
        finite = [value for value in objectives.values() if value is not None and isfinite(value)]
        diverged = self._sampler.diverged
        if self._sampler.diverged_is_worst:
            diverged = min(finite, default=None)
        for number, trial in sorted(self._batch.items()):
            record = self._records[number]
            value, status = objectives[number], record["status"]
            if status == "error":
                self._optuna.tell(trial, state=TrialState.FAIL)
            elif status == "pruned":  # TPE ranks it by rounds, then by value
                trial.report(value, record["rounds"])
                self._optuna.tell(trial, state=TrialState.PRUNED)
            elif value is not None and isfinite(value):
                self._optuna.tell(trial, value)
            elif diverged is not None:
                self._optuna.tell(trial, diverged)
            else:  # TPE ranks a pruned trial without values below every completed one
                self._optuna.tell(trial, state=TrialState.PRUNED)
        self._batch.clear()
        if self._next >= self._plan.total:
            self._plan_checks()

    def _plan_checks(self) -> None:
        """Queue the runs on further seeds that the best trial and the preset still need."""
        plan = self._plan
        trials = with_ranks([*self._records.values()], plan.scoring.name)
        for params, seed in plan.unchecked(trials):
            is_preset, best = params == plan.preset_params, best_trial(trials) or {}
            name = plan.run_name("preset" if is_preset else best["number"], seed)
            label = f"{'preset' if is_preset else 'best'} seed={seed}"
            job = self._job(name, plan.configure(params, seed), label)
            self._to_check.append(replace(job, values={**params, "seed": seed}))
            self._takes[name] = partial(self._take_check, params, seed)
        self.total += len(self._to_check)

    def _take_check(self, params: Params, seed: int, outcome: Outcome) -> None:
        plan, store = self._plan, self._plan.store
        ended = {"params": params, "seed": seed, "objective": outcome.objective}
        if outcome.status == "error":
            _log.warning("%s: %s", outcome.job.label, outcome.error)
        else:
            checked = sorted([*plan.checked, ended], key=canonical_json)
            meta = store.study(plan.study_id) or {}
            store.write_study(plan.study_id, {**meta, "checked": checked})
        plan.forget([outcome.job.name])

    def done(self, outcome: Outcome) -> None:
        """Take the outcome of a run; write the trial's record after the last one."""
        self._takes.pop(outcome.job.name)(outcome)

    def _start(self, seed: int) -> Job:
        """Return the job of an encoder before training."""
        name, run = self._plan.run_name("untrained", seed), self._plan.configure({}, seed)
        self._takes[name] = partial(self._take_start, seed)
        return replace(self._job(name, run, f"start seed={seed}"), untrained=True)

    def _take_start(self, seed: int, outcome: Outcome) -> None:
        self._unmeasured -= 1
        if outcome.figures is None:
            _log.warning("%s: not measured: %s", outcome.job.label, outcome.error)
            return
        known = [*self._untrained, {"seed": seed, **outcome.figures}]
        self._untrained = sorted(known, key=lambda figures: figures["seed"])
        store, study_id = self._plan.store, self._plan.study_id
        store.write_study(study_id, {**(store.study(study_id) or {}), "untrained": self._untrained})

    def _take_run(self, number: int, seed: int, outcome: Outcome) -> None:
        trial = self._open[number]
        trial.outcomes[seed] = outcome
        if len(trial.outcomes) == len(self._plan.seeds):
            self._close(number, trial)

    def _begin(self, number: int, params: Params) -> None:
        plan, trial = self._plan, Open(params, deque())
        self._open[number] = trial
        try:
            for seed in plan.seeds:
                run = plan.configure(params, seed)
                name = plan.run_name(number, seed)
                self._takes[name] = partial(self._take_run, number, seed)
                given = " ".join(f"{key}={show(value)}" for key, value in params.items())
                named = f"trial {number}" + (f" seed={seed}" if len(plan.seeds) > 1 else "")
                label = f"{named} · {given}" if given else named
                job = self._job(name, run, label, number)
                trial.left.append(replace(job, values={**params, "seed": seed}))
        except ConfigError as err:  # values that are legal one by one but not together
            trial.error = str(err)
            trial.left.clear()
            self.total -= len(plan.seeds)
            self._close(number, trial)

    def _job(self, name: str, run: Experiment, label: str, number: int | None = None) -> Job:
        """Return the job of a trial's run, or without `number` of an encoder before training."""
        plan = self._plan
        preset = plan.base.origin.preset
        origin = Origin(preset, plan.study_id, "selection", argv=command_line())
        known = {"name": name, "label": label, "shared": False, "scored_by": plan.scoring.name}
        return plan.executor.job(run.on(plan.base.dataset).under(origin), **known)

    def _close(self, number: int, trial: Open) -> None:
        del self._open[number]
        self._finish(number, self._summary(trial))

    def _summary(self, trial: Open) -> dict[str, Any]:
        """Return the record of a trial whose runs have ended, or paused."""
        plan, scoring = self._plan, self._plan.scoring
        outcomes = [trial.outcomes[seed] for seed in plan.seeds if seed in trial.outcomes]
        objectives = [outcome.objective for outcome in outcomes]
        undefined = any(o.metric(name) is None for o in outcomes for name in scoring.metrics)
        seen = {outcome.status for outcome in outcomes}
        status = "error" if trial.error or "error" in seen else "ok"
        if status == "ok" and "diverged" in seen:
            status = "diverged"
        objective = _mean(objectives) if status == "ok" and not undefined else None
        spread, scores = _means(outcomes, [*SPREAD, MOVEMENT]), _means(outcomes, metrics())
        error = trial.error or next((o.error for o in outcomes if o.error), None)
        if status == "ok":
            refusal = scoring.refusal({**scores, **spread}, self._untrained)
            if refusal is not None:
                status, objective, error = "refused", None, f"{refusal}: refused by the gate"
            elif undefined:
                status, error = "refused", f"{' or '.join(scoring.metrics)} is undefined"
        return {
            "status": status,
            "seeds": [seed for seed in plan.seeds if seed in trial.outcomes],
            "params": trial.params,
            "objective": objective,
            "watched": _means(outcomes, [WATCHED] if plan.search.watch_labels else []),
            "seconds": sum(outcome.seconds for outcome in outcomes),
            "error": error,
            "at_chance": _at_chance(outcomes) if status == "ok" else [],
            "unmoved": any(o.row is not None and o.row.unmoved for o in outcomes),
            "seed_objectives": objectives,
            "bytes": sum(outcome.bytes for outcome in outcomes),
            "spread": spread,
            "scores": scores,
        }

    def _finish(self, number: int, record: Mapping[str, Any]) -> None:
        """Write the record of a trial, delete its runs, and tell the search."""
        plan = self._plan
        plan.store.write_trial(plan.study_id, number, record)
        self._records[number] = {**record, "number": number}
        plan.forget_runs([number])
        self._tell_batch()


Setting = tuple[tuple[str, Any], ...]


def _setting(params: Mapping[str, Any]) -> Setting:
    """Return what equal parameters have in common."""
    return tuple(sorted(params.items()))


def check_params(where: str, stored: Params, suggested: Params) -> None:
    """Refuse a stored trial that has other parameters than its number gets now."""
    if canonical_json(stored) != canonical_json(suggested):
        raise StoreError(
            f"{where} was made with {stored}, but its number gets {suggested} now (other versions"
            " of Optuna or NumPy?); use another study name to start a new study"
        )


def _at_chance(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the terms of the loss that ended at chance in each run."""
    found = []
    for outcome in outcomes:
        points = outcome.history
        if points is None:
            points = points_of(outcome.job.folder)
        if not points:
            return []
        try:
            found.append({*terms_at_chance(outcome.job.experiment.config, points)})
        except (ConfigError, DataError) as err:
            _log.warning("%s: whether it learnt is not known: %s", outcome.job.label, err)
            return []
    return sorted(set.intersection(*found)) if found else []


def _mean(values: Sequence[float | None]) -> float | None:
    return mean([value for value in values if value is not None])


def _means(outcomes: Sequence[Outcome], names: Sequence[str]) -> dict[str, float]:
    """Return the means over seeds of the metrics that runs have."""
    means = {name: _mean([one.metric(name) for one in outcomes]) for name in names}
    return {name: value for name, value in means.items() if value is not None}
