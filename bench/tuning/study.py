"""Tuning without labels: Optuna suggests, Ray Tune executes, the store remembers."""

import logging
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.identity import READ_BY_SOURCE
from fedbench.bench.data.datasets import content_names
from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.experiment.arguments import Places, Settings, as_path
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import field_infos, get, show
from fedbench.bench.experiment.resolve import resolve, user_keys
from fedbench.bench.experiment.steps import without_effect
from fedbench.bench.results.leaderboard.studies import Correlation, best_trial, correlate, watched
from fedbench.bench.results.store.replicas import Difference
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.tuning.best import best_file, write_best
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.confirm import Confirmed, check_confirm, confirmation
from fedbench.bench.tuning.effect import without_effect as dead_dimensions
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.executor import Cost, Executor
from fedbench.bench.tuning.halving import RungTrials
from fedbench.bench.tuning.rungs import NONE, Halving, make_halving
from fedbench.bench.tuning.samplers import check_space
from fedbench.bench.tuning.scoring import Scoring
from fedbench.bench.tuning.search import Search
from fedbench.bench.tuning.space import SearchSpace, load_space
from fedbench.bench.tuning.trials import WATCHED, StudyPlan, Trials
from fedbench.bench.tuning.verdict import Verdict

BATCH_SIZE = 4  # trials per batch unless `--batch` says otherwise, whatever the machine
_RESULTS = (
    "status", "seeds", "params", "objective", "watched", "seed_objectives", "bytes", "spread",
    "scores",
)  # fmt: skip
"""Entries of a trial that a repetition gives again, to the last bit."""
_ROUNDS = "federation.num_rounds"
_IMAGES = {f"data.{name}" for name in ("name", "train_subset", "test_subset", *READ_BY_SOURCE)}
_log = logging.getLogger(__name__)

CONFIRM_FROM = 200
"""Distance of the first seed of a confirmation from that of the search."""


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


