"""What the commands do, as functions: they return records, raise `FedbenchError`s, print nothing.

Arguments have the same names and meanings throughout: `preset`, `set` (dotted names to values, like
`--set`), `config_files` (YAML), `seed`, `store`, `data_dir`, `workers`, `device`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.data.partition.deal import Deal
from fedbench.bench.results.leaderboard.formats import Ranking
from fedbench.bench.results.report.page import Report
from fedbench.bench.runs.run import RunPlan, RunResult
from fedbench.bench.system.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.sources.decode import Progress
    from fedbench.bench.results.leaderboard.studies import Studies
    from fedbench.bench.results.store.merge import Merged
    from fedbench.bench.results.store.store import Store
    from fedbench.bench.runs.execute import OnResume, OnRound, OnStart
    from fedbench.bench.runs.export import Exported
    from fedbench.bench.runs.figures import Figures
    from fedbench.bench.runs.reproduce import Reproduction
    from fedbench.bench.runs.resolve import Resolved
    from fedbench.bench.tuning.events import Event, OnProgress
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult


STORE_VARIABLE = "FEDBENCH_STORE"
CUSTOM = "custom"
"""Recorded as the preset of a `RunConfig` that was made by hand."""


def open_store(store: Store | Path | str | None = None) -> Store:
    """A store; None = `$FEDBENCH_STORE`, else `./leaderboards`."""
    from fedbench.bench.results.store.store import Store

    if isinstance(store, Store):
        return store
    return Store(store or os.environ.get(STORE_VARIABLE) or "leaderboards")


def resolve(
    spec: str,
    *,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    seed: int | None = None,
) -> Resolved:
    """The configuration of a run, and where each of its values comes from.

    Args:
        spec: method spec, `name[+addon…]`.
        preset: None = the one that a configuration file names, else `demo`.
        set: dotted names to values, over everything else.
        config_files: YAML files, over the preset.
        seed: the run's seed.

    Raises:
        ConfigError: for a name or a value that does not fit.
    """
    from fedbench.bench.runs.resolve import resolve as resolve_layers

    return resolve_layers(spec, preset=preset, config_files=config_files, set=set, seed=seed)


def run(
    spec: str | RunConfig,
    *,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    seed: int | None = None,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
    track: Sequence[str] = (),
    on_start: OnStart | None = None,
    on_resume: OnResume | None = None,
    on_round: OnRound | None = None,
) -> RunResult:
    """One federated run and its evaluation; read back if the store has it, resumed if it began.

    Args:
        spec: method spec, or a complete configuration (then `set`, `config_files` and `seed` are
            refused, and `preset` is only its label).
        preset: see `resolve`.
        set: see `resolve`.
        config_files: see `resolve`.
        seed: see `resolve`.
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = physical cores, or one per GPU.
        device: `auto`, `cpu` or `cuda`.
        on_start: called before a run is executed with its configuration and each worker's device.
        track: viewers to hand the row to: `tensorboard`, `wandb`.
        on_resume: called with the rounds done and all rounds, if an earlier attempt is continued.
        on_round: called after every round with its record and the number of rounds.

    Raises:
        FedbenchError: for configuration, data, device or store problems.
    """
    from fedbench.bench.results.trackers import Tracking
    from fedbench.bench.runs import run as runs
    from fedbench.bench.runs.execute import Origin

    config, origin = _configuration(spec, preset, set, config_files, seed)
    opened = open_store(store)
    tracking = Tracking(track, opened)
    result = runs.run(
        config,
        store=opened,
        origin=Origin(preset=origin[0], study_id=origin[1]),
        data_dir=as_path(data_dir),
        workers=workers,
        device=device,
        on_start=on_start,
        on_resume=on_resume,
        on_round=on_round,
    )
    tracking(result.run_id)
    return result


def plan_run(
    spec: str | RunConfig,
    *,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    seed: int | None = None,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
) -> RunPlan:
    """What `run` would do with these arguments, with an estimate from measured parts of it.

    Raises:
        FedbenchError: for configuration, data, device or store problems.
    """
    from fedbench.bench.runs.estimate import Estimator
    from fedbench.bench.runs.execute import open_dataset
    from fedbench.bench.system.compute import choose_devices

    config, (label, _) = _configuration(spec, preset, set, config_files, seed)
    opened, folder = open_store(store), as_path(data_dir)
    devices = choose_devices(device, workers)
    identity = row_id(config, open_dataset(config, folder).revision)
    return RunPlan(
        run_id=identity,
        stored=opened.finished(identity) is not None,
        preset=label,
        workers=len(devices),
        device=devices[0],
        estimate=Estimator(folder, device, workers)(config),
        config=config,
        store=opened.root,
    )


def partition(
    spec: str | None = None,
    *,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    seed: int | None = None,
    data_dir: Path | str | None = None,
    labels: str | None = None,
) -> Deal:
    """How a configuration deals its data set to clients.

    Args:
        spec: method spec; matters only where a preset's data depend on the method.
        preset: see `resolve`.
        set: see `resolve`.
        config_files: see `resolve`.
        seed: see `resolve`.
        data_dir: cache of data sets; None = the default one.
        labels: `balanced:N:C` deals N examples in C equal classes instead of the data set's
            labels, so that its images need not be there (subsets are ignored then).

    Raises:
        FedbenchError: for configuration or data problems.
    """
    from fedbench.bench.data.partition.deal import balanced_labels, deal, summary
    from fedbench.bench.runs.execute import open_dataset

    default = str(RunConfig.model_fields["spec"].default)
    config = resolve(
        spec or default, preset=preset, set=set, config_files=config_files, seed=seed
    ).config
    if labels is None:
        dataset = open_dataset(config, as_path(data_dir))
        classes, num_classes = dataset.train_labels, dataset.num_classes
    else:
        classes, num_classes = balanced_labels(labels)
    dealt = deal(classes, num_classes, config.data, config.seed)
    return Deal(config.data.name, labels, dealt, summary(dealt, classes))


def prepare_data(
    name: str, *, data_dir: Path | str | None = None, on_progress: Progress | None = None
) -> PreparedDataset:
    """Download or convert a data set into the cache, and check every byte of it.

    Raises:
        UnknownNameError: no such data set.
        DataError: no network, a torn or missing source, or a folder that cannot be written.
    """
    from fedbench.bench.data.datasets import prepare

    return prepare(name, as_path(data_dir), progress=on_progress)


def _configuration(
    spec: str | RunConfig,
    preset: str | None,
    values: Mapping[str, Any] | None,
    files: Sequence[Path | str],
    seed: int | None,
) -> tuple[RunConfig, tuple[str, str | None]]:
    """The configuration, and the preset and the study it comes from."""
    if isinstance(spec, str):
        found = resolve(spec, preset=preset, set=values, config_files=files, seed=seed)
        return found.config, (found.preset, found.study)
    if values or files or seed is not None:
        raise ConfigError(
            "a RunConfig is complete: change it instead of passing set, config_files or seed"
        )
    from fedbench.bench.runs.run import canonical

    return canonical(spec), (preset or CUSTOM, None)


def as_path(path: Path | str | None) -> Path | None:
    """A path that may be given as text, with `~` for the home folder."""
    return None if path is None else Path(path).expanduser()


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
        on_progress: called with every event (`fedbench.bench.tuning.events`).
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
        on_progress: called with every event (`fedbench.bench.tuning.events`).
        dry_run: count and estimate only.

    Raises:
        FedbenchError: for configuration, data, resource or store problems; a cell that fails is
            counted, and no exception.
    """
    from fedbench.bench.results.trackers import Tracking
    from fedbench.bench.tuning.events import CellDone
    from fedbench.bench.tuning.sweep import sweep as sweep_cells

    opened = open_store(store)
    tracking = Tracking(track, opened)

    def watch(event: Event) -> None:
        if isinstance(event, CellDone):
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


