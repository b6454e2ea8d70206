"""A study: what identifies it, what the store has of it, and what that shows."""

import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.identity import READ_BY_SOURCE
from fedbench.bench.data.datasets import content_names
from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.execution.run import forget_cell
from fedbench.bench.experiment.common_options import Places, Settings, as_path
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields, flat_config, get, show
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.method.ids import counted
from fedbench.bench.results.leaderboard.confirmed import Confirmed
from fedbench.bench.results.leaderboard.statistics import MIN_FOR_INTERVAL
from fedbench.bench.results.leaderboard.studies import (
    Correlation,
    best_trial,
    correlate,
    watched,
    with_ranks,
)
from fedbench.bench.results.store.files import list_folder
from fedbench.bench.results.store.replicas import Difference
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.identity import canonical_json, content_id
from fedbench.bench.tuning.best import best_file, write_best
from fedbench.bench.tuning.executor import Cost, Executor
from fedbench.bench.tuning.options import Search
from fedbench.bench.tuning.rungs import NONE, Halving, make_halving
from fedbench.bench.tuning.scoring import NUM_SEEDS, Scoring
from fedbench.bench.tuning.spaces.samplers import SAMPLERS, check_space
from fedbench.bench.tuning.spaces.space import SearchSpace, dead_dimensions, load_space
from fedbench.bench.tuning.verdict import Verdict, judge

Params = dict[str, Any]
Record = Mapping[str, Any]  # of a trial, as the store has it
BATCH_SIZE = 4  # trials per batch unless `--batch` says otherwise, whatever the machine
WATCHED = "knn_acc"  # the metric that `watch_labels` measures besides the objective
_ROUNDS = "federation.num_rounds"
_IMAGES = {f"data.{name}" for name in ("name", "train_subset", "test_subset", *READ_BY_SOURCE)}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class StudyResult:
    """The outcome of a study.

    A trial is a record of `number status objective params seeds watched seconds error` and more.
    """

    study_id: str  # its name in the store
    spec: str
    preset: str  # that trials start from
    status: str  # `finished`, or `planned` after `dry_run`
    best: Mapping[str, Any] | None  # `trial objective params`; None: none, or none can be told
    trials: tuple[Mapping[str, Any], ...] = field(repr=False)  # all of the store
    to_run: int  # trials that were, or with `dry_run` would be, executed by this call
    config_file: Path | None  # YAML with the best values; None before the study has finished
    untrained: tuple[Mapping[str, float], ...] = field(default=(), repr=False)  # by `seed`
    doubts: tuple[str, ...] = ()  # reasons because of which no best trial can be told
    cautions: tuple[str, ...] = ()  # reasons to be careful with the best values
    correlation: Correlation | None = None  # of objective and k-NN accuracy, with `watch_labels`
    objective: str = DEFAULT  # name of the score that was maximised
    fidelity: Mapping[str, Any] | None = None  # `name eta rounds sizes` of halving
    kept_errors: tuple[int, ...] = ()  # failed, and not run again: later trials depend on them
    confirmed: tuple[Confirmed, ...] = ()  # configurations on fresh seeds, with `confirm`
    repeated: tuple[Difference, ...] | None = None  # from the repetition; None: nothing repeated
    outdated: tuple[str, ...] = ()  # studies of code that is gone; with `again` they are deleted
    seconds: float = 0.0  # wall time of this call
    estimate: Cost | None = None  # of `to_run`, with `dry_run` only
    preset_params: Mapping[str, Any] = field(default_factory=dict)  # of what trials vary

    def __repr__(self) -> str:
        best = self.best and f"trial {self.best['trial']}: {self.best['params']}"
        return f"<study {self.study_id}: {len(self.trials)} trials, {self.status}, best {best}>"

    @property
    def failed(self) -> int:
        """Number of trials that ended with an error; diverged ones do not count."""
        return sum(1 for trial in self.trials if trial["status"] == "error")


