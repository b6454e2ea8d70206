"""State of a run between two rounds: in memory, and in the folder that it is resumed from."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import sweep_temporary
from fedbench.bench.system.numerics import measure
from fedbench.bench.system.regime import TF32
from fedbench.bench.training.aggregate import optimized_size
from fedbench.bench.training.checkpoint import Checkpoint, checkpoints, save_checkpoint
from fedbench.bench.training.history import History, RoundRecord
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import PersonalStore, Private
from fedbench.bench.training.platforms import ARITHMETIC, parts_apart
from fedbench.bench.training.server_optimizers import server_optimizer
from fedbench.bench.training.setup import Setup

_log = logging.getLogger(__name__)
_METHODS = "method-optimizer"
_VERSIONS = "version"


class RunState:
    """Everything that a run carries from round to round.

    The folder holds the last two checkpoints, the history, and for each client the files that these
    two name: a damaged checkpoint or file takes the run one checkpoint back, from where it comes to
    the same bits again. A folder of another `training_id` than `identity` is refused.

    Attributes:
        layout, binding, vector: the net's tensors, and the server's vector, (server_size,).
        initial, first_personal: both vectors before the first round.
        optimizer: the server's; `method_optimizers` are those that `server_step` has asked for,
            `restored` the states of those that it has not yet asked for again.
        ledger: all messages so far. `history`: a record of each round.
        private: what clients keep, in the folder unless their engine says otherwise.
        personal_rounds: by client, the round of its file that counts.
        versions: vectors before earlier server steps, by index, that clients still work on.
        rounds_done, rounds_begun: preparatory rounds included.
        resumes: how often the run has gone on after an interruption.
        platforms: numerics of each machine that trained it, with the run's own `arithmetic`.
        train_seconds: over all attempts.
    """

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        identity: str,
        device: torch.device,
        arithmetic: Mapping[str, str] | None = None,
        private: Private | None = None,
    ) -> None:
        self.setup, self.folder, self.identity, self.device = setup, folder, identity, device
        self.binding = setup.bound(device)
        self.layout = self.binding.layout
        self.vector = self.binding.server.data
        self.initial = self.vector.clone()
        # Frozen tensors are in no checkpoint; their hash tells whether they are made again alike.
        self._frozen = self.binding.frozen_hash
        self.first_personal = self.binding.personal.data.clone()
        self.optimizer = server_optimizer(setup.config.server, optimized_size(self.layout), device)
        self.method_optimizers: dict[str, Optimizer] = {}
        self.restored: dict[str, dict[str, Any]] = {}
        self.ledger = Ledger()
        self.versions: dict[int, Tensor] = {}
        self.history: list[RoundRecord] = []
        self.private = private or PersonalStore(folder / "clients")
        self.personal_rounds: dict[int, int] = {}
        self.rounds_done = self.rounds_begun = self.resumes = 0
        self._after = 0  # rounds done at the last checkpoint
        here = measure(device.type, setup.config.client.precision == TF32)
        self.platforms: list[dict[str, Any]] = [here.as_dict()]
        if arithmetic:
            self.platforms[0][ARITHMETIC] = dict(arithmetic)
        self.train_seconds = 0.0
        self._records = History(folder)
        first_use.begin_run()
        self._resume()

    @property
    def total_rounds(self) -> int:
        """Number of configured rounds and the method's preparatory ones."""
        preparatory = self.setup.needs.preparatory_rounds
        return self.setup.config.federation.num_rounds + preparatory

    def save(self) -> None:
        """Write a checkpoint, and drop the files of clients that neither of the last two names."""
        tensors = {"server": self.vector}
        tensors |= {f"{_VERSIONS}/{index}": vector for index, vector in self.versions.items()}
        for name, value in self.optimizer.state().items():
            tensors[f"server-optimizer/{name}"] = value
        # A restored optimizer may not be in use yet.
        in_use = {name: made.state_dict() for name, made in self.method_optimizers.items()}
        optimizers = {**self.restored, **in_use}
        for name, optimizer_state in optimizers.items():
            for parameter, values in optimizer_state["state"].items():
                for key, value in values.items():
                    tensors[f"{_METHODS}/{name}/{parameter}/{key}"] = torch.as_tensor(value)
        state = {
            "row_id": self.identity,
            "server_steps": self.optimizer.step_count,
            "method_optimizers": {n: s["param_groups"] for n, s in optimizers.items()},
            "ledger": self.ledger.as_dict(),
            "personal_rounds": self.personal_rounds,
            "resumes": self.resumes,
            "platforms": self.platforms,
            "train_seconds": self.train_seconds,
            "after": self._after,
            "switched_off": first_use.switched_off(),
            "frozen": self._frozen,
        }
        save_checkpoint(self.folder, Checkpoint(self.rounds_done, tensors, state))
        self.private.keep(self._after, self.rounds_done)
        self._after = self.rounds_done

    def _resume(self) -> None:
        for folder in (self.folder, self.folder / "clients"):
            sweep_temporary(folder)
        usable = filter(self._has_personal, checkpoints(self.folder, self.identity))
        checkpoint = next(usable, None)
        # The history may be ahead of the checkpoint by the rounds that a kill cut off.
        self.history = self._records.rewind(checkpoint.rounds_done if checkpoint else 0)
        if checkpoint is None:
            return
        tensors, state = checkpoint.tensors, checkpoint.state
        if tensors["server"].shape != self.vector.shape:
            raise StoreError(
                f"{self.folder}: its checkpoint holds {tensors['server'].numel():,} numbers, the"
                f" method has {self.vector.numel():,} now; its code has changed: delete the folder"
            )
        self.binding.check_frozen(state["frozen"])
        self.rounds_done = self.rounds_begun = self._after = checkpoint.rounds_done
        self.vector.copy_(tensors["server"])
        for name, moment in self.optimizer.state().items():
            moment.copy_(tensors[f"server-optimizer/{name}"])
        self.optimizer.step_count = state["server_steps"]
        for name, groups in state["method_optimizers"].items():
            self.restored[name] = {"param_groups": groups, "state": {}}
        for path, value in tensors.items():
            if path.startswith(f"{_METHODS}/"):
                _, name, parameter, key = path.split("/")
                self.restored[name]["state"].setdefault(int(parameter), {})[key] = value
            elif path.startswith(f"{_VERSIONS}/"):
                self.versions[int(path.removeprefix(f"{_VERSIONS}/"))] = value.to(self.device)
        self.ledger = Ledger.from_dict(state["ledger"])
        self.personal_rounds = {int(k): index for k, index in state["personal_rounds"].items()}
        self.resumes = state["resumes"] + 1
        earlier = state["platforms"]
        # A run that goes on elsewhere names both machines, since their rounding may differ.
        here = self.platforms
        same = earlier[-1]["name"] == here[0]["name"]
        same &= "training" not in parts_apart(earlier[-1:], here)
        # Scores are those of this attempt, whose evaluation may be another.
        self.platforms = earlier[: -1 if same else None] + here
        self.train_seconds = state["train_seconds"]
        # Compared anew, a shortcut might pass this time, and the run would have other bits.
        first_use.switch_off(state["switched_off"])

    def _has_personal(self, checkpoint: Checkpoint) -> bool:
        """Return False, with a warning, if a client's file is lost that an earlier one replaces.

        Going back a checkpoint, that client trains again. Older files have no such remedy; the
        error that names it comes when they are read.
        """
        after = checkpoint.state["after"]
        for client_id, index in checkpoint.state["personal_rounds"].items():
            if index >= after and not self.private.intact(int(client_id), index):
                text = "%s: tensors of client %s after round %d are missing or damaged; going back"
                _log.warning(f"{text} to round %d", self.folder, client_id, index + 1, after)
                return False
        return True
