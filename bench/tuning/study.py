"""Tuning without labels: Optuna suggests, Ray Tune executes, the store remembers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.leaderboard.statistics import pearson, spearman
from fedbench.bench.results.leaderboard.studies import best_trial
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.fields import field_infos, flat_config
from fedbench.bench.runs.resolve import Resolved, resolve, user_keys
from fedbench.bench.runs.run import command_line
from fedbench.bench.system.compute import physical_cores
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.identity import canonical_json, content_id
from fedbench.bench.tuning.best import best_file, write_best
from fedbench.bench.tuning.cost import Cost, Revisions, estimate_cost
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.ray.executor import (
    choose_concurrency,
    choose_share,
    estimate_device,
    run_source,
)
from fedbench.bench.tuning.space import SearchSpace, load_space
from fedbench.bench.tuning.suggester import BATCH_SIZE, Suggester, check_sampler
from fedbench.bench.tuning.trials import (
    Plan,
    TrialSource,
    cell_name,
    failed_trials,
    finished_trials,
)

WATCHED = "knn_acc"
"""What `watch_labels` measures beside the objective."""


@dataclass(frozen=True)
class StudyResult:
    """The outcome of a study.

    Attributes:
        study_id: its name in the store.
        spec: method spec.
        preset: the preset that trials start from.
        status: `finished`, or `planned` after `dry_run`.
        best: `trial`, `objective`, `params`; None while no trial has an objective.
        trials: every trial of the store: `number status objective params seeds watched seconds
            error` and more.
        to_run: trials that were, or with `dry_run` would be, executed now.
        config_file: YAML with the best values; None without them, or before the study has finished.
        correlation: `pearson`, `spearman`, `n` of objective and k-NN accuracy, with `watch_labels`.
        kept_errors: trials that failed and are not run again, since later ones were suggested
            after them.
        seconds: wall time of this call.
        estimate: with `dry_run` only.
    """

    study_id: str
    spec: str
    preset: str
    status: str
    best: Mapping[str, Any] | None
    trials: tuple[Mapping[str, Any], ...] = field(repr=False)
    to_run: int
    config_file: Path | None
    correlation: Mapping[str, float | int | None] | None = None
    kept_errors: tuple[int, ...] = ()
    seconds: float = 0.0
    estimate: Cost | None = None

    @property
    def failed(self) -> int:
        """Trials that ended with an error; those that diverged are not among them."""
        return sum(1 for trial in self.trials if trial["status"] == "error")

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench tune --json` prints."""
        file = None if self.config_file is None else str(self.config_file)
        return {**asdict(self), "trials": [dict(t) for t in self.trials], "config_file": file}


def finish(
    store: Store,
    study_id: str,
    base: Resolved,
    meta: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
) -> Path | None:
    """Write a study's best values and its description; the file of the values, or None."""
    best = best_trial(trials)
    if best is None:
        return None
    path = best_file(store, study_id)
    earlier = store.study(study_id) or {}
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    done = {
        **meta,
        "trials": len(trials),
        "best": {key: best[key] for key in ("number", "objective", "params")},
        "finished_at": now,
    }
    unchanged = all(earlier.get(key) == done[key] for key in ("trials", "best"))
    if not (unchanged and earlier.get("finished_at") and path.exists()):
        write_best(path, base.config.spec, base.preset, study_id, best["params"])
        store.write_study(study_id, done)
    return path


def study_result(
    study: Plan,
    base: Resolved,
    status: str,
    trials: Sequence[Mapping[str, Any]],
    to_run: int,
    file: Path | None,
    began: float,
    cost: Cost | None,
) -> StudyResult:
    """The result of a call of `tune` that began at `began` (monotonic seconds)."""
    best = best_trial(trials)
    pairs = [
        (trial["objective"], trial["watched"][WATCHED])
        for trial in trials
        if trial["objective"] is not None and trial["watched"].get(WATCHED) is not None
    ]
    objectives, accuracies = [p[0] for p in pairs], [p[1] for p in pairs]
    correlation = {
        "pearson": pearson(objectives, accuracies),
        "spearman": spearman(objectives, accuracies),
        "n": len(pairs),
    }
    return StudyResult(
        study_id=study.study_id,
        spec=base.config.spec,
        preset=base.preset,
        status=status,
        best=None
        if best is None
        else {
            "trial": best["number"],
            "objective": best["objective"],
            "params": dict(best["params"]),
        },
        trials=tuple(trials),
        to_run=to_run,
        config_file=file,
        correlation=correlation if study.watched else None,
        kept_errors=failed_trials(trials, study.batch_size)[1],
        seconds=time.monotonic() - began,
        estimate=cost,
    )


_NOT_A_NAME = re.compile(r"[^a-z0-9]+")


