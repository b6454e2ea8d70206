"""Run one configuration: read its stored result back, or execute it and store it."""

import logging
import math
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.data.datasets import cached_dataset
from fedbench.bench.data.sources.base import with_kind
from fedbench.bench.execution.compare import Reproduction, compare
from fedbench.bench.execution.engines import Where, engine
from fedbench.bench.execution.estimate import Estimator
from fedbench.bench.execution.execute import OnRound, Watcher, points_of, prepared
from fedbench.bench.execution.outdated import outdated
from fedbench.bench.execution.remeasure import train, trained_before
from fedbench.bench.execution.result import RunPlan, RunResult
from fedbench.bench.execution.speed_probe import check_speed
from fedbench.bench.experiment.code import changed_code, not_recorded
from fedbench.bench.experiment.common_options import Execution, Places, Settings, as_path
from fedbench.bench.experiment.experiment import CUSTOM, Experiment, Origin
from fedbench.bench.experiment.fields import canonical
from fedbench.bench.experiment.resolve import experiment_of, resolve
from fedbench.bench.experiment.steps import cautions, local_steps, of_data, without_effect
from fedbench.bench.method.blame import guarded
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.errors import ConfigError, DataError, StoreError
from fedbench.bench.system.files import copy_folder
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.text import utf8_text
from fedbench.bench.training.checkpoint import newest_first, rounds_saved
from fedbench.bench.training.personal import PersonalStore

_log = logging.getLogger(__name__)


@grouped
@guarded()
def run(
    spec: str | RunConfig | Experiment,
    *,
    settings: Settings,
    places: Places,
    execution: Execution,
    reuse: bool = True,
    on_round: OnRound | None = None,
    on_progress: Watcher | None = None,
) -> RunResult:
    """Run one configuration and evaluate it, unless the store has its row; resume a begun run.

    If the store has a run with the same training, its weights are evaluated instead of trained once
    more, unless evaluations between rounds are asked for. `again` also deletes the runs that differ
    from this one only in code of other packages which is not installed any more (`outdated`).

    Args:
        spec: method spec; or an `Experiment` of `resolve`, beside which settings and `data_dir` are
            refused; or a complete configuration, beside which `preset` is only a label, and `set`,
            `config_files` and `seed` are refused.
        settings: sources of the configuration.
        places: store, data and device.
        execution: how it is executed.
        reuse: take the weights of a run with the same training; False = always train.
        on_round: called after every round with its record and the number of rounds.
        on_progress: follows the run, as `fedbench.RunProgress`; `on_round` replaces its rounds.

    Raises:
        StoreError: if the store cannot be written, or another process executes this run.
        FedbenchError: for configuration, data or device problems.

    >>> from fedbench.bench.testing import new_folder
    >>> few = {"data.train_subset": 80, "data.test_subset": 40, "federation.num_rounds": 1}
    >>> folder = new_folder()
    >>> result = run("simclr", set=few, seed=3, store=folder, workers=1, device="cpu")
    >>> result.status, result.seed, 0 <= result.metrics["linear_acc"] <= 1
    ('ok', 3, True)
    """
    on_round = on_round or on_progress
    experiment, store = _experiment(spec, settings, places.cache), places.open_store()
    tracking = Tracking(execution.track or (), store)
    again, workers, lanes = execution.again, execution.workers, execution.lanes
    devices = choose_devices(places.device, experiment.workers(workers), lanes)
    checkpoint_seconds = execution.checkpoint_seconds
    if checkpoint_seconds is not None and not checkpoint_seconds >= 0:  # NaN is not
        raise ConfigError(f"--checkpoint-seconds: must be 0 or more (got {checkpoint_seconds})")
    run_id = experiment.ids.row
    folder = store.cell_dir(run_id)
    where = Where(folder, devices, lanes, checkpoint_seconds, engine=execution.engine)
    engine(where.engine_name)  # refuses another name
    experiment.check_code()
    row = store.finished(run_id)
    stored_before, repeated = row is not None, None
    if row is not None and again:
        given: dict[str, Any] = {"workers": workers, "lanes": lanes, "device": places.device}
        given |= {"on_round": on_round, "on_progress": on_progress}
        repeated = _run_again(store, run_id, experiment, None, **given)
        row = repeated.claimed
    if row is None:
        prepared(experiment, devices[0])  # raises before anything is written
        store.check_writable()
        with store.lock(run_id) as locked:
            if not locked:
                raise StoreError(
                    f"run {run_id} is being executed by another process on this store; wait for"
                    " it, or choose another --store"
                )
            row = store.finished(run_id)  # another process may have been faster
            stored_before = row is not None
            if row is None:
                row = _execute(experiment, store, where, tracking, on_round, on_progress, reuse)
    # A process that was killed after it wrote a row may have left the leaderboard out of date.
    with suppress(StoreError) if stored_before else nullcontext():
        store.refresh()
    tracking.end(row)
    result = RunResult.of(row, store, stored_before=stored_before)
    return replace(result, repeated=repeated, outdated=outdated(store, [row], drop=again))


