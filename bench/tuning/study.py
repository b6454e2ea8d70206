"""Tuning without labels: Optuna suggests, Ray Tune executes, the store remembers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.datasets import Contents
from fedbench.bench.evaluation.objectives.of_clients import DEFAULT
from fedbench.bench.method import registry
from fedbench.bench.results.leaderboard.statistics import pearson, spearman
from fedbench.bench.results.leaderboard.studies import best_trial
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.runs.arguments import Places, Settings, as_path
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.runs.fields import field_infos
from fedbench.bench.runs.resolve import Resolved, resolve, user_keys
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.notebooks import Shown
from fedbench.bench.tuning.best import best_file, write_best
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.cost import Cost
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.halving import RungSource, ended_brackets
from fedbench.bench.tuning.ray.executor import choose_concurrency, cluster_slots, run_source
from fedbench.bench.tuning.ray.nodes import Share
from fedbench.bench.tuning.rungs import NONE, Halving, make_halving
from fedbench.bench.tuning.scoring import Scoring
from fedbench.bench.tuning.space import SearchSpace, load_space
from fedbench.bench.tuning.suggester import (
    BATCH_SIZE,
    FINISHED_ONLY,
    Suggester,
    check_sampler,
)
from fedbench.bench.tuning.trials import StudyPlan, TrialSource, told_trials
from fedbench.bench.tuning.untrained import cautions, without_training

WATCHED = "knn_acc"
"""The metric that `watch_labels` measures beside the objective."""

_MAX_RUNS = 100_000
_LEAST_BATCHES = 4
_ROUNDS = "federation.num_rounds"


@dataclass(frozen=True, repr=False)
class StudyResult(Shown):
    """The outcome of a study.

    Attributes:
        study_id: its name in the store.
        spec: method spec.
        preset: the preset that trials start from.
        status: `finished`, or `planned` after `dry_run`.
        best: `trial`, `objective`, `params`; None while no trial has an objective.
        trials: every trial of the store: `number status objective params seeds watched seconds
            error` and more.
        to_run: trials that were, or with `dry_run` would be, executed by this call.
        config_file: YAML with the best values; None without them, or before the study has finished.
        untrained: figures of encoders without training, one per `seed`.
        cautions: reasons not to trust the best values.
        objective: name of the score that was maximised.
        correlation: `pearson`, `spearman`, `n` of objective and k-NN accuracy, with `watch_labels`.
        fidelity: `name`, `eta`, `rounds` of its rungs and `sizes` of its brackets; None if every
            trial is run to its end.
        kept_errors: trials that failed and are not run again, since later ones were suggested
            after them.
        seconds: wall time of this call.
        estimate: cost of `to_run`, with `dry_run` only.
    """

    study_id: str
    spec: str
    preset: str
    status: str
    best: Mapping[str, Any] | None
    trials: tuple[Mapping[str, Any], ...] = field(repr=False)
    to_run: int
    config_file: Path | None
    untrained: tuple[Mapping[str, float], ...] = field(default=(), repr=False)
    cautions: tuple[str, ...] = ()
    correlation: Mapping[str, float | int | None] | None = None
    objective: str = DEFAULT
    fidelity: Mapping[str, Any] | None = None
    kept_errors: tuple[int, ...] = ()
    seconds: float = 0.0
    estimate: Cost | None = None

    def __repr__(self) -> str:
        best = (
            "" if self.best is None else f", best trial {self.best['trial']}: {self.best['params']}"
        )
        return f"<study {self.study_id}: {len(self.trials)} trials, {self.status}{best}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return the trials."""
        keys = ("number", "objective", "params", "watched", "status", "seconds", "error")
        return keys, [[trial[key] for key in keys] for trial in self.trials]

    @property
    def failed(self) -> int:
        """Number of trials that ended with an error; diverged ones do not count."""
        return sum(1 for trial in self.trials if trial["status"] == "error")

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `fedbench tune --json`."""
        file = None if self.config_file is None else str(self.config_file)
        return {**asdict(self), "trials": [dict(t) for t in self.trials], "config_file": file}


@grouped
def tune(
    spec: str,
    *,
    settings: Settings,
    trials: int = 20,
    seeds_per_trial: int = 1,
    sampler: str = "tpe",
    batch_size: int | None = None,
    space_file: Path | str | None = None,
    watch_labels: bool = False,
    stop_hopeless: bool = False,
    study_name: str | None = None,
    objective: str = DEFAULT,
    fidelity: str = NONE,
    eta: int | None = None,
    rungs: int | None = None,
    places: Places,
    cluster: Cluster,
    track: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> StudyResult:
    """Find a method's best settings by the label-free objective.

    The same arguments give the same trials, however often the call is interrupted; more `trials`
    extend the study. A trial that failed is run again by the next call, unless later ones were
    suggested after it, which another outcome would change. A dimension that `set`, files or the
    environment set is not searched.

    With `stop_hopeless` a run ends when its encoder has collapsed for three rounds in a row (its
    objective is then 0, that of a collapsed encoder), and a trial whose first seed lies below the
    median of the first seeds in earlier batches gets no further seeds. Neither rule looks at trials
    that happen to run at the same time, so the outcome does not depend on timing.

    Args:
        spec: method spec.
        settings: sources of the configuration.
        trials: number of trials of the whole study.
        seeds_per_trial: runs per trial, with `seed`, `seed + 1`, …; the objective is their mean.
        sampler: `tpe`, `random`, `sobol` (points that fill the space evenly), `grid` (the values
            that the space lists), `gp` or `cmaes` (ranges of numbers only).
        batch_size: trials that are suggested together, before any of their results is known; part
            of the study's identity. None = that of a stored study with the same arguments, else as
            many as fill the GPUs, the cluster or `concurrency`, at least 4 and at most a quarter of
            the trials; on CPUs 4, so that machines of different size make the same study.
            `random`, `sobol` and `grid` need no results: their trials do not wait for each other.
        space_file: search space in place of the method's.
        watch_labels: measure k-NN accuracy as well; the search never sees it.
        stop_hopeless: end collapsed runs and bad trials early, as described above.
        study_name: name of a separate study with the same arguments.
        objective: score that is maximised, as `fedbench objectives` lists them; with `+gate` trials
            that contracted, became narrow or learnt nothing beside untrained encoders have none.
        fidelity: `none` runs every trial to its end; `halving` compares all trials of a bracket
            (`batch_size`; by default all trials of the study) after few rounds and continues the
            best, and so on.
        eta: one trial in so many goes on after a rung; None = 4.
        rungs: rungs of a bracket, the last at the configured rounds; None = 3, or as many as
            rounds and trials suffice for.
        places: store, data and device.
        cluster: runs at a time, and their shares.
        track: viewers that get every round and row of the trials: `tensorboard`, `wandb`.
        on_progress: called with every event (`fedbench.bench.tuning.events`).
        dry_run: count and estimate only.

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A study in which no
            trial gave an objective is no exception: its `best` is None.
        Interrupted: after a signal; the same call continues.
    """
    began = time.monotonic()
    for name, value in (
        ("--trials", trials),
        ("--seeds-per-trial", seeds_per_trial),
        ("--batch", batch_size),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: must be at least 1 (got {value})")
    if trials * seeds_per_trial > _MAX_RUNS:
        raise ConfigError(
            f"--trials {trials} with --seeds-per-trial {seeds_per_trial}: a study has at most"
            f" {_MAX_RUNS:,} runs; give a smaller number"
        )
    check_sampler(sampler)
    if fidelity != NONE and sampler in FINISHED_ONLY:
        raise ConfigError(
            f"--sampler {sampler}: learns from trials that were run to their end, and --fidelity"
            f" {fidelity} runs few of them; use --sampler tpe, random or sobol"
        )
    store = places.open_store()
    tracking = Tracking(track, store)
    scoring = Scoring(objective)
    if fidelity != NONE and stop_hopeless:
        raise ConfigError(
            f"--stop-hopeless: --fidelity {fidelity} ends trials by a rule of its own; leave one"
            " of them out"
        )
    share = cluster.share(places.device)
    fixed = {
        **flatten(settings.set or {}, keep=field_infos(spec)),
        # No metric that reads a label is computed, unless it is to be watched.
        "evaluation.protocols": ["knn"] if watch_labels else [],
        "evaluation.untrained": False,
        "evaluation.every": 0,
        "evaluation.rounds": [],
    }

    content = Contents(places.cache, build=True)

    def configure(params: Mapping[str, Any], seed: int | None) -> Resolved:
        sources = replace(settings, set=fixed, seed=seed)
        return resolve(spec, tuned=params, content=content, **vars(sources))

    base = configure({}, settings.seed)
    scoring.check_noise(base.config.evaluation.objective_noise)
    space = _without(
        load_space(spec, file=as_path(space_file)),
        {*user_keys(spec, settings.config_files), *fixed},
    )
    if fidelity != NONE and _ROUNDS in space.dimensions:
        raise ConfigError(
            f"--fidelity {fidelity}: the search space varies {_ROUNDS}, which decides how far a"
            f" trial is run; set it, such as --set {_ROUNDS}={base.config.federation.num_rounds}"
        )
    points = space.grid() if sampler == "grid" else space.first_points(base.config)
    total = min(trials, len(points)) if sampler == "grid" else trials
    needs = registry.create(base.config.spec, base.config.method).needs()

    def at(size: int) -> Halving | None:
        return make_halving(
            fidelity,
            eta=eta,
            rungs=rungs,
            rounds=base.config.federation.num_rounds,
            least_rounds=needs.least_rounds,
            size=size,
        )

    halving = at(batch_size or total)
    study = StudyPlan(
        name=study_name,
        base=base,
        configure=configure,
        space=space,
        points=points,
        sampler=sampler,
        total=total,
        seeds_per_trial=seeds_per_trial,
        batch_size=batch_size or (BATCH_SIZE if halving is None else total),
        stop_hopeless=stop_hopeless,
        watched=WATCHED if watch_labels else None,
        store=store,
        dataset=open_dataset(base.config, places.cache),
        checkpoints=cluster.checkpoints,
        workers=share.cpus,
        lanes=cluster.lanes,
        scoring=scoring,
        halving=halving,
    )
    if batch_size is None and halving is not None:  # more trials extend a stored study
        least = halving.eta ** ((rungs or 2) - 1)
        parts = [size for size in range(total, least - 1, -1) if total % size == 0]
        studies = [replace(study, batch_size=size, halving=at(size)) for size in parts]
        study = max(studies, key=lambda one: len(one.store.trials(one.study_id)))
    elif batch_size is None:
        study = _with_batch(study, cluster, share, may_ask=not dry_run)
    brackets = [] if study.halving is None else study.halving.brackets(total)
    if dry_run:
        stored, complete = study.trials()
        to_run, file = study.missing(complete), None
        # Their seeds do not change the cost.
        runs = [base.config] * to_run * seeds_per_trial
        if study.halving is not None:
            recorded = {trial["number"] for trial in complete}
            left = sum(not recorded.issuperset(bracket) for bracket in brackets)
            runs = _of_rungs(base.config, study.halving) * left * seeds_per_trial
        measured = study.unmeasured(study.store.study(study.study_id))
        runs += [without_training(base.config)] * len(measured)
        cost = cluster.estimate(runs, share, places, keep_cells=study.halving is not None)
    else:
        stored, to_run, file = _run(study, cluster, share, tracking, on_progress)
        cost = None
    best, untrained = best_trial(stored), _untrained(study.store.study(study.study_id) or {})
    return StudyResult(
        study_id=study.study_id,
        spec=base.config.spec,
        preset=base.preset,
        status="planned" if dry_run else "finished",
        best=None
        if best is None
        else {
            "trial": best["number"],
            "objective": best["objective"],
            "params": dict(best["params"]),
        },
        untrained=tuple(_records(untrained)),
        cautions=() if best is None else cautions(best, list(untrained.values()), scoring),
        objective=scoring.name,
        trials=tuple(stored),
        to_run=to_run,
        config_file=file,
        correlation=_correlation(stored) if watch_labels else None,
        kept_errors=study.failed(stored)[1],
        fidelity=None if study.halving is None else study.halving.as_dict(),
        seconds=time.monotonic() - began,
        estimate=cost,
    )


def _of_rungs(config: RunConfig, halving: Halving) -> list[RunConfig]:
    """Return configurations with the rounds that each rung of a bracket adds to its trials."""
    runs = []
    steps = zip((0, *halving.rounds), halving.rounds, halving.counts(), strict=False)
    for before, end, trials in steps:
        federation = config.federation.model_copy(update={"num_rounds": end - before})
        runs += [config.model_copy(update={"federation": federation})] * trials
    return runs


def _with_batch(study: StudyPlan, cluster: Cluster, share: Share, *, may_ask: bool) -> StudyPlan:
    """Return the study with the batch size of its stored trials, or of the slots.

    Args:
        study: with the least batch size.
        cluster: runs at a time.
        share: of a run.
        may_ask: join a cluster to count its slots.
    """
    stored = study.stored_batch_size()
    if stored is not None:
        return replace(study, batch_size=stored)
    if study.barrier is None:
        return study
    if cluster.concurrency is None and cluster.address is not None and may_ask:
        slots = cluster_slots(share, cluster.address)
    elif cluster.concurrency is not None or share.gpus:
        slots = choose_concurrency(cluster.concurrency, share, cluster.address) or 1
    else:
        slots = 1
    # A search that suggests everything at once learns nothing.
    wanted = min(ceil(slots / study.seeds_per_trial), study.total // _LEAST_BATCHES)
    return replace(study, batch_size=max(BATCH_SIZE, wanted))


def _run(
    study: StudyPlan,
    cluster: Cluster,
    share: Share,
    tracking: Tracking,
    on_progress: OnProgress | None,
) -> tuple[list[dict[str, Any]], int, Path | None]:
    """Run the missing trials; return all trials, the number of new ones, and the best values' file.

    Raises:
        StoreError: if another process runs this study, or the store cannot be written.
    """
    store, study_id = study.store, study.study_id
    stored, complete = study.trials()
    to_run = study.missing(complete)
    if to_run or study.unmeasured(store.study(study_id)):
        store.check_writable()
        with store.lock(study_id) as locked:
            if not locked:
                raise StoreError(
                    f"study {study_id} is being run by another process on this store; wait for it,"
                    " or give this one another study name"
                )
            stored, complete = study.trials()  # another process may have run some of them
            to_run = study.missing(complete)
            for trial in stored:  # a killed process may have left runs of them
                study.forget_runs(trial["number"])
            if study.halving is not None:  # the others are read again, rung by rung
                brackets = study.halving.brackets(study.total)
                complete = [dict(record) for record in ended_brackets(brackets, complete)]
            elif len(complete) < len(stored):
                # A killed process may have begun the next batch, which may get other parameters.
                start = (stored[-1]["number"] // study.batch_size + 1) * study.batch_size
                for number in range(start, start + study.batch_size):
                    study.forget_runs(number)
            suggester = Suggester(
                study_id,
                study.space.distributions(),
                sampler=study.sampler,
                seed=study.base.config.seed,
                total=study.total,
                batch_size=study.barrier,
                points=study.points,
                told=told_trials(complete),
            )
            meta = store.study(study_id)
            if not meta:
                meta = {**study.description(), "finished_at": None}
                store.write_study(study_id, meta)

            def record(untrained: Mapping[int, Mapping[str, float]]) -> None:
                store.write_study(study_id, {**meta, "untrained": _records(untrained)})

            source = TrialSource if study.halving is None else RungSource
            if to_run or study.unmeasured(meta):
                try:
                    run_source(
                        source(study, suggester, complete, _untrained(meta), record),
                        need=share,
                        concurrency=cluster.concurrency,
                        address=cluster.address,
                        wait_for_nodes=cluster.wait_for_nodes,
                        root=cluster.checkpoints or store.root,
                        on_progress=on_progress,
                        tracking=tracking,
                    )
                finally:
                    study.forget_untrained()
        stored = store.trials(study_id)
    for trial in stored:
        study.forget_runs(trial["number"])
    return stored, to_run, _write_best(study, stored)


def _write_best(study: StudyPlan, trials: Sequence[Mapping[str, Any]]) -> Path | None:
    """Write a study's best values and its description; return the file of the values, or None."""
    best = best_trial(trials)
    if best is None:
        return None
    store, study_id, path = study.store, study.study_id, best_file(study.store, study.study_id)
    earlier = store.study(study_id) or {}
    untrained = _untrained(earlier)
    texts = cautions(best, list(untrained.values()), study.scoring)
    description = {
        **study.description(),
        "trials": len(trials),
        "best": {key: best[key] for key in ("number", "objective", "params")},
        "untrained": _records(untrained),
        "cautions": list(texts),
        "finished_at": datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    unchanged = all(earlier.get(key) == description[key] for key in ("trials", "best", "cautions"))
    if not (unchanged and earlier.get("finished_at") and path.exists()):
        base = study.base
        write_best(path, base.config.spec, base.preset, study_id, best["params"], texts)
        store.write_study(study_id, description)
    return path


def _untrained(meta: Mapping[str, Any]) -> dict[int, Mapping[str, float]]:
    """Return the figures of untrained encoders by seed, from the description of a study."""
    return {
        int(record["seed"]): {name: value for name, value in record.items() if name != "seed"}
        for record in meta.get("untrained", ())
    }


def _records(untrained: Mapping[int, Mapping[str, float]]) -> list[dict[str, float]]:
    return [{"seed": seed, **untrained[seed]} for seed in sorted(untrained)]


def _correlation(trials: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Correlate the objective with what was watched, over the trials that have both."""
    pairs = [
        (trial["objective"], trial["watched"][WATCHED])
        for trial in trials
        if trial["objective"] is not None and trial["watched"].get(WATCHED) is not None
    ]
    columns = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {"pearson": pearson(*columns), "spearman": spearman(*columns), "n": len(pairs)}


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