def tune(
    spec: str,
    *,
    store: Store,
    preset: str | None = None,
    files: Sequence[Path] = (),
    overrides: Mapping[str, Any] | None = None,
    seed: int | None = None,
    trials: int = 20,
    seeds_per_trial: int = 1,
    sampler: str = "tpe",
    batch_size: int = BATCH_SIZE,
    space_file: Path | None = None,
    watch_labels: bool = False,
    stop_hopeless: bool = False,
    concurrency: int | None = None,
    gpus_per_trial: float | None = None,
    cpus_per_trial: int = 1,
    address: str | None = None,
    checkpoint_dir: Path | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    study_name: str | None = None,
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
    environ: Mapping[str, str] | None = None,
) -> StudyResult:
    """Find a method's best settings by the label-free objective.

    The same arguments give the same trials, however often the call is interrupted; more `trials`
    extend the study. A trial that failed is run again by the next call, unless later ones were
    suggested after it: another outcome would change those. A dimension that files, environment or
    overrides set is not searched.

    With `stop_hopeless` a run ends when its encoder has collapsed for three rounds in a row (its
    objective is then 0, that of a collapsed encoder), and a trial whose first seed lies below the
    median of the first seeds in earlier batches gets no further seeds. Neither looks at trials that
    happen to run at the same time, so that the outcome does not depend on timing.

    Args:
        spec: method spec.
        store: where trials are looked up and kept.
        preset: what trials start from; None = the one that a file names, else `demo`.
        files: YAML files over the preset.
        overrides: dotted names to values, as `--set` gives them.
        seed: of the sampler and of the first run of every trial; None = the configuration's.
        trials: of the whole study.
        seeds_per_trial: runs per trial, with `seed`, `seed + 1`, …; the objective is their mean.
        sampler: `tpe`, `random`, `grid` (the values that the space lists), `gp`.
        batch_size: trials that are suggested together; part of the study's identity.
        space_file: takes the place of the method's search space.
        watch_labels: measure k-NN accuracy as well; the search never sees it.
        stop_hopeless: see above.
        concurrency: runs at a time; None = physical cores, or what the GPUs or the cluster hold.
        gpus_per_trial: may be a fraction; None = one where `device` calls for it.
        cpus_per_trial: processes that train the clients of one run on CPUs.
        address: of a Ray cluster; None = this machine.
        checkpoint_dir: where runs keep their checkpoints while they last; None = the store. Runs of
            a node that is lost go on elsewhere if all nodes see this folder.
        data_dir: cache of data sets; None = the default one.
        device: `auto`, `cpu` or `cuda`.
        study_name: for a study of its own with the same arguments.
        on_progress: called with every event.
        dry_run: count and estimate only.
        environ: environment variables; None = those of the process.

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A study in which no
            trial gave an objective is no exception: its `best` is None.
        Interrupted: after a signal; the same call continues.
    """
    began = time.monotonic()
    for name, value in (("--trials", trials), ("--seeds-per-trial", seeds_per_trial)):
        if value < 1:
            raise ConfigError(f"{name}: must be at least 1 (got {value})")
    if batch_size < 1:
        raise ConfigError(f"batch size: must be at least 1 (got {batch_size})")
    check_sampler(sampler)
    need = choose_share(device, gpus_per_trial, cpus_per_trial, address)
    own = flatten(overrides or {}, keep=field_infos(spec))
    settings = {**own, **_evaluation(watch_labels)}

    def configure(params: Mapping[str, Any], run_seed: int | None) -> Resolved:
        return resolve(
            spec,
            preset=preset,
            config_files=files,
            set=settings,
            seed=run_seed,
            environ=environ,
            tuned=params,
        )

    base = configure({}, seed)
    seed = base.config.seed
    space = _free(load_space(spec, file=space_file), user_keys(spec, files, environ), settings)
    points = space.grid() if sampler == "grid" else space.first_points(base.config)
    dataset = Revisions(data_dir).dataset(base.config)
    revision = dataset.revision
    identity = {
        "benchmark": BENCHMARK_VERSION,
        "data": revision,
        "base": {k: v for k, v in flat_config(base.config).items() if k not in space.dimensions},
        "spec": base.config.spec,
        "space": {key: each.model_dump(mode="json") for key, each in space.dimensions.items()},
        "points": points,
        "sampler": sampler,
        "batch_size": batch_size,
        "seeds_per_trial": seeds_per_trial,
        "stop_hopeless": stop_hopeless,
        "name": study_name,
    }
    study_id = _study_id(study_name or base.config.spec, identity)
    total = min(trials, len(points)) if sampler == "grid" else trials
    study = Plan(
        study_id=study_id,
        seeds=tuple(range(seed, seed + seeds_per_trial)),
        batch_size=batch_size,
        stop_hopeless=stop_hopeless,
        configure=lambda params, run_seed: configure(params, run_seed).config,
        revision=revision,
        preset=base.preset,
        argv=command_line(),
        store=store,
        data_dir=None if data_dir is None else data_dir.resolve(),
        dataset=dataset.path,
        checkpoints=None if checkpoint_dir is None else checkpoint_dir.resolve(),
        workers=need.cpus,
        watched=WATCHED if watch_labels else None,
    )
    meta = {
        "study_id": study_id,
        "preset": base.preset,
        "optuna": version("optuna"),
        "seed": seed,
        "config": base.config.model_dump(mode="json"),
        **identity,
    }
    stored, standing = _look(study)
    missing = total - _below(total, standing)
    if dry_run:
        at_a_time = choose_concurrency(concurrency, need, address) or physical_cores()
        runs = _runs(base.config, missing, seeds_per_trial)
        cost = estimate_cost(
            runs, data_dir, estimate_device(need), at_a_time, keep_cells=False, workers=need.cpus
        )
        return study_result(study, base, "planned", stored, missing, None, began, cost)
    if missing:
        store.check_writable()
        with store.lock(study_id) as mine:
            if not mine:
                raise StoreError(
                    f"study {study_id} is being run by another process on this store; wait for it,"
                    " or give this one a study name of its own"
                )
            stored, standing = _look(study)  # another process may just have been at it
            missing = total - _below(total, standing)
            if len(standing) < len(stored):
                _forget_next_batch(study, stored)
            suggester = Suggester(
                study_id,
                space.distributions(),
                sampler=sampler,
                seed=seed,
                total=total,
                batch_size=batch_size,
                points=points,
                finished=finished_trials(standing),
            )
            if not store.study(study_id):
                store.write_study(study_id, {**meta, "finished_at": None})
            if missing:
                run_source(
                    TrialSource(study, suggester, total, standing),
                    need=need,
                    concurrency=concurrency,
                    address=address,
                    root=checkpoint_dir or store.root,
                    on_progress=on_progress,
                )
        stored = store.trials(study_id)
    for trial in stored:  # what a killed process may have left
        _forget_runs(study, trial["number"])
    file = finish(store, study_id, base, meta, stored)
    return study_result(study, base, "finished", stored, missing, file, began, None)


