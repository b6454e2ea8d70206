"""What belongs to a client alone, on disk: one immutable file per client, the last round's.

A file holds the client's personal tensors, for methods that keep it the optimizer's state, and what
the client handed to the server with it. A round that was cut short therefore goes on behind the
clients that it had done, and their tensors of the round before are needed no more. Only the client
at work is in memory; the others' files stay in the system's page cache as long as there is room, so
that many small clients cost no disk access and many large ones no memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes

_TENSORS = "personal"
_SENT = "sent/"
_REPORT = "report"


class PersonalStore:
    """Files `<client>-<round>.safetensors`; a checkpoint names the round that counts per client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self,
        client_id: int,
        round_index: int,
        vector: Tensor,
        optimizer: Optimizer | None = None,
        report: Mapping[str, Any] | None = None,
        sent: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write one client's file of a round.

        Args:
            client_id: whose.
            round_index: which round.
            vector: (personal_size,).
            optimizer: whose state is kept.
            report: what else the client says of the round; JSON.
            sent: tensors that it sends up.
        """
        tensors = {_TENSORS: vector}
        tensors |= {_SENT + name: value for name, value in (sent or {}).items()}
        if optimizer is not None:
            kind = type(optimizer).__name__
            for index, values in optimizer.state_dict()["state"].items():
                for key, value in values.items():
                    if value is not None:
                        tensors[f"{kind}/{index}/{key}"] = torch.as_tensor(value)
        flat = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
        data = save(flat, metadata={_REPORT: json.dumps(report)})
        atomic_write_bytes(self._path(client_id, round_index), data)

    def load(self, client_id: int, round_index: int) -> Tensor:
        """Read a client's vector back.

        Raises:
            StoreError: if the file is missing or torn.
        """
        return self._read(client_id, round_index, _TENSORS)[0][_TENSORS]

    def handed_over(
        self, client_id: int, round_index: int
    ) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The report and the tensors sent of a round that the client has done, else None.

        Raises:
            StoreError: if the file is torn.
        """
        if not self._path(client_id, round_index).exists():
            return None
        tensors, report = self._read(client_id, round_index, _SENT)
        return report, {name.removeprefix(_SENT): value for name, value in tensors.items()}

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
        for name, value in self._read(client_id, round_index, f"{kind}/")[0].items():
            _, index, key = name.split("/")
            state.setdefault(int(index), {})[key] = value
        return state

    def _read(
        self, client_id: int, round_index: int, prefix: str
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self._path(client_id, round_index)
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                if _TENSORS not in names:
                    raise KeyError(_TENSORS)
                tensors = {n: file.get_tensor(n) for n in names if n.startswith(prefix)}
                return tensors, json.loads(file.metadata()[_REPORT])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as err:
            raise StoreError(
                f"{path}: cannot read the client's own tensors ({err}); remove the folder"
                f" {path.parent.parent} to start the run afresh"
            ) from err

    def drop(self, client_id: int, round_index: int | None) -> None:
        """Delete the file of a round that has been followed by another; None = there was none."""
        if round_index is not None:
            self._path(client_id, round_index).unlink(missing_ok=True)

    def keep_latest(self) -> None:
        """Delete all but each client's last file, once a run has ended."""
        rounds: dict[int, list[int]] = {}
        for path in self._folder.glob("*-*.safetensors"):
            client_id, round_index = map(int, path.stem.split("-"))
            rounds.setdefault(client_id, []).append(round_index)
        for client_id, found in rounds.items():
            for round_index in sorted(found)[:-1]:
                self.drop(client_id, round_index)

    def _path(self, client_id: int, round_index: int) -> Path:
        return self._folder / f"{client_id}-{round_index}.safetensors"
