"""Train a run, or evaluate weights that the store has already further.

Runs that differ in their evaluation only have the same weights, to the last bit where the numeric
platform is the same. The final checkpoint of one then serves the others.
"""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from fedbench.bench.config.dotted import flatten
from fedbench.bench.execution.arithmetic import arithmetic
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import OnRound, Watcher, execute, points_of
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.results.trackers import Begun, Tracking
from fedbench.bench.system.errors import DataError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, atomic_write_text, copy_folder
from fedbench.bench.system.numerics import measure
from fedbench.bench.system.regime import TF32, reproducible
from fedbench.bench.training.checkpoint import load_checkpoint, newest_first
from fedbench.bench.training.history import History, RoundRecord
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.platforms import ARITHMETIC, parts_apart

_TAKEN = "taken-from"
"""File in a folder whose weights were, or were to be, taken from the run that it names."""


def trained_before(
    rows: Iterable[Row], store: Store, experiment: Experiment, device: str
) -> Row | None:
    """Return a finished row whose checkpoint has the weights of a run; None without one.

    Evaluations between rounds need the training. `device` is a type, `cpu` or `cuda`.
    """
    config, identity = experiment.config, experiment.ids.training
    alike = [row for row in rows if row.training_id == identity and row.status == "ok"]
    if not alike or config.evaluation.between_rounds:
        return None
    name = str(measure(device, config.client.precision == TF32))
    alike = [
        row
        for row in alike
        if row.platform == name and newest_first(store.cell_dir(store.key(row)))
    ]
    if not alike:
        return None
    with reproducible(device):
        here = [{ARITHMETIC: arithmetic(experiment.setup, torch.device(device))}]
    return min(
        (row for row in alike if "training" not in parts_apart(row.platforms, here)),
        key=lambda row: (row.finished_at, row.row_id),
        default=None,
    )


def train(
    store: Store,
    rows: Iterable[Row],
    experiment: Experiment,
    where: Where,
    tracking: Tracking,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Row:
    """Execute a run; if one of the rows has its weights, measure these, with their cost.

    Trackers hear of its beginning and its rounds; the caller passes them the end.
    """

    def ended(record: RoundRecord, total: int) -> None:
        tracking.round(flatten(record.as_dict()))
        if on_round is not None:
            on_round(record, total)

    if tracking.names:
        ids, origin = experiment.ids, experiment.origin
        named = (origin.preset, experiment.data.name, origin.study_id)
        begun = Begun(ids.row, ids.config, experiment.config, *named)
        tracking.begin(begun, points_of(where.folder))
    earlier = trained_before(rows, store, experiment, where.devices[0].partition(":")[0])
    if earlier is None or not take_weights(store, earlier, where.folder):
        _drop_taken(where.folder)
        return execute(experiment, where, ended, watcher)
    origin = replace(experiment.origin, measured_from=earlier.row_id)
    row = execute(experiment.under(origin), where, ended, watcher)
    peak = max(row.peak_memory_bytes or 0, earlier.peak_memory_bytes or 0)
    return row.model_copy(update={"resumes": earlier.resumes, "peak_memory_bytes": peak})


def _drop_taken(folder: Path) -> None:
    """Delete weights that an interrupted call took from another run: this run is trained."""
    if (folder / _TAKEN).exists():
        for path in (*newest_first(folder), folder / "history.jsonl"):
            path.unlink(missing_ok=True)
        if (folder / "clients").exists():
            shutil.rmtree(folder / "clients")
        (folder / _TAKEN).unlink()


def take_weights(store: Store, row: Row, folder: Path) -> bool:
    """Copy the final checkpoint of a finished run into the folder of another run.

    False if a file of the run is missing or damaged; then nothing was written. A file that names
    the run comes first and the checkpoint last, so that `_drop_taken` finds what a kill left.
    """
    source = store.cell_dir(store.key(row))
    personal = PersonalStore(source / "clients")
    try:
        checkpoint = load_checkpoint(source, row.training_id or row.row_id)
        records = History(source).read(row.rounds_done or 0)
    except (StoreError, DataError):
        return False
    if checkpoint is None or checkpoint.rounds_done != row.rounds_done:
        return False
    rounds = checkpoint.state["personal_rounds"]
    if not all(personal.intact(int(client_id), index) for client_id, index in rounds.items()):
        return False
    newest = newest_first(source)[0]
    atomic_write_text(folder / _TAKEN, f"{row.row_id}\n")
    if rounds:
        copy_folder(source / "clients", folder / "clients")
    # What was measured between the rounds belongs to the other run's evaluation.
    History(folder).write([replace(record, metrics={}) for record in records])
    atomic_write_bytes(folder / newest.name, newest.read_bytes())
    return True
