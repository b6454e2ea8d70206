"""Tuning without labels: Optuna suggests, Ray Tune executes, the store remembers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig, canonical_json, content_id
from fedbench.bench.devices import physical_cores
from fedbench.bench.dotted import flatten
from fedbench.bench.errors import ConfigError, StoreError
from fedbench.bench.fields import field_infos, flat_config
from fedbench.bench.resolve import Resolved, resolve, user_keys
from fedbench.bench.results.store import Store
from fedbench.bench.runs import command_line
from fedbench.bench.tuning.cost import Revisions, estimate_cost
from fedbench.bench.tuning.executor import (
    choose_concurrency,
    choose_share,
    device_at_hand,
    run_source,
)
from fedbench.bench.tuning.progress import OnProgress
from fedbench.bench.tuning.searcher import BATCH_SIZE, Suggester, check_sampler
from fedbench.bench.tuning.space import SearchSpace, load_space
from fedbench.bench.tuning.study_result import WATCHED, StudyResult, finish, study_result
from fedbench.bench.tuning.trials import (
    Plan,
    TrialSource,
    cell_name,
    failed_trials,
    finished_trials,
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
            files=files,
            overrides=settings,
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
            runs, data_dir, device_at_hand(need), at_a_time, keep_cells=False, workers=need.cpus
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
