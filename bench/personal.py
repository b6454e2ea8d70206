"""What belongs to a client alone, on disk: one immutable file per client and round.

A file holds the client's personal tensors and, for methods that keep it, the optimizer's state.
Only the client at work is in memory; the others' files stay in the system's page cache as long as
there is room, so that many small clients cost no disk access and many large ones no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedbench.bench.errors import StoreError
from fedbench.bench.files import atomic_write_bytes
from fedbench.bench.optimizers import Optimizer

_TENSORS = "personal"


class PersonalStore:
    """Files `<client>-<round>.safetensors`; a checkpoint names the round that counts per client.

    A round that was cut short leaves files that no checkpoint names; they are overwritten with the
    same content when the round is done again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self,
        client_id: int,
        round_index: int,
        vector: Tensor,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Write one client's vector, (personal_size,), and its optimizer's state."""
        tensors = {_TENSORS: vector}
        if optimizer is not None:
            kind = type(optimizer).__name__
            for index, values in optimizer.state_dict()["state"].items():
                for key, value in values.items():
                    if value is not None:
                        tensors[f"{kind}/{index}/{key}"] = torch.as_tensor(value)
        data = save({name: each.detach().cpu().contiguous() for name, each in tensors.items()})
        atomic_write_bytes(self._path(client_id, round_index), data)

    def load(self, client_id: int, round_index: int) -> Tensor:
        """Read a client's vector back.

        Raises:
            StoreError: if the file is missing or torn.
        """
        return self._read(client_id, round_index, _TENSORS)[_TENSORS]

    def latest(self, client_id: int, rounds: Mapping[int, int], first: Tensor) -> Tensor:
        """A client's vector of the round that counts; the first one if it never trained."""
        return self.load(client_id, rounds[client_id]) if client_id in rounds else first

    def load_optimizer(
        self, client_id: int, round_index: int, kind: str
    ) -> dict[int, dict[str, Tensor]]:
        """Read an optimizer's state back: per parameter, tensors by name.

        Args:
            client_id: whose.
            round_index: of the file.
            kind: class of the optimizer; the state of another class is left alone.

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
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                if _TENSORS not in names:
                    raise KeyError(_TENSORS)
                return {name: file.get_tensor(name) for name in names if name.startswith(prefix)}
        except (OSError, SafetensorError, KeyError) as err:
            raise StoreError(
                f"{path}: cannot read the client's own tensors ({err}); remove the folder"
                f" {path.parent.parent} to start the run afresh"
            ) from err

    def prune(self, keep: Mapping[int, set[int]]) -> None:
        """Delete files of rounds that no checkpoint needs any more."""
        for (client_id, round_index), path in self._files().items():
            if round_index not in keep.get(client_id, set()):
                path.unlink(missing_ok=True)

    def keep_latest(self) -> None:
        """Delete all but each client's last file, once a run has ended."""
        latest: dict[int, set[int]] = {}
        for client_id, round_index in sorted(self._files()):
            latest[client_id] = {round_index}
        self.prune(latest)

    def _files(self) -> dict[tuple[int, int], Path]:
        found = {}
        for path in self._folder.glob("*-*.safetensors"):
            client_id, round_index = map(int, path.stem.split("-"))
            found[client_id, round_index] = path
        return found

    def _path(self, client_id: int, round_index: int) -> Path:
        return self._folder / f"{client_id}-{round_index}.safetensors"
