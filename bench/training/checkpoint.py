"""Checkpoints of a run: one checksummed file per round, of which the last two are kept."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes

_log = logging.getLogger(__name__)
_NUM_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """State of a run between two rounds.

    Attributes:
        rounds_done: number of rounds that are done.
        tensors: by name.
        state: everything that is not a tensor, as JSON values.
    """

    rounds_done: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, then delete all but the last two.

    The file's name carries the SHA-256 of its content, so a torn or altered file is recognised.

    Raises:
        StoreError: if it cannot be written; the earlier ones are then still there.
    """
    data = tensor_files.encode({"state": checkpoint.state}, checkpoint.tensors)
    written = folder / f"round-{checkpoint.rounds_done:08d}-{_digest(data)}.safetensors"
    atomic_write_bytes(written, data)
    # Other files of this round or a later one are damaged: the run would have resumed from them.
    paths = _newest_first(folder)
    earlier = [path for path in paths if _round(path) < checkpoint.rounds_done]
    for path in {*paths} - {written, *earlier[: _NUM_KEPT - 1]}:
        path.unlink(missing_ok=True)


def load_checkpoint(folder: Path, row_id: str) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, or None.

    A torn one is skipped with a warning: resuming a round earlier gives the same bits, only later.

    Raises:
        StoreError: if the checkpoint belongs to another run, or cannot be read at all.
    """
    for path in _newest_first(folder):
        try:
            digest = _digest(path.read_bytes())
        except OSError as err:
            raise StoreError(f"cannot read checkpoint {str(path)!r}: {err.strerror}") from err
        if digest != path.stem.rsplit("-", 1)[1]:
            _log.warning("checkpoint %s is torn or altered; going back one round", path)
            continue
        try:
            meta, tensors = tensor_files.read(path)
            state = meta["state"]
        except (OSError, KeyError, ValueError) as err:
            raise StoreError(f"checkpoint {str(path)!r} is not one of fedbench's: {err}") from err
        if state.get("row_id") != row_id:
            raise StoreError(
                f"checkpoint {str(path)!r} belongs to run {state.get('row_id')}, not {row_id};"
                " remove it or choose another store"
            )
        return Checkpoint(_round(path), tensors, state)
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _round(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*-*.safetensors"), reverse=True)