def _execute(
    experiment: Experiment,
    store: Store,
    where: Where,
    tracking: Tracking,
    on_round: OnRound | None,
    watcher: Watcher | None,
    reuse: bool,
) -> Row:
    """Execute a run, tell those who follow it, and store its row."""
    for line in cautions(experiment):
        _log.warning("%s", line)
    try:
        rows = store.rows() if reuse else ()
        kind = where.devices[0].partition(":")[0]
        if trained_before(rows, store, experiment, kind) is None:
            begun = not reuse or rounds_saved(where.folder) > 0
            check_speed(experiment, where.devices[0], begun=begun)
        if watcher is not None:
            watcher.start(experiment.config, where.devices)
        row = train(store, rows, experiment, where, tracking, on_round, watcher)
        store_run(store, row)
    except BaseException as err:
        tracking.close()
        if isinstance(err, KeyboardInterrupt | SystemExit):
            federation, needs = experiment.config.federation, experiment.needs
            total = federation.num_rounds + needs.preparatory_rounds
            err.add_note(f"{rounds_saved(where.folder)} of {total} rounds are saved")
        raise
    return row


@grouped
@guarded()
def plan_run(
    spec: str | RunConfig | Experiment,
    *,
    settings: Settings,
    places: Places,
    workers: int | None = None,
    track: Sequence[str] = (),
) -> RunPlan:
    """Identify the run that `run` would do with these arguments, and estimate its cost.

    Args:
        spec: as for `run`.
        settings: sources of the configuration.
        places: store, data and device.
        workers: processes that train clients; None = usable cores, or one per GPU.
        track: viewers that `run` would need, whose packages must be there.

    Raises:
        FedbenchError: for configuration, data, device or store problems.

    >>> from fedbench.bench.testing import new_folder
    >>> folder, few = new_folder(), {"data.train_subset": 80}
    >>> plan = plan_run("simclr", set=few, store=folder, workers=1, device="cpu")
    >>> plan.local_steps.num_clients, plan.estimate.seconds > 0
    (4, True)
    """
    experiment, store = _experiment(spec, settings, places.cache), places.open_store()
    Tracking(track, store)  # refuses one without its package, as `run` does
    devices = choose_devices(places.device, experiment.workers(workers))
    steps = local_steps(experiment)
    steps.check()
    for line in of_data(experiment):
        _log.warning("%s", line)
    stored, earlier = store.finished(experiment.ids.row), None
    if stored is None:
        prepared(experiment, devices[0], set())
        kind = devices[0].partition(":")[0]
        earlier = trained_before(store.rows(), store, experiment, kind)
        if earlier is None:
            begun = rounds_saved(store.cell_dir(experiment.ids.row)) > 0
            check_speed(experiment, devices[0], begun=begun)
    return RunPlan(
        run_id=experiment.ids.row,
        stored=stored is not None,
        measured_from=None if earlier is None else earlier.row_id,
        preset=experiment.origin.preset,
        workers=len(devices),
        device=devices[0],
        local_steps=steps,
        without_effect=without_effect(experiment),
        estimate=Estimator(devices)(experiment, trains=earlier is None),
        config=experiment.config,
        store=store.root,
    )


def _experiment(
    spec: str | RunConfig | Experiment, settings: Settings, data_dir: Path | None
) -> Experiment:
    """Return the experiment of a run, recorded with the command line unless it has one."""
    given = [name for name, value in vars(settings).items() if value not in (None, {}, (), [])]
    if isinstance(spec, str):
        found = resolve(spec, data_dir=data_dir, **vars(settings))
    elif isinstance(spec, Experiment):
        if given := [*given, *(["data_dir"] if data_dir is not None else [])]:
            raise ConfigError(f"an Experiment is complete: give {given[-1]} to `resolve`")
        found = spec
    elif given in ([], ["preset"]):
        found = experiment_of(spec, Origin(settings.preset or CUSTOM), data_dir)
    else:
        raise ConfigError(f"a RunConfig is complete: change it instead of passing {given[-1]}")
    origin = found.origin
    return found.under(replace(origin, argv=origin.argv or command_line()))


