"""What the commands do, as functions: they return records, raise `FedbenchError`s, print nothing.

Arguments have the same names and meanings throughout: `preset`, `set` (dotted names to values, like
`--set`), `config_files` (YAML), `seed`, `store`, `data_dir`, `workers`, `device`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.errors import ConfigError
from fedbench.bench.records import Deal, RunPlan, RunResult

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.decode import Progress
    from fedbench.bench.execute import OnResume, OnRound, OnStart
    from fedbench.bench.resolve import Resolved
    from fedbench.bench.results.store import Store

STORE_VARIABLE = "FEDBENCH_STORE"
CUSTOM = "custom"
"""Recorded as the preset of a `RunConfig` that was made by hand."""


def open_store(store: Store | Path | str | None = None) -> Store:
    """A store; None = `$FEDBENCH_STORE`, else `./leaderboards`."""
    from fedbench.bench.results.store import Store

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
    from fedbench.bench.resolve import resolve as resolve_layers

    files = [Path(file) for file in config_files]
    return resolve_layers(spec, preset=preset, files=files, overrides=set, seed=seed)


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
    from fedbench.bench import runs
    from fedbench.bench.execute import Origin
    from fedbench.bench.tracking import Tracking

    config, origin = _configuration(spec, preset, set, config_files, seed)
    opened = open_store(store)
    tracking = Tracking(track, opened)
    finished = runs.run(
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
    tracking(finished.row.row_id)
    return RunResult.of(finished, opened.root)


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
    from fedbench.bench.devices import choose_devices
    from fedbench.bench.estimate import Estimator
    from fedbench.bench.execute import open_dataset

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
    from fedbench.bench.data.partition import balanced_labels, deal, summary
    from fedbench.bench.execute import open_dataset

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
    from fedbench.bench.runs import canonical

    return canonical(spec), (preset or CUSTOM, None)


def as_path(path: Path | str | None) -> Path | None:
    """A path that may be given as text, with `~` for the home folder."""
    return None if path is None else Path(path).expanduser()
