"""Trials of a study: Optuna suggests them in batches, runs come and go in any order.

Optuna suggests a batch before any of its results is known, and gets the results in the order of the
trials, so that suggestions depend neither on when trials end nor on kills: a study continues by
asking for all trials again and comparing with the stored ones. Every trial has a sampler seeded by
its number, unless the sampler has a state.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from fedbench.bench.execution.run import command_line
from fedbench.bench.experiment.experiment import Experiment, Origin
from fedbench.bench.experiment.fields import show
from fedbench.bench.results.chance import terms_at_chance
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.leaderboard.studies import best_trial, with_ranks
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.system.seeding import derive
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.scoring import MOVEMENT, SPREAD, means, metrics
from fedbench.bench.tuning.spaces.samplers import SAMPLERS, quiet
from fedbench.bench.tuning.study import WATCHED, Params, Record, Study

_log = logging.getLogger(__name__)
_BITS = 2**32  # seeds of NumPy's RandomState, which Optuna draws by, are smaller


@dataclass
class Open:
    """A trial with runs that are due or running."""

    params: Params
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by seed
    error: str | None = None


class Trials:
    """The runs of a study, as jobs; writes a record for every trial that is complete.

    Trials with `records` need no further run. Encoders before training that the stored study does
    not have are measured first, and runs on further seeds of best trial and preset come last.
    """

    def __init__(self, study: Study, records: Sequence[Record]) -> None:
        self._study, self._space = study, study.space.distributions()
        self._sampler, self._seed = SAMPLERS[study.search.sampler], study.base.config.seed
        seed = derive(self._seed, "sampler") % _BITS
        sampler = self._sampler.make(seed, self._space)  # kept where it is stateful
        with quiet():
            self._optuna = optuna.create_study(direction="maximize", sampler=sampler)
        self._batch: dict[int, Trial] = {}
        self._suggested: deque[int] = deque()
        self._seen: set[str] = set()  # settings that have a trial, as canonical JSON
        self._unseen = study.space.settings() if study.space.size is not None else iter(())
        self._next = 0
        self._records = {record["number"]: record for record in records}
        self._due: deque[Job] = deque()
        self._takes: dict[str, Callable[[Outcome], None]] = {}  # by the names of jobs
        starts = study.unmeasured()
        self._unmeasured = len(starts)
        for seed in starts:
            start = study.configure({}, seed)
            take = partial(self._take_start, seed)
            self._add("untrained", start, {}, f"start seed={seed}", take, untrained=True)
        done = sum(number in self._records for number in range(study.total))
        self.ended = done * len(study.seeds)
        # Fewer as soon as some turn out not to be needed.
        self.checks = study.most_checks(study.total - done)
        self.total = study.total * len(study.seeds) + self.checks

    @property
    def finished(self) -> bool:
        """True once every trial has its record."""
        return not (self._takes or self._batch) and self._next >= self._study.total

    def next(self) -> Job | None:
        """Return a run that is due, else the first of a new suggestion.

        None = the next run depends on missing outcomes.
        """
        gated = self._study.scoring.gated  # no trial is judged before its encoders are measured
        while not self._due and not (gated and self._unmeasured):
            while not self._batch and self._next < self._study.total:
                self._ask_batch()
                self._tell_batch()
            if not self._suggested:  # a batch runs, or this was the last trial
                break
            number = self._suggested.popleft()
            self._begin(number, dict(self._batch[number].params))
        return self._due.popleft() if self._due else None

    def done(self, outcome: Outcome) -> None:
        """Take the outcome of a run; write the trial's record after the last one."""
        self._takes.pop(outcome.job.name)(outcome)

    def _add(
        self,
        of: int | str,
        run: Experiment,
        params: Params,
        label: str,
        take: Callable[[Outcome], None],
        **more: Any,
    ) -> None:
        """Queue a run of a trial, by its number, or of the preset or of no training, by name."""
        study, seed = self._study, run.config.seed
        name = study.run_name(of, seed)
        preset = study.base.origin.preset
        origin = Origin(preset, study.study_id, "selection", argv=command_line())
        known = {"name": name, "label": label, "shared": False, "scored_by": study.scoring.name}
        known |= {"values": {**params, "seed": seed}, **more}
        run = run.on(study.base.dataset).under(origin)
        self._due.append(study.executor.job(run, **known))
        self._takes[name] = take

    def _ask_batch(self) -> None:
        study, size = self._study, self._study.barrier or self._study.total
        # Batches begin at multiples of their size, so that more trials extend a study as it is.
        end = min(study.total, self._next - self._next % size + size)
        for number in range(self._next, end):
            if number < len(study.points):
                self._optuna.enqueue_trial(study.points[number])
            if not self._sampler.stateful:
                seed = derive(self._seed, "sampler", number) % _BITS
                self._optuna.sampler = self._sampler.make(seed, self._space)
            trial = self._ask()
            stored = self._records.get(number)
            if canonical_json(trial.params) in self._seen:
                trial = self._ask_another(trial)
            self._seen.add(canonical_json(trial.params))
            self._batch[number] = trial
            if stored is None:
                self._suggested.append(number)
            else:
                where = f"trial {number} of study {study.study_id!r}"
                check_params(where, stored["params"], trial.params)
        self._next = end

    def _ask(self) -> Trial:
        with quiet():
            return self._optuna.ask(fixed_distributions=self._space)

    def _ask_another(self, repeated: Trial) -> Trial:
        """Return a trial of the first setting that has none; in a space with ranges, the given one.

        The same setting would have the same bits again; a finite space holds one for each trial.
        """
        for params in self._unseen:
            if canonical_json(params) not in self._seen:
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
        # Suggestions know nothing of later batches, of which an earlier command may have some.
        known = [self._records[number] for number in sorted(self._records) if number < self._next]
        objectives = {
            record["number"]: record["objective"]
            for record in with_ranks(known, self._study.scoring.name)
        }
        diverged = self._sampler.diverged
        if self._sampler.diverged_is_worst:
            told = (value for value in objectives.values() if value is not None)
            diverged = min(told, default=None)
        for number, trial in sorted(self._batch.items()):
            record = self._records[number]
            value, status = objectives[number], record["status"]
            if status == "error":
                self._optuna.tell(trial, state=TrialState.FAIL)
            elif status == "pruned":  # TPE ranks it by rounds, then by value
                trial.report(value, record["rounds"])
                self._optuna.tell(trial, state=TrialState.PRUNED)
            elif value is not None or diverged is not None:
                self._optuna.tell(trial, diverged if value is None else value)
            else:  # TPE ranks a pruned trial without values below every completed one
                self._optuna.tell(trial, state=TrialState.PRUNED)
        self._batch.clear()
        if self._next >= self._study.total:
            self._plan_checks()

    def _plan_checks(self) -> None:
        """Queue the runs on further seeds that the best trial and the preset still need."""
        study = self._study
        trials = with_ranks([*self._records.values()], study.scoring.name)
        missing, best = study.unchecked(trials), best_trial(trials) or {}
        for params, seed in missing:
            is_preset = params == study.preset_params
            label = f"{'preset' if is_preset else 'best'} seed={seed}"
            of, take = "preset" if is_preset else best["number"], self._take_check
            self._add(of, study.configure(params, seed), params, label, partial(take, params, seed))
        self.total += len(missing) - self.checks

    def _take_check(self, params: Params, seed: int, outcome: Outcome) -> None:
        study = self._study
        ended = {"params": params, "seed": seed, "objective": outcome.objective}
        if outcome.status == "error":
            _log.warning("%s: %s", outcome.job.label, outcome.error)
        else:
            study.note(checked=sorted([*study.checked, ended], key=canonical_json))
        study.forget([outcome.job.name])

    def _take_start(self, seed: int, outcome: Outcome) -> None:
        """Take the figures of an encoder before training."""
        self._unmeasured -= 1
        if outcome.error is not None:
            _log.warning("%s: not measured: %s", outcome.job.label, outcome.error)
            return
        known = [*self._study.untrained, {"seed": seed, **outcome.figures}]
        self._study.note(untrained=sorted(known, key=lambda figures: figures["seed"]))

    def _begin(self, number: int, params: Params) -> None:
        """Queue the runs of a trial; one whose values do not go together ends at once."""
        study, trial = self._study, Open(params)
        try:
            runs = [study.configure(params, seed) for seed in study.seeds]
        except ConfigError as err:  # values that are legal one by one but not together
            trial.error = str(err)
            self.total -= len(study.seeds)
            self._close(number, trial)
            return
        given = "".join(f" {key}={show(value)}" for key, value in params.items())
        stage, until = self._stage(number)
        for seed, run in zip(study.seeds, runs, strict=True):
            of_seed = f" seed={seed}" if len(runs) > 1 else ""
            label = f"trial {number}{of_seed} ·{given}{stage}"
            take = partial(self._take_run, number, trial, seed)
            self._add(number, run, params, label, take, until_round=until)

    def _stage(self, number: int) -> tuple[str, int | None]:
        """Return what the labels of a trial end in, and the round after which its runs pause."""
        return "", None

    def _take_run(self, number: int, trial: Open, seed: int, outcome: Outcome) -> None:
        trial.outcomes[seed] = outcome
        if len(trial.outcomes) == len(self._study.seeds):
            self._close(number, trial)

    def _close(self, number: int, trial: Open) -> None:
        self._finish(number, self._summary(trial))

    def _summary(self, trial: Open) -> dict[str, Any]:
        """Return the record of a trial whose runs have ended, or paused."""
        study, scoring = self._study, self._study.scoring
        seeds = sorted(trial.outcomes)
        outcomes = [trial.outcomes[seed] for seed in seeds]
        objectives = [outcome.objective for outcome in outcomes]
        figures, needed = [outcome.figures for outcome in outcomes], scoring.objective.metrics
        undefined = any(name not in each for each in figures for name in needed)
        seen = {outcome.status for outcome in outcomes}
        ended = "error" if trial.error else "ok"
        status = next((one for one in ("error", "diverged") if one in seen), ended)
        known = [value for value in objectives if value is not None]
        objective = mean(known) if status == "ok" and not undefined else None
        spread, scores = means(figures, [*SPREAD, MOVEMENT]), means(figures, metrics())
        error = trial.error or next((o.error for o in outcomes if o.error), None)
        if status == "ok":
            refusal = scoring.refusal({**scores, **spread}, study.untrained)
            if refusal is not None:
                status, objective, error = "refused", None, f"{refusal}: refused by the gate"
            elif undefined:
                status, error = "refused", f"{' or '.join(needed)} is undefined"
        return {
            "status": status,
            "seeds": seeds,
            "params": trial.params,
            "objective": objective,
            "watched": means(figures, [WATCHED] if study.search.watch_labels else []),
            "seconds": sum(outcome.seconds for outcome in outcomes),
            "error": error,
            "at_chance": _at_chance(outcomes) if status == "ok" else [],
            "unmoved": any(o.row is not None and o.row.unmoved for o in outcomes),
            "without_gradient": next((o.row.without_gradient for o in outcomes if o.row), []),
            "seed_objectives": objectives,
            "bytes": sum(outcome.bytes for outcome in outcomes),
            "images": sum(map(_images, outcomes)),
            "spread": spread,
            "scores": scores,
        }

    def _finish(self, number: int, record: Mapping[str, Any]) -> None:
        """Write the record of a trial, delete its runs, and tell the search."""
        study = self._study
        study.store.write_trial(study.study_id, number, record)
        self._records[number] = {**record, "number": number}
        study.forget_runs([number])
        self._tell_batch()


def check_params(where: str, stored: Params, suggested: Params) -> None:
    """Refuse a stored trial that has other parameters than its number gets now."""
    if canonical_json(stored) != canonical_json(suggested):
        raise StoreError(
            f"{where} was made with {stored}, but its number gets {suggested} now (other versions"
            " of Optuna or NumPy?); use another study name to start a new study"
        )


def _images(outcome: Outcome) -> int:
    """Return the images of all local steps; the last batch of an epoch counts as a whole one."""
    batch = outcome.job.experiment.config.client.batch_size
    return batch * sum(int(point["num_steps"]) for point in outcome.points())


def _at_chance(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the terms of the loss that ended at chance in each run."""
    found = [{*terms_at_chance(o.job.experiment.config, o.points())} for o in outcomes]
    return sorted(set.intersection(*found))
