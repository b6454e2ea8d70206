"""Personal tensors of clients on disk: an immutable file per client and round, the last two kept.

A file holds the client's personal tensors, and the optimizer's state for methods that keep it. Both
checkpoints of a run find the files that they name. Only the client that trains is in memory.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes

_TENSORS = "personal"
_CLIENT, _ROUND = "client", "round"


class Private(Protocol):
    """What a server may ask about clients' own tensors, which it does not read."""

    def intact(self, client_id: int, round_index: int) -> bool:
        """Return True if what the client needs to go on after a round can be read."""

    def keep(self, *rounds_done: float) -> None:
        """Delete all files but those that checkpoints after so many rounds name: the last before.

        inf = each client's last one.
        """

    def moved(self, client_id: int, round_index: int, first: Tensor) -> float:
        """Return how far a client's tensors are from the `first` ones: `relative_movement`."""


class PersonalStore(Private):
    """Files `<client>-<round>.safetensors`; a checkpoint names the round that counts per client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self, client_id: int, round_index: int, vector: Tensor, optimizer: Optimizer | None = None
    ) -> None:
        """Write a client's file of a round: tensors, (personal_size,), and an optimizer's state."""
        tensors = {_TENSORS: vector}
        # One file for both, so that no crash leaves tensors of one round beside moments of another.
        if optimizer is not None:
            kind = type(optimizer).__name__
            for index, values in optimizer.state_dict()["state"].items():
                tensors |= {f"{kind}/{index}/{key}": value for key, value in values.items()}
        data = tensor_files.encode({_CLIENT: client_id, _ROUND: round_index}, tensors)
        atomic_write_bytes(self._path(client_id, round_index), data)

    def load(self, client_id: int, round_index: int) -> Tensor:
        """Return a client's personal tensors after a round, (personal_size,).

        Raises:
            StoreError: if the file is missing or torn.
        """
        return self._read(client_id, round_index, _TENSORS)[_TENSORS]

    def intact(self, client_id: int, round_index: int) -> bool:
        """As `Private.intact`."""
        try:
            self.load(client_id, round_index)
        except StoreError:
            return False
        return True

    def moved(self, client_id: int, round_index: int, first: Tensor) -> float:
        """As `Private.moved`."""
        return relative_movement(first.cpu(), self.load(client_id, round_index))

    def latest(self, client_id: int, rounds: Mapping[int, int], first: Tensor) -> Tensor:
        """Return a client's newest tensors, of its round in `rounds`, or the `first` ones."""
        return self.load(client_id, rounds[client_id]) if client_id in rounds else first

    def load_optimizer(
        self, client_id: int, round_index: int, kind: str
    ) -> dict[int, dict[str, Tensor]]:
        """Return the state of an optimizer of class `kind`: for each parameter, tensors by name.

        Raises:
            StoreError: if the file is missing or torn.
        """
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in self._read(client_id, round_index, f"{kind}/").items():
            _, index, key = name.split("/")
            state.setdefault(int(index), {})[key] = value
        return state

    def _read(self, client_id: int, round_index: int, prefix: str) -> dict[str, Tensor]:
        path = self._path(client_id, round_index)
        try:
            meta, tensors = tensor_files.read(path, prefix)
            if meta != (expected := {_CLIENT: client_id, _ROUND: round_index}):
                raise ValueError(f"it is of {meta}, not {expected}")
            return tensors
        except (OSError, ValueError) as err:
            raise StoreError(
                f"{path}: cannot read the client's own tensors ({err}); remove the folder"
                f" {path.parent.parent} to start the run from its first round"
            ) from err

    def drop(self, client_id: int, round_index: int) -> None:
        """Delete the file of a round that nothing needs any more."""
        self._path(client_id, round_index).unlink(missing_ok=True)

    def keep(self, *rounds_done: float) -> None:
        """As `Private.keep`."""
        for client_id, stored in self.rounds().items():
            earlier = ([index for index in stored if index < done] for done in rounds_done)
            named = {index for indices in earlier for index in indices[-1:]}
            for round_index in {*stored} - named:
                self.drop(client_id, round_index)

    def rounds(self) -> dict[int, list[int]]:
        """Return by client the rounds of its files, ascending."""
        rounds: dict[int, list[int]] = {}
        for path in self._folder.glob("*-*.safetensors"):
            client_id, round_index = map(int, path.stem.split("-"))
            rounds.setdefault(client_id, []).append(round_index)
        return {client_id: sorted(stored) for client_id, stored in rounds.items()}

    def _path(self, client_id: int, round_index: int) -> Path:
        return self._folder / f"{client_id}-{round_index}.safetensors"


def relative_movement(before: Tensor, after: Tensor) -> float:
    """Distance between two states (P,) of flat weights over the length of the first.

    0 if and only if no weight changed; infinite for movement away from all zeros; NaN or infinite
    if the weights are.
    """
    moved = float(torch.linalg.vector_norm(after - before, dtype=torch.float64))
    length = float(torch.linalg.vector_norm(before, dtype=torch.float64))
    if length == 0.0 and moved > 0.0:
        return math.inf
    return moved / length if length else moved
