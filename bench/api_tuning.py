"""Many runs at a time, as functions: studies and sweeps. The rest is in `fedbench.bench.api`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.api import as_path, open_store

if TYPE_CHECKING:
    from fedbench.bench.results.store import Store
    from fedbench.bench.tuning.progress import Event, OnProgress
    from fedbench.bench.tuning.study_result import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult


def tune(
    spec: str,
    *,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    seed: int | None = None,
    trials: int = 20,
    seeds_per_trial: int = 1,
    sampler: str = "tpe",
    space_file: Path | str | None = None,
    watch_labels: bool = False,
    stop_hopeless: bool = False,
    study_name: str | None = None,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    concurrency: int | None = None,
    gpus_per_trial: float | None = None,
    cpus_per_trial: int = 1,
    address: str | None = None,
    checkpoint_dir: Path | str | None = None,
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> StudyResult:
    """Find a method's best settings by the label-free objective.

    The same arguments give the same trials, however often the call is interrupted; more `trials`
    extend the study.

    Args:
        spec: method spec.
        preset: see `api.resolve`.
        set: see `api.resolve`; what is set is not searched.
        config_files: see `api.resolve`.
        seed: of the sampler and of the first run of every trial; None = the configuration's.
        trials: of the whole study.
        seeds_per_trial: runs per trial; its objective is their mean.
        sampler: `tpe`, `random`, `grid` or `gp`.
        space_file: takes the place of the method's search space.
        watch_labels: measure k-NN accuracy as well; the search never sees it.
        stop_hopeless: end runs whose encoder has collapsed, and give bad trials no further seeds.
        study_name: for a study of its own with the same arguments.
        store: see `api.open_store`.
        data_dir: cache of data sets; None = the default one.
        device: `auto`, `cpu` or `cuda`.
        concurrency: runs at a time, each in one process; None = what fits.
        gpus_per_trial: GPUs per run, may be a fraction; None = one where `device` calls for it.
        cpus_per_trial: processes that train the clients of one run on CPUs.
        address: of a Ray cluster; None = this machine.
        checkpoint_dir: where runs keep their checkpoints while they last; None = the store. Runs of
            a node that is lost go on elsewhere if all nodes see this folder.
        on_progress: called with every event (`fedbench.bench.tuning.progress`).
        dry_run: count and estimate only.

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A study in which no
            trial gave an objective is no exception: its `best` is None.
    """
    from fedbench.bench.tuning.study import tune as tune_spec

    return tune_spec(
        spec,
        store=open_store(store),
        preset=preset,
        files=[Path(file) for file in config_files],
        overrides=set,
        seed=seed,
        trials=trials,
        seeds_per_trial=seeds_per_trial,
        sampler=sampler,
        space_file=as_path(space_file),
        watch_labels=watch_labels,
        stop_hopeless=stop_hopeless,
        concurrency=concurrency,
        gpus_per_trial=gpus_per_trial,
        cpus_per_trial=cpus_per_trial,
        address=address,
        checkpoint_dir=as_path(checkpoint_dir),
        data_dir=as_path(data_dir),
        device=device,
        study_name=study_name,
        on_progress=on_progress,
        dry_run=dry_run,
    )


def sweep(
    grid: str | Path,
    *,
    preset: str | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    tuned: str | Path | Sequence[str | Path] | None = None,
    retry_failed: bool = False,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    concurrency: int | None = None,
    gpus_per_trial: float | None = None,
    cpus_per_trial: int = 1,
    address: str | None = None,
    checkpoint_dir: Path | str | None = None,
    track: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> SweepResult:
    """Run every cell of a grid that the store does not have.

    Args:
        grid: its name, or a YAML file.
        preset: see `api.resolve`.
        methods: method specs in place of the grid's.
        seeds: seeds in place of the grid's.
        set: see `api.resolve`.
        config_files: see `api.resolve`.
        tuned: `auto` = the latest finished study of each method in the store; or ids of studies or
            files that `tune` wrote, each for its method.
        retry_failed: run cells again whose row has the status `error`.
        store: see `api.open_store`.
        data_dir: cache of data sets; None = the default one.
        device: `auto`, `cpu` or `cuda`.
        concurrency: cells at a time, each in one process; None = what fits.
        gpus_per_trial: GPUs per cell, may be a fraction; None = one where `device` calls for it.
        cpus_per_trial: processes that train the clients of one run on CPUs.
        address: of a Ray cluster; None = this machine.
        checkpoint_dir: where runs keep their checkpoints while they last; None = the store. Runs of
            a node that is lost go on elsewhere if all nodes see this folder.
        track: viewers to hand every finished row to: `tensorboard`, `wandb`.
        on_progress: called with every event (`fedbench.bench.tuning.progress`).
        dry_run: count and estimate only.

    Raises:
        FedbenchError: for configuration, data, resource or store problems; a cell that fails is
            counted, and no exception.
    """
    from fedbench.bench.tracking import Tracking
    from fedbench.bench.tuning.progress import TrialDone
    from fedbench.bench.tuning.sweep import sweep as sweep_cells

    opened = open_store(store)
    tracking = Tracking(track, opened)

    def watch(event: Event) -> None:
        if isinstance(event, TrialDone):
            tracking(event.id)
        if on_progress is not None:
            on_progress(event)

    return sweep_cells(
        grid,
        store=opened,
        preset=preset,
        methods=methods,
        seeds=seeds,
        files=[Path(file) for file in config_files],
        overrides=set,
        tuned=tuned,
        retry_failed=retry_failed,
        concurrency=concurrency,
        gpus_per_trial=gpus_per_trial,
        cpus_per_trial=cpus_per_trial,
        address=address,
        checkpoint_dir=as_path(checkpoint_dir),
        data_dir=as_path(data_dir),
        device=device,
        on_progress=watch,
        dry_run=dry_run,
    )
