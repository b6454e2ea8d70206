"""Checkpoints of a run: one file per round, atomic, checksummed, the last two kept."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes

_log = logging.getLogger(__name__)
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run after some round.

    Attributes:
        rounds_done: how many rounds lie behind it.
        tensors: by name.
        state: everything that is not a tensor; JSON.
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
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors.items()
    }
    data = save(tensors, metadata={"state": json.dumps(checkpoint.state, sort_keys=True)})
    digest = hashlib.sha256(data).hexdigest()[:16]
    written = folder / f"round-{checkpoint.rounds_done:08d}-{digest}.safetensors"
    atomic_write_bytes(written, data)
    found = _newest_first(folder)
    # Files of this round or a later one are torn, or the run would have gone on from them.
    stale = [path for path in found[: found.index(written)] if path != written]
    stale += [path for path in found[found.index(written) + 1 :] if _round(path) == _round(written)]
    for path in stale:
        path.unlink(missing_ok=True)
    for path in _newest_first(folder)[_KEPT:]:
        path.unlink(missing_ok=True)


def load_checkpoint(folder: Path, row_id: str) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None.

    A torn one is passed over with a warning: the round before it gives the same bits, only later.

    Raises:
        StoreError: if the checkpoint belongs to another run, or cannot be read at all.
    """
    for path in _newest_first(folder):
        try:
            data = path.read_bytes()
        except OSError as err:
            raise StoreError(f"cannot read checkpoint {str(path)!r}: {err.strerror}") from err
        if hashlib.sha256(data).hexdigest()[:16] != path.stem.rsplit("-", 1)[1]:
            _log.warning("checkpoint %s is torn or altered; going back one round", path)
            continue
        try:
            with safe_open(path, "pt") as file:
                state = json.loads(file.metadata()["state"])
            tensors = load(data)
        except (SafetensorError, KeyError, TypeError, ValueError) as err:
            raise StoreError(f"checkpoint {str(path)!r} is not one of fedbench's: {err}") from err
        if state.get("row_id") != row_id:
            raise StoreError(
                f"checkpoint {str(path)!r} belongs to run {state.get('row_id')}, not {row_id};"
                " remove it or choose another store"
            )
        return Checkpoint(_round(path), tensors, state)
    return None


def _round(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*-*.safetensors"), reverse=True)
