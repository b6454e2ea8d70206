"""Clients' personal tensors on disk: one immutable file per client and round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedbench.bench.errors import StoreError
from fedbench.bench.files import atomic_write_bytes


class PersonalStore:
    """Files `<client>-<round>.safetensors`; a checkpoint names the round that counts per client.

    A round that was cut short leaves files that no checkpoint names; they are overwritten with the
    same content when the round is done again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, client_id: int, round_index: int, vector: Tensor) -> None:
        """Write one client's vector, (personal_size,)."""
        data = save({"personal": vector.detach().cpu().contiguous()})
        atomic_write_bytes(self._path(client_id, round_index), data)

    def load(self, client_id: int, round_index: int) -> Tensor:
        """Read it back.

        Raises:
            StoreError: if the file is missing or torn.
        """
        path = self._path(client_id, round_index)
        try:
            return load(path.read_bytes())["personal"]
        except (OSError, SafetensorError, KeyError) as err:
            raise StoreError(
                f"{path}: cannot read the client's own tensors ({err}); remove the folder"
                f" {path.parent.parent} to start the run afresh"
            ) from err

    def prune(self, keep: Mapping[int, set[int]]) -> None:
        """Delete files of rounds that no checkpoint needs any more."""
        if not self._folder.exists():
            return
        for path in self._folder.glob("*-*.safetensors"):
            client_id, round_index = map(int, path.stem.split("-"))
            if round_index not in keep.get(client_id, set()):
                path.unlink(missing_ok=True)

    def _path(self, client_id: int, round_index: int) -> Path:
        return self._folder / f"{client_id}-{round_index}.safetensors"