def _look(study: Plan) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The trials of the store, and those of them that need no further run."""
    stored = study.store.trials(study.study_id)
    again, _ = failed_trials(stored, study.batch_size)
    return stored, [trial for trial in stored if trial["number"] not in again]


def _below(total: int, trials: Sequence[Mapping[str, Any]]) -> int:
    return sum(1 for trial in trials if trial["number"] < total)


def _forget_next_batch(study: Plan, stored: Sequence[Mapping[str, Any]]) -> None:
    """Delete runs that a killed process began: their batch gets other parameters perhaps."""
    start = (stored[-1]["number"] // study.batch_size + 1) * study.batch_size
    for number in range(start, start + study.batch_size):
        _forget_runs(study, number)


def _forget_runs(study: Plan, number: int) -> None:
    for run_seed in study.seeds:
        study.forget(cell_name(study.study_id, number, run_seed))


def _evaluation(watch_labels: bool) -> dict[str, Any]:
    """Nothing that reads a label is computed, unless it is to be watched."""
    return {
        "evaluation.protocols": ["knn"] if watch_labels else [],
        "evaluation.untrained": False,
        "evaluation.every": 0,
    }


def _free(
    space: SearchSpace, set_elsewhere: Mapping[str, str], overrides: Mapping[str, Any]
) -> SearchSpace:
    """The space without the dimensions that the user has set."""
    fixed = {key for key in space.dimensions if key in set_elsewhere or key in overrides}
    if fixed == set(space.dimensions):
        raise ConfigError(
            f"every dimension of the search space is set ({', '.join(sorted(fixed))}): nothing is"
            " left to tune; use `fedbench run`, or unset one"
        )
    dimensions = {key: each for key, each in space.dimensions.items() if key not in fixed}
    points = tuple({k: v for k, v in point.items() if k in dimensions} for point in space.points)
    return replace(space, dimensions=dimensions, points=points)


def _study_id(name: str, identity: Mapping[str, Any]) -> str:
    slug = _NOT_A_NAME.sub("-", name.lower()).strip("-")[:60] or "study"
    return f"{slug}-{content_id(canonical_json(identity))[:10]}"


def _runs(base: RunConfig, num_trials: int, seeds_per_trial: int) -> list[RunConfig]:
    seeds = range(base.seed, base.seed + seeds_per_trial)
    return [base.model_copy(update={"seed": seed}) for _ in range(num_trials) for seed in seeds]