@grouped
def tune(
    spec: str,
    *,
    settings: Settings,
    search: Search,
    places: Places,
    cluster: Cluster,
    confirm: int = 0,
    again: bool = False,
    track: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> StudyResult:
    """Find a method's best settings by a label-free objective.

    The same arguments give the same trials, however often the call is interrupted; more `trials`
    extend the study. A trial that failed is run again by the next call, unless later ones were
    suggested after it, which another outcome would change. A dimension that `set`, files or the
    environment set is not searched.

    Args:
        spec: method spec.
        settings: sources of the configuration.
        search: the search.
        places: store, data and device.
        cluster: runs at a time, and their shares.
        confirm: then run best trial, preset and worst trial with so many seeds that the search has
            not used, at least 3, and compare them by labels; 0 = do not.
        again: repeat the trials that the store has, and compare them; then delete the studies that
            differ from this one only in code of packages which is not installed any more.
        track: viewers that get every round and row of the trials: `tensorboard`, `wandb`.
        on_progress: called with every event (`fedbench.bench.tuning.events`).
        dry_run: count and estimate only.

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A study in which no
            trial gave an objective is no exception: its `best` is None.
        Interrupted: after a signal; the same call continues.

    >>> from fedbench.bench.testing import new_folder
    >>> folder, few = new_folder(), {"data.train_subset": 80}
    >>> study = tune("simclr", set=few, store=folder, trials=4, device="cpu", dry_run=True)
    >>> study.status, study.to_run
    ('planned', 4)
    """
    began = time.monotonic()
    search.check()
    if confirm:
        evaluated = resolve(spec, data_dir=places.cache, **vars(settings))
        check_confirm(confirm, evaluated.config)
    executor = Executor.of(places, cluster, track, on_progress)
    study = _plan(spec, settings, search, places, executor)
    store, base = executor.store, study.base
    for line in (*base.dataset.cautions, *without_effect(base)):
        _log.warning("%s", line)
    stored, outdated = study.trials(), study.outdated()
    repeated = file = cost = None
    if dry_run:
        to_run = study.missing(stored) + (study.total if again and stored else 0)
        runs = [base] * to_run
        if study.halving is not None:
            runs = _of_rungs(base, study.halving) * (to_run // study.halving.size)
        runs = runs * search.seeds_per_trial  # their seeds do not change the cost
        runs += [base] * study.num_checks
        runs += [evaluated] * 3 * confirm if confirm else []
        trained = [base] * len(study.unmeasured())
        cost = executor.cost(runs, trained)
    else:
        before = store.trials(study.study_id)  # their ranks would depend on how many there are
        stored, to_run, file = _run(study)
        if again and before:
            to_run += study.total
            repeated = _repeated(study, before)
        for study_id in outdated if again else ():
            store.drop_study(study_id)
    best = best_trial(stored)
    untrained = study.untrained
    confirmed: tuple[Confirmed, ...] = ()
    if confirm and best is not None and not dry_run:
        # Far from those of a sweep: a run has one purpose, and would be missing on its board.
        first = study.base.config.seed + max(CONFIRM_FROM, search.seeds_per_trial)
        seeds = range(first, first + confirm)
        confirmed = confirmation(
            study.configure, stored, seeds, settings, places, cluster, on_progress
        )
    verdict = Verdict() if best is None else study.verdict(stored)
    return StudyResult(
        study_id=study.study_id,
        spec=base.config.spec,
        preset=base.origin.preset,
        status="planned" if dry_run else "finished",
        best=None
        if best is None or verdict.doubts
        else {"trial": best["number"], "objective": best["objective"], "params": best["params"]},
        untrained=tuple(untrained),
        doubts=verdict.doubts,
        cautions=verdict.cautions,
        objective=study.scoring.name,
        trials=tuple(stored),
        to_run=to_run,
        config_file=file,
        correlation=correlate(WATCHED, watched(stored, WATCHED)) if search.watch_labels else None,
        kept_errors=tuple(t["number"] for t in study.kept(stored) if t["status"] == "error"),
        confirmed=confirmed,
        repeated=repeated,
        outdated=outdated,
        fidelity=None if study.halving is None else study.halving.as_dict(),
        seconds=time.monotonic() - began,
        estimate=cost,
        preset_params=study.preset_params,
    )


def _plan(
    spec: str, settings: Settings, search: Search, places: Places, executor: Executor
) -> StudyPlan:
    given_fields = flatten(settings.set or {}, keep=field_infos(spec))
    space = _without(
        load_space(spec, file=as_path(search.space_file)),
        {*user_keys(spec, settings.config_files), *given_fields},
    )
    # Fields of the method may weigh losses, and those of other weights have no common scale.
    other_losses = any(name.startswith("method.") for name in space.dimensions)
    if search.objective is None and search.fidelity != NONE and other_losses:
        search = replace(search, objective=DEFAULT)
    fixed = {
        **given_fields,
        # No metric that reads a label is computed, unless it is to be watched.
        "evaluation.protocols": ["knn"] if search.watch_labels else [],
        "evaluation.transfer": [],
        "evaluation.untrained": False,
        "evaluation.every": 0,
        "evaluation.online": False,
        "evaluation.rounds": [],
        "evaluation.objectives": Scoring(search.scored_by).objectives,
    }
    given = fixed.pop("seed", None)
    content = content_names(places.cache)

    def configure(params: Mapping[str, Any], seed: int | None) -> Experiment:
        sources = replace(settings, set=fixed, seed=seed)
        given = {"content": content, "data_dir": places.cache, **vars(sources)}
        return resolve(spec, tuned=params, **given)

    base = configure({}, given if settings.seed is None else settings.seed)
    base.workers(2)  # raises: trials run in processes of their own
    scoring = Scoring(search.scored_by)
    scoring.check_noise(base.config.evaluation.objective_noise)
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
    if dead:
        space = _without(space, dead)
    check_space(search.sampler, space.distributions())
    points = space.grid() if search.sampler == "grid" else space.first_points(base.config)
    finite = len(points) if search.sampler == "grid" else space.size
    total = search.trials if finite is None else min(search.trials, finite)
    if search.sampler == "grid" and total < len(points):
        _log.warning("%d of the search space's %d points run; see --trials", total, len(points))
    elif total < search.trials:
        _log.warning("the search space holds %d settings: each is a trial, once", total)
    size = search.batch_size or (BATCH_SIZE if search.fidelity == NONE else total)
    halving = make_halving(
        search.fidelity,
        eta=search.eta,
        rungs=search.rungs,
        rounds=base.config.federation.num_rounds,
        least_rounds=base.needs.least_rounds,
        size=size,
    )
    if halving is not None:
        halving.brackets(total)  # refuses trials that do not fill the last one
    return StudyPlan(
        search=search,
        base=base,
        configure=configure,
        space=space,
        points=points,
        total=total,
        batch_size=size,
        executor=executor,
        halving=halving,
    )


def _of_rungs(base: Experiment, halving: Halving) -> list[Experiment]:
    """Return runs with the rounds that each rung of a bracket adds to its trials."""
    config, runs = base.config, list[Experiment]()
    steps = zip((0, *halving.rounds), halving.rounds, halving.counts(), strict=False)
    for before, end, trials in steps:
        federation = config.federation.model_copy(update={"num_rounds": end - before})
        shorter = replace(base, config=config.model_copy(update={"federation": federation}))
        runs += [shorter.on(base.dataset)] * trials
    return runs


def _run(study: StudyPlan) -> tuple[list[dict[str, Any]], int, Path | None]:
    """Run the missing trials; return all trials, the number of new ones, and the best file."""
    store, study_id = study.store, study.study_id
    stored = study.trials()
    to_run = study.missing(stored)
    if to_run or study.unmeasured() or study.unchecked(stored):
        store.check_writable()
        with store.lock(study_id) as locked:
            if not locked:
                raise StoreError(
                    f"study {study_id} is being run by another process on this store; wait for it,"
                    " or give this one another study name"
                )
            stored = study.trials()  # another process may have run some of them
            to_run, kept = study.missing(stored), study.kept(stored)
            study.forget_runs(trial["number"] for trial in stored)  # left by a killed process
            if study.barrier is not None and len(kept) < len(stored):
                # A killed process may have begun the next batch, which may get other parameters.
                batch = stored[-1]["number"] // study.batch_size + 1
                start, rungs = batch * study.batch_size, f"trials/{study_id}/bracket-{batch:04d}"
                study.forget_runs(range(start, start + study.batch_size))
                shutil.rmtree(store.root / rungs, ignore_errors=True)
            if not store.study(study_id):
                store.write_study(study_id, {**study.description(), "finished_at": None})
            kind = Trials if study.halving is None else RungTrials
            try:
                study.executor.run(kind(study, kept))
            finally:
                study.forget(study.run_name("untrained", s) for s in study.untrained_seeds)
        stored = study.trials()
    study.forget_runs(trial["number"] for trial in stored)
    return stored, to_run, _write_best(study, stored)


def _repeated(study: StudyPlan, before: Sequence[Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Repeat a study in a temporary store; return how its trials differ, but for failed ones."""
    with temporary_folder() as folder:
        other = Store(folder)
        _run(replace(study, executor=study.executor.into(other)))
        now = {trial["number"]: trial for trial in other.trials(study.study_id)}
    return tuple(
        Difference(f"trial {trial['number']} {name}", trial[name], again[name])
        for trial in before
        if trial["status"] != "error" and (again := now.get(trial["number"])) is not None
        for name in _RESULTS
        if name in trial and name in again and trial[name] != again[name]
    )


def _write_best(study: StudyPlan, trials: Sequence[Mapping[str, Any]]) -> Path | None:
    """Write a study's best values and its description; return the file of the values, or None."""
    best = best_trial(trials)
    if best is None:
        return None
    store, study_id, path = study.store, study.study_id, best_file(study.store, study.study_id)
    earlier, untrained = store.study(study_id) or {}, study.untrained
    verdict = study.verdict(trials)
    known = {key: best[key] for key in ("number", "objective", "params")}
    preset = {"params": study.preset_params} if verdict.doubts else None
    description = {
        **study.description(),
        "trials": len(trials),
        "best": None if verdict.doubts else known,
        "recommended": preset,
        "untrained": untrained,
        "checked": study.checked,
        "cautions": [*verdict.doubts, *verdict.cautions],
        "finished_at": datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    unchanged = all(earlier.get(key) == description[key] for key in ("trials", "best", "cautions"))
    if not (unchanged and earlier.get("finished_at") and path.exists()):
        write_best(path, description)
        store.write_study(study_id, description)
    return path


def _without(space: SearchSpace, names: Collection[str]) -> SearchSpace:
    """Return the space without the dimensions that the user has set."""
    dimensions = {key: dim for key, dim in space.dimensions.items() if key not in names}
    if not dimensions:
        raise ConfigError(
            f"every dimension of the search space is set ({', '.join(sorted(space.dimensions))}):"
            " nothing is left to tune; use `fedbench run`, or unset one"
        )
    points = tuple({k: v for k, v in point.items() if k in dimensions} for point in space.points)
    return replace(space, dimensions=dimensions, points=points)