def leaderboard(
    store: Store | Path | str | None = None,
    *,
    grid: str | None = None,
    dataset: str | None = None,
    metric: str = "linear_acc",
    published: bool = True,
    reach: float | None = None,
) -> Ranking:
    """Rank what a store holds.

    Args:
        store: see `open_store`; one without runs gives an empty ranking, which says why.
        grid: only cells of this grid (a name, or a YAML file).
        dataset: only runs on this data set.
        metric: column or further metric to rank by; `knn`, `linear`, `linear-paper` are understood.
        published: look up the published numbers.
        reach: k-NN accuracy in [0, 1]; adds the rounds and bytes to get there, and the mean over
            the rounds. Says most with `evaluation.every`.

    Raises:
        ConfigError: for a `reach` that is no fraction.
        UnknownNameError: for an unknown grid, metric or data set.
        StoreError: for a store that is not there or cannot be read.
    """
    from fedbench.bench.results.leaderboard.curves import load_curves
    from fedbench.bench.results.leaderboard.leaderboard import leaderboard as rank
    from fedbench.bench.tuning.best import spent
    from fedbench.bench.tuning.grid import cells_of

    if reach is not None and not 0 <= reach <= 1:
        raise ConfigError(f"--reach must be a fraction in [0, 1], such as 0.6 (got {reach:g})")
    opened = open_store(store)
    rows = opened.rows()
    chosen = None if grid is None else cells_of(rows, grid)
    curves, unreadable = (None, []) if reach is None else load_curves(opened, rows)
    board = rank(
        rows,
        row_ids=chosen,
        dataset=dataset,
        metric=metric,
        published=published,
        studies=spent(opened, {row.study_id for row in rows if row.study_id}),
        curves=curves,
        reach=reach,
    )
    problems = (*opened.problems(), *unreadable)
    if board.groups:
        return Ranking(board, problems)
    if not opened.root.exists():
        raise StoreError(
            f"there is no store at {str(opened.root)!r}; name another with --store, or fill this"
            f" one: `fedbench run simclr --store {shlex.quote(str(opened.root))}`"
        )
    from fedbench.bench.results.leaderboard.leaderboard import why_empty

    return Ranking(board, problems, why_empty(rows, dataset=dataset, grid=grid))


