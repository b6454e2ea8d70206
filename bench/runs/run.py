"""One run and its store: read a stored result back, or execute the run and store it."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.config.dotted import flatten
from fedbench.bench.method import registry
from fedbench.bench.results.chance import NO_MARKS, marks
from fedbench.bench.results.store.row import METRICS, Row, per_gigabyte
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import (
    OnResume,
    OnRound,
    OnStart,
    Origin,
    Place,
    execute,
    open_dataset,
)
from fedbench.bench.runs.remeasure import begin, drop_taken, with_training_of
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.errors import ConfigError, DataError, StoreError
from fedbench.bench.system.files import copy_folder
from fedbench.bench.system.notebooks import Shown
from fedbench.bench.system.regime import check_precision
from fedbench.bench.system.text import utf8_text
from fedbench.bench.training.history import History
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.steps import LocalSteps, local_steps, partition_of
from fedbench.bench.training.trainer import OnClient

if TYPE_CHECKING:
    from fedbench.bench.runs.estimate import Estimate

_log = logging.getLogger(__name__)
_COST = (
    "wall_seconds",
    "train_seconds",
    "bytes_up",
    "bytes_down",
    "peak_memory_bytes",
    "num_parameters",
    "rounds_done",
    "resumes",
)
_PRIVACY = ("revealing_messages", "smallest_group", "secure_sum", "epsilon", "delta", "epsilon_of")


@dataclass(frozen=True, repr=False)
class RunResult(Shown):
    """A finished run.

    Attributes:
        run_id: its row id; `export_encoder` and `fedbench export` take it.
        status: `ok`, or `diverged` when loss or weights stopped being finite.
        method: canonical method spec.
        preset: the preset that the configuration started from.
        seed: the run's seed.
        config: the configuration.
        metrics: accuracies in [0, 1]; None = not measured.
        cost: seconds, bytes and counts; keys as in the columns of the store, and
            `linear_acc_per_gb`, the linear-probe accuracy over 1e9 bytes in both directions.
        traffic: `{direction: {group: {messages, numbers, bytes, revealing, smallest}}}`.
        privacy: what messages reveal, and epsilon with the numbers behind it; keys as in the
            columns of the store.
        paths: `store`, and `run row curve checkpoint partition` where they exist, else None.
        collapsed: the detector's verdict on the final features.
        at_chance: terms of the loss that ended at chance (`bench.results.chance`).
        stored_before: whether the store had it already, so that nothing was executed.
        measured_from: the run whose weights were evaluated; None if this run was trained.
        row: the whole row of the store.
    """

    run_id: str
    status: str
    method: str
    preset: str
    seed: int
    config: RunConfig = field(repr=False)
    metrics: Mapping[str, float | None]
    cost: Mapping[str, float | int | None]
    traffic: Mapping[str, Any]
    privacy: Mapping[str, Any]
    paths: Mapping[str, str | None]
    collapsed: bool
    at_chance: tuple[str, ...]
    stored_before: bool
    measured_from: str | None
    row: Row = field(repr=False)

    @classmethod
    def of(cls, row: Row, store: Store, *, stored_before: bool) -> RunResult:
        """The result of a run from its row and its folder in the store."""
        name = store.key(row)
        folder = store.cell_dir(name)
        checkpoints = sorted(folder.glob("round-*.safetensors"))
        files = {
            "run": folder,
            "row": store.root / "rows" / f"{name}.parquet",
            "curve": folder / "curve.parquet",
            "checkpoint": checkpoints[-1] if checkpoints else folder / "round",
            "partition": folder / "partition.safetensors",
        }
        paths = {name: str(path) if path.exists() else None for name, path in files.items()}
        return cls(
            run_id=row.row_id,
            status=row.status,
            method=row.method,
            preset=row.preset,
            seed=row.seed,
            config=RunConfig.model_validate_json(row.config_json),
            metrics={name: getattr(row, name) for name in METRICS if name != "collapsed"}
            | json.loads(row.metrics_json or "{}"),
            cost={name: getattr(row, name) for name in _COST}
            | {"linear_acc_per_gb": per_gigabyte(row, row.linear_acc)},
            traffic=json.loads(row.traffic_json or "{}"),
            privacy={name: getattr(row, name) for name in _PRIVACY}
            | json.loads(row.privacy_json or "{}"),
            paths={"store": str(store.root), **paths},
            collapsed=bool(row.collapsed),
            at_chance=marks(store, [row]).get(row.row_id, NO_MARKS).at_chance,
            stored_before=stored_before,
            measured_from=row.measured_from,
            row=row,
        )

    def __repr__(self) -> str:
        measured = ("linear_acc", "knn_acc", "objective")
        shown = [
            (name, value) for name in measured if (value := self.metrics.get(name)) is not None
        ]
        figures = "".join(f", {name} {value:.4f}" for name, value in shown)
        return (
            f"<run {self.run_id[:8]}: {self.method}, preset {self.preset}, seed {self.seed},"
            f" {self.status}{figures}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return metrics before and after training, and costs."""
        before = {name: self.metrics.get(f"untrained_{name}") for name in self.metrics}
        lines: list[list[Any]] = [
            [name, value, before[name]]
            for name, value in self.metrics.items()
            if value is not None and not name.startswith("untrained_")
        ]
        costs = [[name, value, None] for name, value in self.cost.items() if value is not None]
        return ("figure", "value", "before training"), lines + costs

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench run --json`: every field but the row."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "row"}
        return plain | {"config": self.config.model_dump(mode="json")}


@dataclass(frozen=True)
class RunPlan:
    """A run that has not been executed, with its estimated cost.

    Attributes:
        run_id: its row id.
        stored: whether the store has it already.
        measured_from: the run whose weights would be evaluated instead of training them once more;
            None if it would be trained.
        preset: the preset that the configuration starts from.
        workers: processes that would train clients.
        device: device of the server.
        local_steps: of a client in a round, over all clients.
        estimate: cost, from measured parts of the run.
        config: the configuration.
        store: the store's folder.
    """

    run_id: str
    stored: bool
    measured_from: str | None
    preset: str
    workers: int
    device: str
    local_steps: LocalSteps
    estimate: Estimate
    config: RunConfig = field(repr=False)
    store: Path

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench run --dry-run --json`."""
        return {
            "run_id": self.run_id,
            "status": "stored" if self.stored else "planned",
            "measured_from": self.measured_from,
            "method": self.config.spec,
            "preset": self.preset,
            "seed": self.config.seed,
            "config": self.config.model_dump(mode="json"),
            "workers": self.workers,
            "device": self.device,
            "local_steps": self.local_steps.as_dict(),
            "estimate": asdict(self.estimate),
            "paths": {"store": str(self.store)},
        }


def run(
    config: RunConfig,
    *,
    store: Store,
    origin: Origin | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    lanes: int | None = None,
    reuse: bool = True,
    checkpoint_seconds: float | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
    on_start: OnStart | None = None,
    on_resume: OnResume | None = None,
    on_client: OnClient | None = None,
) -> RunResult:
    """Execute a configuration unless the store has its row; an interrupted run is resumed.

    If the store has a run with the same training, its weights are evaluated instead of trained once
    more, unless evaluations between rounds are asked for.

    Args:
        config: what to run.
        store: takes the row and the checkpoints.
        origin: preset, study and command line, for the record.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = physical cores, or one per GPU.
        lanes: clients at a time in one process (`bench.training.lanes`); None = no lanes.
        reuse: take the weights of a run with the same training; False = always train.
        checkpoint_seconds: least time between two checkpoints; None = by the number of rounds.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round.
        on_start: called before anything is executed.
        on_resume: called if an earlier attempt is continued.
        on_client: called after every client's part of a round.

    Raises:
        StoreError: if the store cannot be written, or another process executes this run.
        FedbenchError: for data, configuration or device problems.
    """
    devices = choose_devices(device, workers, lanes)
    check_precision(config.client.precision, devices[0])
    if checkpoint_seconds is not None and not checkpoint_seconds >= 0:
        raise ConfigError(f"--checkpoint-seconds: must be 0 or more (got {checkpoint_seconds})")
    origin = origin or Origin()
    config = canonical(config)
    dataset = open_dataset(config, data_dir)
    run_id = row_id(config, dataset.revision)
    row = store.finished(run_id)
    stored_before = row is not None
    if row is None:
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
                origin = replace(origin, argv=origin.argv or command_line())
                steps = local_steps(config, partition_of(dataset, config))
                steps.check()
                if steps.idle:
                    _log.warning("%s", steps.idle)
                if on_start is not None:
                    on_start(config, devices)
                place = Place(
                    store.cell_dir(run_id),
                    data_dir,
                    workers,
                    device,
                    dataset,
                    lanes,
                    checkpoint_seconds,
                )
                trained = None
                if reuse:
                    origin, trained = begin(store, store.rows(), config, origin, place)
                else:
                    drop_taken(place.folder)
                row = execute(config, origin, place, on_round, on_resume, on_client)
                if trained is not None:
                    row = with_training_of(row, trained)
                store_run(store, row)
    if stored_before:
        refresh_quietly(store)
    else:
        store.refresh()
    return RunResult.of(row, store, stored_before=stored_before)


def refresh_quietly(store: Store) -> None:
    """Update the derived leaderboard file; a store that cannot be written stays as it is.

    A process that was killed after it wrote a row may have left that file out of date.
    """
    with suppress(StoreError):
        store.refresh()


def canonical(config: RunConfig) -> RunConfig:
    """The same configuration without aliases, and with every field of its method written out."""
    method = registry.create(config.spec, config.method)
    spec = registry.canonical_spec(config.spec)
    return config.model_copy(update={"spec": spec, "method": registry.dump(method)})


def store_run(
    store: Store,
    row: Row,
    *,
    elsewhere: Path | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write the row and the curve of a finished run, but not the derived leaderboard file.

    Args:
        store: takes the run.
        row: the row.
        elsewhere: the run's folder, if it is outside the store; its content is moved into it.
        history: the run's rounds, if no folder has them.

    Raises:
        StoreError: when the store cannot be written.
        DataError: when rounds of the run are missing or altered.
    """
    folder = store.cell_dir(row.row_id)
    if elsewhere is not None and elsewhere.exists():
        drop_scratch(elsewhere)
        copy_folder(elsewhere, folder)
    if history is None and folder.exists():
        try:
            # A run that diverged may have done a round of which there is no record.
            at_least = (row.rounds_done or 0) if row.status == "ok" else 0
            history = [record.as_dict() for record in History(folder).read(at_least)]
        except DataError:
            if row.status != "error":  # else it may be why, and the row names it
                raise
    if history is not None:
        store.write_curve(row.row_id, [flatten(record) for record in history])
        drop_scratch(folder)
    store.write_row(row)
    if elsewhere is not None:
        shutil.rmtree(elsewhere, ignore_errors=True)


def drop_scratch(folder: Path) -> None:
    """Delete all checkpoints and personal tensors of clients but the newest."""
    for path in sorted(folder.glob("round-*.safetensors"))[:-1]:
        path.unlink(missing_ok=True)
    PersonalStore(folder / "clients").keep_latest()


def forget_cell(store: Store, identity: str) -> None:
    """Delete a run's folder, since a tuning trial keeps only its row."""
    shutil.rmtree(store.cell_dir(identity), ignore_errors=True)


def command_line() -> str:
    """The command line of this process, without the folder of the program."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "python -m fedbench")
    return utf8_text(f"{program} {shlex.join(sys.argv[1:])}".rstrip())
