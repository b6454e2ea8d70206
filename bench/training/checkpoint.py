"""Checkpoints of a run: one checked tensor file per round, of which the last two are kept."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes

_log = logging.getLogger(__name__)
_NUM_KEPT = 2  # if one is damaged, the run goes on from the other
_ROUNDS = "rounds_done"


@dataclass(frozen=True)
class Checkpoint:
    """State of a run between two rounds; `state` has what is no tensor, as JSON values."""

    rounds_done: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, then delete all but the last two.

    Raises:
        StoreError: if it cannot be written; the earlier ones are then still there.
    """
    data = tensor_files.encode(
        {"state": checkpoint.state, _ROUNDS: checkpoint.rounds_done}, checkpoint.tensors
    )
    written = folder / f"round-{checkpoint.rounds_done:08d}.safetensors"
    atomic_write_bytes(written, data)
    # Other files of this round or a later one are damaged: the run would have resumed from them.
    paths = newest_first(folder)
    earlier = [path for path in paths if _round(path) < checkpoint.rounds_done]
    for path in {*paths} - {written, *earlier[: _NUM_KEPT - 1]}:
        path.unlink(missing_ok=True)


def checkpoints(folder: Path, identity: str) -> Iterator[Checkpoint]:
    """Yield the whole checkpoints of the run whose `training_id` is `identity`, the newest first.

    A damaged one is skipped with a warning: resuming from an earlier one gives the same bits.

    Raises:
        StoreError: if a checkpoint belongs to another training, or cannot be read at all.
    """
    for path in newest_first(folder):
        try:
            checkpoint = read_checkpoint(path)
        except OSError as err:
            raise StoreError(f"cannot read checkpoint {str(path)!r}: {err.strerror}") from err
        except ValueError as err:
            _log.warning("checkpoint %s: %s; going back to the one before", path, err)
            continue
        found = checkpoint.state.get("row_id")  # its name when every training had a row of its own
        if found != identity:
            raise StoreError(
                f"checkpoint {str(path)!r} belongs to training {found}, not {identity}; remove it"
                " or choose another store"
            )
        yield checkpoint


def load_checkpoint(folder: Path, identity: str) -> Checkpoint | None:
    """Return the first of `checkpoints`, or None."""
    return next(checkpoints(folder, identity), None)


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is torn, altered, or not the checkpoint that its name says.
    """
    meta, tensors = tensor_files.read(path)
    if meta.get(_ROUNDS) != _round(path):
        raise ValueError(f"it holds round {meta.get(_ROUNDS)}, which its name does not say")
    return Checkpoint(meta[_ROUNDS], tensors, meta["state"])


def newest_first(folder: Path) -> list[Path]:
    """Return the files of a run's checkpoints, the newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def rounds_saved(folder: Path) -> int:
    """Return the rounds, preparatory ones included, after which a run would continue."""
    return next(map(_round, newest_first(folder)), 0)


def _round(path: Path) -> int:
    return int(path.stem.split("-")[1])
