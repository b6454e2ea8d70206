"""Renewal of a store of an earlier form: its rows under the ids that they have today.

Until schema 4 an id was a hash of all settings, so that a new field made strangers of stored runs.
"""

import json
from pathlib import Path

from fedbench.bench.method import registry
from fedbench.bench.method.ids import config_id, row_id, training_id
from fedbench.bench.results.store.former import FORMER, former_ids, is_former
from fedbench.bench.results.store.row import SCHEMA_VERSION, Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import FedbenchError, StoreError
from fedbench.bench.system.files import atomic_write_text, copy_folder
from fedbench.bench.training.checkpoint import (
    Checkpoint,
    newest_first,
    read_checkpoint,
    save_checkpoint,
)


def renew(source: Store, root: Path) -> Store:
    """Write the runs of a store to a folder that is not there yet, under their new ids.

    Studies are copied as they are: their trials can be read, and new ones begin a new study.

    Raises:
        StoreError: for a run whose method or settings this installation does not know.
    """
    target, ids = Store(root), dict[str, str]()
    renewed = {source.key(row): _renewed(row) for row in source.rows()}
    ids = {key.partition("@")[0]: row.row_id for key, row in renewed.items()}
    for key, row in renewed.items():
        origin = row.measured_from
        row = row.model_copy(update={"measured_from": ids.get(origin or "", origin)})
        if not target.write_row(row):
            target.write_replica(row)
        _copy_cell(source.cell_dir(key), target.cell_dir(target.key(row)), row)
        target.take_packed_curve(target.key(row), source, key)
    if (source.root / "trials").is_dir():
        copy_folder(source.root / "trials", root / "trials")
    known = {**former_ids(source.root / FORMER), **ids}
    atomic_write_text(root / FORMER, json.dumps(known, indent=0, sort_keys=True) + "\n")
    target.refresh()
    return target


def _renewed(row: Row) -> Row:
    if not is_former(row):
        return row
    try:
        config, revision = row.config, row.dataset_revision
        registry.parse_spec(config.spec)  # the defaults of its fields are not counted
        ids = {
            "row_id": row_id(config, revision),
            "config_id": config_id(config, revision),
            "training_id": training_id(config, revision),
        }
    except FedbenchError as err:
        raise StoreError(f"run {row.row_id} cannot be renewed: {err}") from err
    return row.model_copy(update={**ids, "schema_version": SCHEMA_VERSION})


def _copy_cell(source: Path, target: Path, row: Row) -> None:
    """Copy the curve and the weights of a run; checkpoints name the training that they are of."""
    if not source.is_dir():
        return
    copy_folder(source, target)
    for path in newest_first(target):
        try:
            checkpoint = read_checkpoint(path)
        except ValueError:  # damaged: it would have been passed over
            path.unlink()
            continue
        state = {**checkpoint.state, "row_id": row.training_id}
        save_checkpoint(target, Checkpoint(checkpoint.rounds_done, checkpoint.tensors, state))