def store_run(
    store: Store,
    row: Row,
    *,
    elsewhere: Path | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write the row and the curve of a finished run, but not the derived leaderboard file.

    A run's folder outside the store (`elsewhere`) is moved into it. `history` has the run's rounds,
    if no folder has them.
    """
    folder = store.cell_dir(row.row_id)
    if elsewhere is not None and elsewhere.exists():
        drop_scratch(elsewhere)
        copy_folder(elsewhere, folder)
    if history is None and folder.exists():
        # A run that diverged may have done a round of which there is no record.
        history = points_of(folder, (row.rounds_done or 0) if row.status == "ok" else 0)
    if history is not None:
        store.write_curve(row.row_id, history)
        drop_scratch(folder)
    store.write_row(row)
    if elsewhere is not None:
        shutil.rmtree(elsewhere, ignore_errors=True)


def drop_scratch(folder: Path) -> None:
    """Delete all checkpoints and personal tensors of clients but the newest."""
    for path in newest_first(folder)[1:]:
        path.unlink(missing_ok=True)
    PersonalStore(folder / "clients").keep(math.inf)


def forget_cell(store: Store, identity: str) -> None:
    """Delete a run's folder, since a tuning trial keeps only its row."""
    shutil.rmtree(store.cell_dir(identity), ignore_errors=True)


def command_line() -> str:
    """The command line of this process, without the folder of the program."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "python -m fedbench")
    return utf8_text(f"{program} {shlex.join(sys.argv[1:])}".rstrip())


@guarded()
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
    """Run a stored row again from its configuration, in another store, and compare every bit.

    Args:
        run_id: its row id, or an unambiguous beginning of it, at least 4 characters; see
            `Store.find` for a certain replica.
        store: see `open_store`; nothing is written there.
        data_name: data set to use if it has moved since the row was made; a name or a path.
        keep: store for the new run; None = a temporary one.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = usable cores, or one per GPU.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round with its record and the number of rounds.

    Raises:
        StoreError: no such row, one that failed, or one that this version of fedbench or this
            data set cannot reproduce.
        FedbenchError: for data, configuration or device problems.

    >>> from fedbench.bench.testing import demo_store
    >>> reproduce(demo_store().rows()[0].row_id, demo_store(), workers=1, device="cpu").verdict
    'same bits'
    """
    store = open_store(store)
    row = store.find(run_id)
    if row.status == "error":
        raise StoreError(f"run {row.row_id} failed ({row.error}); there is no result to compare")
    experiment = _of_row(row, data_name, as_path(data_dir))
    if changed := changed_code(row.code, experiment.config.code):
        _log.warning("%s: the result may differ from run %s", not_recorded(changed), row.row_id)
    given = {"device": device, "workers": workers, "on_round": on_round}
    return _run_again(store, run_id, experiment, keep, **given)


def _run_again(
    store: Store, run_id: str, experiment: Experiment, keep: Any, **given: Any
) -> Reproduction:
    """Run a stored run again, in the store `keep` or a temporary one, and compare it."""
    with temporary_folder() if keep is None else nullcontext(keep) as folder:
        other = open_store(folder)
        result = run(experiment, store=other, reuse=False, **given)
        if result.stored_before:
            raise StoreError(f"{str(other.root)!r} has run {run_id} already: nothing was run again")
        return compare(store, run_id, other, result.row, len(experiment.dataset.test_labels))


def _of_row(row: Row, data_name: str | None, data_dir: Path | None) -> Experiment:
    """The row's experiment, checked to be the same run with this fedbench and this data."""
    if row.benchmark_version != BENCHMARK_VERSION:
        raise StoreError(
            f"run {row.row_id} is of benchmark version {row.benchmark_version}, this fedbench of"
            f" {BENCHMARK_VERSION}: the same configuration gives other results; install"
            f" fedbench {row.package_version}"
        )
    origin = Origin(row.preset, row.study_id, row.purpose, row.grid)
    recorded = Experiment(row.config, origin, data_dir=data_dir)
    if data_name is not None:
        recorded = recorded.varied("data", name=with_kind(data_name))
    else:
        recorded = _on_cached_data(recorded, row.dataset_revision)
    config = recorded.config
    if recorded.ids.row != row.row_id:
        raise StoreError(
            f"run {row.row_id} used revision {row.dataset_revision[:8]} of its data under fedbench"
            f" {row.package_version}, {config.data.name} is {recorded.data.revision[:8]}; name"
            " other data with --data, or install that version"
        )
    # Only now with the code that is installed, which may give it another id than the row's.
    return replace(recorded, config=canonical(config)).on(recorded.dataset)


def _on_cached_data(experiment: Experiment, revision: str) -> Experiment:
    """Return the experiment, on a cache of its data if the folder that they came from has moved."""
    try:
        return experiment.on(experiment.dataset)
    except DataError as err:
        if (cached := cached_dataset(revision, experiment.data_dir)) is None:
            raise DataError(f"{err}; --data names the folder that they are in now") from err
        _log.warning("%s; the same images are taken from the cache in %s", err, cached.path)
        return experiment.on(cached)
