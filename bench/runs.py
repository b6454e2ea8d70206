"""A run and the store: finished runs are read back, others executed, their rows kept."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbench.bench import registry
from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.devices import choose_devices
from fedbench.bench.dotted import flatten
from fedbench.bench.errors import StoreError
from fedbench.bench.execute import (
    OnResume,
    OnRound,
    OnStart,
    Origin,
    Place,
    execute,
    open_dataset,
)
from fedbench.bench.files import copy_folder
from fedbench.bench.history import History
from fedbench.bench.personal import PersonalStore
from fedbench.bench.results.row import Row
from fedbench.bench.results.store import Store


@dataclass(frozen=True)
class Finished:
    """A run's row, and whether it was already in the store."""

    row: Row
    stored_before: bool
    folder: Path


def run(
    config: RunConfig,
    *,
    store: Store,
    origin: Origin | None = None,
    data_dir: Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
    on_start: OnStart | None = None,
    on_resume: OnResume | None = None,
) -> Finished:
    """Execute a configuration, unless the store has its row; resumes what was interrupted.

    Args:
        config: what to run.
        store: where rows and checkpoints are kept.
        origin: preset, study and command line, for the record.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = physical cores, or one per GPU.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round.
        on_start: called before anything is executed.
        on_resume: called if an earlier attempt is continued.

    Raises:
        StoreError: if the store cannot be written, or another process is at this very run.
        FedbenchError: for data, configuration or device problems.
    """
    origin = origin or Origin()
    config = canonical(config)
    dataset = open_dataset(config, data_dir)
    identity = row_id(config, dataset.revision)
    folder = store.cell_dir(identity)
    row, stored_before = store.finished(identity), True
    if row is None:
        store.check_writable()
        with store.lock(identity) as mine:
            if not mine:
                raise StoreError(
                    f"run {identity} is being executed by another process on this store; wait for"
                    " it, or choose another --store"
                )
            row = store.finished(identity)  # another process may have been faster
            if row is None:
                stored_before = False
                origin = replace(origin, argv=origin.argv or command_line())
                if on_start is not None:
                    on_start(config, choose_devices(device, workers))
                place = Place(folder, data_dir, workers, device)
                row = execute(config, origin, place, on_round, on_resume)
                keep(store, row)
    if stored_before:
        catch_up(store)
    else:
        store.refresh()
    return Finished(row, stored_before, folder)


def catch_up(store: Store) -> None:
    """Refresh the derived leaderboard after a process that was killed before it did."""
    with suppress(StoreError):  # a store that cannot be written can still be read
        store.refresh()


def canonical(config: RunConfig) -> RunConfig:
    """The same run with its spec free of aliases and every field of its method written out."""
    method = registry.create(config.spec, config.method)
    spec = registry.canonical_spec(config.spec)
    return config.model_copy(update={"spec": spec, "method": registry.dump(method)})


def keep(
    store: Store,
    row: Row,
    *,
    elsewhere: Path | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write a finished run's row and its curve; the derived leaderboard file comes later.

    Args:
        store: where.
        row: the row.
        elsewhere: the run's folder, if it is not that of the store: its content is moved there.
        history: the run's rounds, if no folder has them.

    Raises:
        StoreError: when the store cannot be written.
    """
    folder = store.cell_dir(row.row_id)
    if elsewhere is not None and elsewhere.exists():
        drop_scratch(elsewhere)
        copy_folder(elsewhere, folder)
    if history is None and folder.exists():
        history = [record.as_dict() for record in History(folder).read()]
    if history is not None:
        store.write_curve(row.row_id, [flatten(record) for record in history])
        drop_scratch(folder)
    store.write_row(row)
    if elsewhere is not None:
        shutil.rmtree(elsewhere, ignore_errors=True)


def drop_scratch(folder: Path) -> None:
    """Delete all checkpoints but the newest, with the clients' own tensors that belong to it."""
    for path in sorted(folder.glob("round-*.safetensors"))[:-1]:
        path.unlink(missing_ok=True)
    PersonalStore(folder / "clients").keep_latest()


def forget_cell(store: Store, identity: str) -> None:
    """Delete a run's folder: a tuning trial leaves its row only."""
    shutil.rmtree(store.cell_dir(identity), ignore_errors=True)


def command_line() -> str:
    """The command as it was typed, without the folder of the program."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