@dataclass(frozen=True)
class Study:
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

    @classmethod
    def of(
        cls, spec: str, settings: Settings, search: Search, places: Places, executor: Executor
    ) -> Self:
        """Return the study that the options of `tune` ask for."""
        fields = Fields.of(spec)
        fixed = {
            **flatten(settings.set or {}, keep=fields.infos),
            # No metric that reads a label is computed, unless it is to be watched.
            "evaluation.protocols": ["knn"] if search.watch_labels else [],
            "evaluation.transfer": [],
            "evaluation.untrained": False,
            "evaluation.every": 0,
            "evaluation.online": False,
            "evaluation.rounds": [],
            "evaluation.objectives": Scoring(search.scored_by).objectives,
        }
        seed = fixed.pop("seed", None)  # in `set` it would hold for every run of a trial
        given = {**vars(settings), "set": fixed, "data_dir": places.cache}
        given["content"] = content_names(places.cache)  # one, which remembers what it has read

        def configure(params: Mapping[str, Any], seed: int | None) -> Experiment:
            return resolve(spec, tuned=params, **{**given, "seed": seed})

        base = configure({}, seed if settings.seed is None else settings.seed)
        base.workers(2)  # raises: trials run in processes of their own
        of_preset = ("default", "preset ")
        by_user = {key for key, of in base.sources.items() if not of.startswith(of_preset)}
        space = load_space(fields, file=as_path(search.space_file)).without(by_user)
        # Fields of the method may weigh losses, and those of other weights have no common scale.
        other_losses = any(name.startswith("method.") for name in space.dimensions)
        if search.objective is None and search.fidelity != NONE and other_losses:
            search = replace(search, objective=DEFAULT)  # which every run computes, as the loss
        Scoring(search.scored_by).check_noise(base.config.evaluation.objective_noise)
        alike = _IMAGES if search.fidelity == NONE else {*_IMAGES, _ROUNDS}
        for key in (key for key in space.dimensions if key in alike):
            why = "its images" if key in _IMAGES else f"--fidelity {search.fidelity}"
            raise ConfigError(
                f"the search space varies {key}, which all trials of a study have alike for {why};"
                f" set it, such as --set {key}={show(get(base.config, key))}"
            )
        dead = dead_dimensions(space, lambda params: configure(params, None).config)
        for key, why in dead.items():
            _log.warning("%s is not searched: with %s no run reads it", key, why)
        space = space.without(dead)
        check_space(search.sampler, space.distributions())
        points = space.grid() if search.sampler == "grid" else space.first_points(base.config)
        finite = len(points) if search.sampler == "grid" else space.size
        total = search.trials if finite is None else min(search.trials, finite)
        if search.sampler == "grid" and total < len(points):
            _log.warning("%d of the search space's %d points run; see --trials", total, len(points))
        elif total < search.trials:
            _log.warning("the search space holds %d settings: each is a trial, once", total)
        size = search.batch_size or (BATCH_SIZE if search.fidelity == NONE else total)
        halving = None
        if search.fidelity != NONE:
            rounds, least = base.config.federation.num_rounds, base.needs.least_rounds
            halving = make_halving(
                search.eta, search.rungs, rounds=rounds, least_rounds=least, size=size
            )
            halving.brackets(total)  # refuses trials that do not fill the last one
        return cls(search, base, configure, space, points, total, size, executor, halving)

    @property
    def store(self) -> Store:
        """The store of the study."""
        return self.executor.store

    @property
    def folder(self) -> Path:
        """The folder of its records in the store."""
        return self.store.root / "trials" / self.study_id

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
    def fresh_seeds(self) -> range:
        """Seeds of the runs by which the best trial and the preset are compared."""
        return range(self.seeds.stop, self.seeds.stop + MIN_FOR_INTERVAL)

    @property
    def untrained_seeds(self) -> range:
        """Seeds of the encoders before training with which the trials are compared."""
        first = self.base.config.seed
        return range(first, first + NUM_SEEDS)

    @property
    def stored(self) -> Record:
        """The content of `study.json`; empty before the study has begun."""
        return self.store.study(self.study_id)

    def note(self, **entries: Any) -> None:
        """Write entries of `study.json`; the others stay."""
        if (changed := {**(stored := self.stored), **entries}) != stored:
            self.store.write_study(self.study_id, changed)

    @property
    def untrained(self) -> list[Mapping[str, float]]:
        """Seed and figures of each encoder before training that the stored study has."""
        return [*self.stored.get("untrained", ())]

    def verdict(self, trials: Sequence[Record]) -> Verdict:
        """Judge the study by all its trials, of which one at least has an objective."""
        started = self.base.config.model.weights is not None
        leads = self._leads(trials)
        preset = self.preset_params
        return judge(trials, self.untrained, self.scoring, leads, preset=preset, started=started)

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
    def checked(self) -> list[Record]:
        """Runs of best trials and preset on further seeds: records of `params seed objective`."""
        return [*self.stored.get("checked", ())]

    def _checks(self, trials: Sequence[Record]) -> list[tuple[Params, int]]:
        """Return parameters and seed of the runs that compare the best trial and the preset.

        First those of the best trial; there are none where the two cannot be compared. A best trial
        is best on the seeds that it was chosen by, so that these are others.
        """
        best, preset = best_trial(trials), self.preset_params
        ended = {trial["status"] for trial in trials if trial["params"] == preset}
        if best is None or best["params"] == preset or ended & {"diverged", "error"}:
            return []
        if self.scoring.objective.ranked:  # only trials have ranks
            return []
        return [*itertools.product((dict(best["params"]), preset), self.fresh_seeds)]

    def _leads(self, trials: Sequence[Record]) -> list[float] | None:
        """Return by how much the best trial is ahead of the preset on each fresh seed.

        A seed under which a run has failed or diverged is left out. None if there is no such pair.
        """
        scores = {_key(c["params"], c["seed"]): c["objective"] for c in self.checked}
        found = [scores.get(_key(*run)) for run in self._checks(trials)]
        pairs = zip(found[:MIN_FOR_INTERVAL], found[MIN_FOR_INTERVAL:], strict=True)
        leads = [one - other for one, other in pairs if one is not None and other is not None]
        return leads if found else None

    def unchecked(self, trials: Sequence[Record]) -> list[tuple[Params, int]]:
        """Return parameters and seed of each run that is missing to judge the best trial."""
        known = {_key(c["params"], c["seed"]) for c in self.checked}
        return [run for run in self._checks(trials) if _key(*run) not in known]

    def most_checks(self, trials: int) -> int:
        """Return how many runs on fresh seeds there are at most after so many further trials."""
        if not trials:
            return len(self.unchecked(self.trials()))
        return 0 if self.scoring.objective.ranked else 2 * MIN_FOR_INTERVAL

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
            # Left out where they are what all studies had before there was a choice: ids stay.
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
        others = {i: self.store.study(i) for i in self.store.studies() if i not in used}
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

    def kept(self) -> list[Record]:
        """Return the trials that need no further run; with halving, those of whole brackets.

        A failed one is run again, unless others were suggested, or went on to another rung, after
        it: another outcome would change the study.
        """
        stored, size = self.trials(), self.barrier
        last = stored[-1]["number"] if stored else 0
        kept: list[Record] = [
            trial
            for trial in stored
            if trial["status"] != "error"
            or "rung" in trial  # of those that it competed with, some went on
            or (size is not None and trial["number"] // size < last // size)
        ]
        if self.halving is None:
            return kept
        numbers = {trial["number"] for trial in kept}
        brackets = [b for b in self.halving.brackets(self.total) if numbers.issuperset(b)]
        return [trial for trial in kept if any(trial["number"] in b for b in brackets)]

    def missing(self) -> int:
        """Return the number of trials to run."""
        return self.total - len([trial for trial in self.kept() if trial["number"] < self.total])

    def runs(self, trials: int) -> list[Experiment]:
        """Return the runs of so many trials and of `checked`; seeds do not change what they cost.

        With halving, those of a trial have the rounds that each rung adds.
        """
        base, halving = self.base, self.halving
        runs = [base] * trials
        if halving is not None:
            federation, bracket = base.config.federation, list[Experiment]()
            rungs = zip((0, *halving.rounds), halving.rounds, halving.counts(), strict=False)
            for before, end, number in rungs:
                update = {"federation": federation.model_copy(update={"num_rounds": end - before})}
                shorter = replace(base, config=base.config.model_copy(update=update))
                bracket += [shorter.on(base.dataset)] * number
            runs = bracket * (trials // halving.size)
        return runs * self.search.seeds_per_trial + [base] * self.most_checks(trials)

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

    @contextmanager
    def alone(self) -> Iterator[list[Record]]:
        """Hold the study against other processes; yield the trials that need no further run.

        What a killed process may have left is deleted before.
        """
        store = self.store
        store.check_writable()
        with store.lock(self.study_id) as locked:
            if not locked:
                raise StoreError(
                    f"study {self.study_id} is being run by another process on this store; wait"
                    " for it, or give this one another study name"
                )
            stored, kept = self.trials(), self.kept()
            self.forget_runs(trial["number"] for trial in stored)
            if self.barrier is not None and len(kept) < len(stored):
                # It may have begun the next batch, which may get other parameters.
                batch = stored[-1]["number"] // self.batch_size + 1
                start = batch * self.batch_size
                self.forget_runs(range(start, start + self.batch_size))
                shutil.rmtree(self.folder / f"bracket-{batch:04d}", ignore_errors=True)
            if not self.stored:
                self.note(**self.description(), finished_at=None)
            try:
                yield kept
            finally:
                self.forget(self.run_name("untrained", seed) for seed in self.untrained_seeds)

    def end(self) -> Path | None:
        """Write best values and description of a study that has run; return the file of the values.

        None if no trial has an objective.
        """
        trials, earlier = self.trials(), self.stored
        # A process that was killed may have left any of them.
        seeds = range(self.seeds.start, max(self.fresh_seeds.stop, self.untrained_seeds.stop))
        runs = [*(trial["number"] for trial in trials), "preset", "untrained"]
        names = itertools.starmap(self.run_name, itertools.product(runs, seeds))
        there = {path.name for path in list_folder(self.executor.cells.root / "cells")}
        self.forget(there.intersection(names))
        best, path = best_trial(trials), best_file(self.store, self.study_id)
        if best is None:
            return None
        verdict = self.verdict(trials)
        known = {key: best[key] for key in ("number", "objective", "params")}
        description = {
            **self.description(),
            "trials": len(trials),
            "best": None if verdict.doubts else known,
            "recommended": {"params": self.preset_params} if verdict.doubts else None,
            "untrained": self.untrained,
            "checked": self.checked,
            "confirmation": earlier.get("confirmation"),
            "cautions": [*verdict.doubts, *verdict.cautions],
            "finished_at": datetime.now(UTC).isoformat(timespec="microseconds"),
        }
        # A command that changes nothing leaves the files and their times as they are.
        compared = ("trials", "best", "cautions")
        unchanged = all(earlier.get(key) == description[key] for key in compared)
        if not (unchanged and earlier.get("finished_at") and path.exists()):
            write_best(path, description)
            self.store.write_study(self.study_id, description)
        return path

    def result(self, **call: Any) -> StudyResult:
        """Return what the stored trials show, with what is known of this call."""
        base, trials = self.base, self.trials()
        best = best_trial(trials)
        verdict = Verdict() if best is None else self.verdict(trials)
        if best is not None:
            best = {"trial": best["number"], **{key: best[key] for key in ("objective", "params")}}
        watches = self.search.watch_labels
        return StudyResult(
            study_id=self.study_id,
            spec=base.config.spec,
            preset=base.origin.preset,
            best=None if verdict.doubts else best,
            trials=tuple(trials),
            untrained=tuple(self.untrained),
            doubts=verdict.doubts,
            cautions=verdict.cautions,
            correlation=correlate(WATCHED, watched(trials, WATCHED)) if watches else None,
            objective=self.scoring.name,
            fidelity=None if self.halving is None else self.halving.as_dict(),
            kept_errors=tuple(t["number"] for t in self.kept() if t["status"] == "error"),
            preset_params=self.preset_params,
            **call,
        )


def _key(params: Params, seed: int) -> str:
    return canonical_json([params, seed])
