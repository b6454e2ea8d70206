"""Weights that a store has already: evaluated further rather than trained again.

Runs that differ in their evaluation only have the same weights, to the last bit where the numeric
platform is the same. The final checkpoint of one then serves the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedbench.bench.config import RunConfig, training_id
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import Origin, Place, open_dataset
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.errors import DataError, StoreError
from fedbench.bench.system.files import atomic_write_text, sync_folder, write_error
from fedbench.bench.system.numerics import as_json, measure
from fedbench.bench.system.regime import TF32
from fedbench.bench.training.checkpoint import load_checkpoint, newest_first
from fedbench.bench.training.history import History
from fedbench.bench.training.personal import PersonalStore

_TAKEN = "taken-from"
"""File in a folder whose weights were, or were to be, taken from the run that it names."""


def trained_before(
    rows: Iterable[Row], store: Store, config: RunConfig, data_revision: str, device: str
) -> Row | None:
    """Return a finished row that has the weights of a run, to the last bit; None without one.

    One whose checkpoint is still there is preferred, then the first that finished.

    Args:
        rows: of the store.
        store: holds the checkpoints.
        config: of the run.
        data_revision: of its data set.
        device: type of the device that would train it, `cpu` or `cuda`.
    """
    identity = training_id(config, data_revision)
    alike = [row for row in rows if row.training_id == identity and row.status != "error"]
    if not alike:
        return None
    here = as_json([measure(device, config.client.precision == TF32).as_dict()])
    return min(
        (row for row in alike if row.platform_json == here),
        key=lambda row: (not has_weights(store, row), row.finished_at, row.row_id),
        default=None,
    )


def has_weights(store: Store, row: Row) -> bool:
    """Return True if the folder of a finished run has a checkpoint."""
    return row.status == "ok" and bool(newest_first(store.cell_dir(store.key(row))))


def measured_from(store: Store, earlier: Row | None, config: RunConfig) -> str | None:
    """Return the id of the run whose weights a run would be measured from, without training.

    Args:
        store: holds the earlier run.
        earlier: as `trained_before` gives it.
        config: of the run; evaluations between rounds need the training.
    """
    usable = (
        earlier is not None and has_weights(store, earlier) and not config.evaluation.between_rounds
    )
    return earlier.row_id if earlier is not None and usable else None


def begin(
    store: Store, rows: Iterable[Row], config: RunConfig, origin: Origin, place: Place
) -> tuple[Origin, Row | None]:
    """Prepare the folder of a run that is about to be executed.

    Args:
        store: may hold a run with the same training.
        rows: of the store, to look at.
        config: of the run.
        origin: of the run.
        place: of the run, with its data set.

    Returns:
        The origin, and None; or the origin with the id of the run whose weights are in the folder
        now, so that no round is left, and the row of that run.

    Raises:
        StoreError: if the folder cannot be written.
    """
    dataset = place.dataset or open_dataset(config, place.data_dir)
    device = choose_devices(place.device, place.workers)[0].partition(":")[0]
    earlier = trained_before(rows, store, config, dataset.revision, device)
    if (
        earlier is not None
        and measured_from(store, earlier, config)
        and take_weights(store, earlier, place.folder)
    ):
        return replace(origin, measured_from=earlier.row_id), earlier
    drop_taken(place.folder)
    return origin, None


def drop_taken(folder: Path) -> None:
    """Delete weights that an interrupted call took from another run, so that this run is trained.

    Raises:
        StoreError: if they cannot be deleted.
    """
    if not (folder / _TAKEN).exists():
        return
    try:
        for path in (*newest_first(folder), folder / "history.jsonl"):
            path.unlink(missing_ok=True)
        if (folder / "clients").exists():
            shutil.rmtree(folder / "clients")
        (folder / _TAKEN).unlink()
    except OSError as cause:
        raise write_error(folder, cause) from cause


def without_training(config: RunConfig) -> RunConfig:
    """Return a configuration that costs what evaluating a run's final weights does."""
    none = config.federation.model_copy(update={"num_rounds": 0})
    return config.model_copy(update={"federation": none})


def take_weights(store: Store, row: Row, folder: Path) -> bool:
    """Put the final checkpoint of a finished run into the folder of another run.

    Files that never change are linked where the file system can, else copied. A file that
    names the finished run comes first and its checkpoint last: `drop_taken` finds what a call left
    that was cut short.

    Args:
        store: holds the finished run.
        row: its row.
        folder: of the run that shall not be trained.

    Returns:
        False if the run diverged, or a file of it is missing or damaged; then nothing was written.

    Raises:
        StoreError: if the folder cannot be written.
    """
    if row.status != "ok":
        return False
    source = store.cell_dir(store.key(row))
    personal = PersonalStore(source / "clients")
    try:
        checkpoint = load_checkpoint(source, row.training_id or row.row_id)
        if checkpoint is None or checkpoint.rounds_done != row.rounds_done:
            return False
        records = History(source).read()
        for client_id, round_index in checkpoint.state["personal_rounds"].items():
            if not personal.intact(int(client_id), round_index):
                return False
    except (StoreError, DataError):
        return False
    files = [f"clients/{k}-{r}.safetensors" for k, r in checkpoint.state["personal_rounds"].items()]
    if len(records) < checkpoint.rounds_done:
        return False
    newest = newest_first(source)[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / _TAKEN, f"{row.row_id}\n")
        for name in files:
            (folder / name).parent.mkdir(exist_ok=True)
            _link(source / name, folder / name)
        History(folder).write([replace(record, metrics={}) for record in records])
        if files:
            sync_folder(folder / "clients")
        _link(source / newest.name, folder / newest.name)
        sync_folder(folder)
    except OSError as cause:
        raise write_error(folder, cause) from cause
    return True


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with suppress(OSError):  # another file system, or one without links
        os.link(source, target)
        return
    shutil.copyfile(source, target)


def with_training_of(row: Row, earlier: Row) -> Row:
    """Return the row of a run that was not trained, with the cost of the training that it has."""
    peaks = [row.peak_memory_bytes or 0, earlier.peak_memory_bytes or 0]
    return row.model_copy(update={"resumes": earlier.resumes, "peak_memory_bytes": max(peaks)})
