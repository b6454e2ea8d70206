"""Functions that run, plan and partition; they load torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedbench.bench.config import RunConfig, config_id, row_id
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.datasets import Contents
from fedbench.bench.data.partition import PartitionSummary
from fedbench.bench.runs import run as runs
from fedbench.bench.runs.arguments import Places, Settings, as_path
from fedbench.bench.runs.execute import OnResume, OnRound, OnStart, Origin, open_dataset
from fedbench.bench.runs.resolve import resolve
from fedbench.bench.runs.run import RunPlan, RunResult
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.training.history import RoundRecord
from fedbench.bench.training.trainer import OnClient

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.sources.decode import Progress

CUSTOM = "custom"
"""Recorded as the preset of a `RunConfig` that was made by hand."""


class Watcher(Protocol):
    """Callbacks of a run in one object."""

    @property
    def start(self) -> OnStart:
        """As `on_start`."""

    @property
    def resume(self) -> OnResume:
        """As `on_resume`."""

    @property
    def client(self) -> OnClient:
        """As `on_client`."""

    def __call__(self, record: RoundRecord, total: int) -> None:
        """As `on_round`."""


@grouped
def run(
    spec: str | RunConfig,
    *,
    settings: Settings,
    places: Places,
    workers: int | None = None,
    lanes: int | None = None,
    checkpoint_seconds: float | None = None,
    track: Sequence[str] = (),
    on_start: OnStart | None = None,
    on_resume: OnResume | None = None,
    on_round: OnRound | None = None,
    on_client: OnClient | None = None,
    on_progress: Watcher | None = None,
) -> RunResult:
    """Run one configuration and evaluate it, unless the store has its row; resume a begun run.

    Args:
        spec: method spec, or a complete configuration; then `set`, `config_files` and `seed` are
            refused, and `preset` is only a label.
        settings: sources of the configuration.
        places: store, data and device.
        workers: processes that train clients; None = physical cores, or one per GPU.
        lanes: clients at a time in one process, whose steps are recorded once and replayed, as CUDA
            graphs on a GPU; None = no lanes.
        checkpoint_seconds: least time between two checkpoints; None = one after every round of up
            to 1,000, and 10 s in longer runs.
        track: viewers that get every round and the row: `tensorboard`, `wandb`.
        on_start: called before a run is executed, with its configuration and each worker's device.
        on_resume: called with the rounds done and all rounds, if an earlier attempt is continued.
        on_round: called after every round with its record and the number of rounds.
        on_client: called whenever a client has ended its part of a round.
        on_progress: does all four of these that are not given, as `fedbench.RunProgress`.

    Raises:
        FedbenchError: for configuration, data, device or store problems.
    """
    from fedbench.bench.results.trackers import Begun, Tracking

    if on_progress is not None:
        on_start, on_resume = on_start or on_progress.start, on_resume or on_progress.resume
        on_round, on_client = on_round or on_progress, on_client or on_progress.client
    config, origin = _configuration(spec, settings, places.cache)
    store = places.open_store()
    tracking = Tracking(track, store)

    def begin(begun: RunConfig, devices: Sequence[str]) -> None:
        if track:
            dataset = open_dataset(begun, places.data_dir)
            identity = row_id(begun, dataset.revision)
            group = config_id(begun, dataset.revision)
            tracking.begin(Begun(identity, group, begun, origin.preset, dataset.name))
        if on_start is not None:
            on_start(begun, devices)

    def ended(record: RoundRecord, total: int) -> None:
        tracking.round(flatten(record.as_dict()))
        if on_round is not None:
            on_round(record, total)

    try:
        result = runs.run(
            config,
            store=store,
            origin=origin,
            data_dir=places.data_dir,
            workers=workers,
            lanes=lanes,
            checkpoint_seconds=checkpoint_seconds,
            device=places.device,
            on_start=begin,
            on_resume=on_resume,
            on_round=ended if track else on_round,
            on_client=on_client,
        )
    except BaseException:
        tracking.close()
        raise
    tracking(result.run_id)
    return result


@grouped
def plan_run(
    spec: str | RunConfig, *, settings: Settings, places: Places, workers: int | None = None
) -> RunPlan:
    """Identify the run that `run` would do with these arguments, and estimate its cost.

    Args:
        spec: method spec, or a complete configuration.
        settings: sources of the configuration.
        places: store, data and device.
        workers: processes that train clients; None = physical cores, or one per GPU.

    Raises:
        FedbenchError: for configuration, data, device or store problems.
    """
    from fedbench.bench.runs import remeasure
    from fedbench.bench.runs.estimate import Estimator
    from fedbench.bench.system.compute import choose_devices
    from fedbench.bench.training.steps import local_steps, partition_of

    config, origin = _configuration(spec, settings, places.cache)
    store = places.open_store()
    devices = choose_devices(places.device, workers)
    dataset = open_dataset(config, places.data_dir)
    steps, revision = local_steps(config, partition_of(dataset, config)), dataset.revision
    steps.check()
    identity = row_id(config, revision)
    stored, source = store.finished(identity), None
    if stored is None:
        kind = devices[0].partition(":")[0]
        earlier = remeasure.trained_before(store.rows(), store, config, revision, kind)
        source = remeasure.measured_from(store, earlier, config)
    estimated = config if source is None else remeasure.without_training(config)
    return RunPlan(
        run_id=identity,
        stored=stored is not None,
        measured_from=source,
        preset=origin.preset,
        workers=len(devices),
        device=devices[0],
        local_steps=steps,
        estimate=Estimator(places.cache, places.device, workers)(estimated),
        config=config,
        store=store.root,
    )


def _configuration(
    spec: str | RunConfig, settings: Settings, data_dir: Path | None
) -> tuple[RunConfig, Origin]:
    """Return the configuration of a run, and its preset and tuning study."""
    if isinstance(spec, str):
        resolved = resolve(spec, content=Contents(data_dir, build=True), **vars(settings))
        return resolved.config, Origin(preset=resolved.preset, study_id=resolved.study)
    if settings.set or settings.config_files or settings.seed is not None:
        raise ConfigError(
            "a RunConfig is complete: change it instead of passing set, config_files or seed"
        )
    return runs.canonical(spec), Origin(preset=settings.preset or CUSTOM)


@grouped
def partition(
    spec: str | None = None,
    *,
    settings: Settings,
    data_dir: Path | str | None = None,
    labels: str | None = None,
) -> PartitionSummary:
    """Give a configuration's data set to its clients.

    Args:
        spec: method spec; matters only where a preset's data depend on the method.
        settings: sources of the configuration.
        data_dir: cache of data sets; None = the default one.
        labels: `balanced:N:C` takes N examples in C equal classes instead of the data set's
            labels, so that its images are not needed (subsets are ignored then).

    Raises:
        FedbenchError: for configuration or data problems.
    """
    from fedbench.bench.data.partition import balanced_labels, make_partition, summary
    from fedbench.bench.training.steps import partition_of

    default = str(RunConfig.model_fields["spec"].default)
    # Labels of their own need no images, so none are prepared for them.
    content = Contents(as_path(data_dir), build=labels is None)
    config = resolve(spec or default, content=content, **vars(settings)).config
    if labels is None:
        dataset = open_dataset(config, data_dir)
        classes, made = dataset.train_labels, partition_of(dataset, config)
    else:
        classes, num_classes = balanced_labels(labels)
        made = make_partition(classes, num_classes, config.data, config.seed)
    return PartitionSummary(config.data.name, labels, made, summary(made, classes))


def prepare_data(
    name: str,
    *,
    set: Mapping[str, Any] | None = None,
    data_dir: Path | str | None = None,
    on_progress: Progress | None = None,
) -> PreparedDataset:
    """Download or convert a data set into the cache, and verify every byte of it.

    Args:
        name: its name, as `data.name`.
        set: how it is read, by dotted name: label column, image size, clients.
        data_dir: cache of data sets; None = the default one.
        on_progress: called while images are decoded.

    Raises:
        UnknownNameError: no such data set.
        ConfigError: for values that it cannot be read with.
        DataError: no network, a torn or missing source, or a folder that cannot be written.
    """
    from fedbench.bench.config.dotted import flatten
    from fedbench.bench.config.schema import READ_BY_SOURCE
    from fedbench.bench.data.datasets import prepare
    from fedbench.bench.data.reading import Reading
    from fedbench.bench.runs.fields import build_config

    values = flatten(set or {})
    allowed = [f"data.{key}" for key in ("partition", *READ_BY_SOURCE)]
    for key in values:
        if key not in allowed:
            raise ConfigError(
                f"{key} does not change what is prepared; allowed: {', '.join(sorted(allowed))}"
            )
    spec = str(RunConfig.model_fields["spec"].default)
    data = build_config(spec, {"data.name": name, **values}).data
    reading = Reading.of(data)
    return prepare(name, as_path(data_dir), reading=reading, progress=on_progress)