def report(
    file: Path | str,
    store: Store | Path | str | None = None,
    *,
    grid: str | None = None,
    dataset: str | None = None,
) -> Report:
    """Write one self-contained HTML page about a store: tables, charts, studies, published numbers.

    Args:
        file: ends in .html; replaced if it exists.
        store: see `open_store`.
        grid: only cells of this grid (a name, or a YAML file).
        dataset: only runs on this data set.

    Raises:
        ConfigError: for a file of another ending, or one that cannot be written.
        UnknownNameError: for an unknown grid.
        StoreError: for a store that is not there or cannot be read.
    """
    from fedbench.bench.results.report.page import write_report
    from fedbench.bench.tuning.best import spent
    from fedbench.bench.tuning.grid import cells_of

    opened = open_store(store).require()
    rows = opened.rows()
    return write_report(
        Path(file).expanduser(),
        opened,
        grid=grid,
        row_ids=None if grid is None else cells_of(rows, grid),
        dataset=dataset,
        spent=spent(opened, {row.study_id for row in rows if row.study_id}),
    )


def studies(store: Store | Path | str | None = None) -> Studies:
    """The tuning studies of a store: trials, cost, and how well the objective foretold.

    Args:
        store: see `open_store`.

    Returns:
        The studies that can be read; `problems` names the files that cannot.

    Raises:
        StoreError: for a store that is not there or cannot be read.
    """
    from fedbench.bench.results.leaderboard.studies import Studies, study_views

    opened = open_store(store).require()
    return Studies(study_views(opened), opened.problems())


def merge(
    sources: Sequence[Store | Path | str],
    store: Store | Path | str | None = None,
    *,
    dry_run: bool = False,
) -> Merged:
    """Bring the rows, curves, checkpoints and studies of other stores into one.

    Args:
        sources: stores, which stay as they are.
        store: see `open_store`; gets what it does not have.
        dry_run: compare and count only.

    Raises:
        StoreError: for a source that is not there, or stores that contradict each other; then
            nothing is written.
    """
    from fedbench.bench.results.store.merge import merge as merge_stores

    return merge_stores(open_store(store), list(map(open_store, sources)), dry_run=dry_run)


def reproduce(
    run_id: str,
    store: Store | Path | str | None = None,
    *,
    data_name: str | None = None,
    keep: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
) -> Reproduction:
    """Run a stored row again from itself, in another store, and compare every bit of it.

    Args:
        run_id: its row id, or an unambiguous beginning of it, at least 4 characters.
        store: see `open_store`; nothing is written there.
        data_name: where the data lies, if not where it lay when the row was made.
        keep: store for the new run; None = a temporary one.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = physical cores, or one per GPU.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round with its record and the number of rounds.

    Raises:
        StoreError: no such row, or one that cannot be reproduced here.
        FedbenchError: for data or device problems.
    """
    from fedbench.bench.runs.reproduce import reproduce as run_again

    return run_again(
        run_id,
        store,
        data_name=data_name,
        keep=keep,
        data_dir=data_dir,
        workers=workers,
        device=device,
        on_round=on_round,
    )


def export_encoder(
    run_id: str,
    file: Path | str,
    *,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Exported:
    """Write a run's encoder as `.safetensors`, with a JSON card beside it.

    Raises:
        StoreError: if the store has no such run, or no checkpoint of it.
        DataError: for a file name of another ending.
    """
    from fedbench.bench.runs.export import export_encoder as export

    return export(run_id, file, store=store, data_dir=data_dir)


def figures(
    run_ids: Sequence[str],
    folder: Path | str = "figures",
    *,
    forms: Sequence[str] = ("png", "svg"),
    num_images: int = 1000,
    client_id: int | None = None,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Figures:
    """Draw angles between classes and t-SNE maps of test features of finished runs.

    Args:
        run_ids: row ids; runs stand side by side in this order.
        folder: where `angles`, `tsne` and `geometry.json` are written.
        forms: `png`, `svg` or both.
        num_images: test images on each map, at most.
        client_id: whose encoder is mapped where encoders differ; None = the first evaluated one.
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: if the store has no such run, or no checkpoint of it.
        ConfigError: without runs, or for a client or a form that does not exist.
    """
    from fedbench.bench.runs.figures import figures as draw

    return draw(
        run_ids,
        folder,
        forms=forms,
        num_images=num_images,
        client_id=client_id,
        store=store,
        data_dir=data_dir,
    )
