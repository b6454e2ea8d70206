"""Local training of one client: the inner part of a round, in whatever process it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedbench.bench.config import ClientConfig
from fedbench.bench.ledger import Ledger
from fedbench.bench.method import Client
from fedbench.bench.personal import PersonalStore
from fedbench.bench.seeding import generator, scope
from fedbench.bench.setup import Setup


@dataclass(frozen=True)
class Task:
    """One client's part of a round.

    Attributes:
        client_id: whose data.
        round_index: which round.
        local_epochs: passes over the data.
        personal_round: the round that left the client's personal tensors; None = first time.
    """

    client_id: int
    round_index: int
    local_epochs: int
    personal_round: int | None


@dataclass(frozen=True)
class Trained:
    """What comes back besides the uploaded tensors.

    Attributes:
        client_id: who trained.
        num_examples: images it trained on.
        num_steps: optimizer steps it made.
        loss: mean loss over its steps; NaN if it made none.
        finite: whether every loss was finite.
        parts: means of the logged terms.
        extras: what `after_local` sends up.
        wire: activations and gradients that crossed, in bytes.
        stored_personal: whether personal tensors of this round were stored.
    """

    client_id: int
    num_examples: int
    num_steps: int
    loss: float
    finite: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    wire: Ledger = field(default_factory=Ledger)
    stored_personal: bool = False


def make_optimizer(
    config: ClientConfig, parameters: list[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The client optimizer, fresh: its state does not outlive the round."""
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )


class ClientRunner:
    """Trains clients one after another on one net.

    On a CPU torch runs on one thread here: a client's bits then do not depend on the number of
    workers, and cores are used by running several clients at once.

    Args:
        setup: the run.
        device: where to train.
        personal_dir: where clients' personal tensors are kept.
    """

    def __init__(self, setup: Setup, device: torch.device, personal_dir: Path) -> None:
        self.setup = setup
        self.device = device
        net = setup.make_net()
        self.layout = setup.layout(net)
        self.binding = self.layout.bind(net, device)
        self._personal = PersonalStore(personal_dir)
        self._first_personal = self.binding.personal.data.clone()

    def run(self, task: Task, server: Tensor, out: Tensor) -> Trained:
        """Train one client from the server's vector and write its upload to `out`.

        Args:
            task: whom to train.
            server: (server_size,), read only.
            out: (upload_size,), overwritten.
        """
        setup, binding, config = self.setup, self.binding, self.setup.config
        method, needs, net = setup.method, setup.method.needs(), binding.net
        seed, k, r = config.seed, task.client_id, task.round_index
        binding.server.data.copy_(server)
        self._load_personal(task)
        net.wire.up = net.wire.down = 0
        client = Client(k, r, generator(seed, "client", r, k))
        data = setup.client_data(k, self.device)
        losses: list[Tensor] = []
        parts: dict[str, Tensor] = {}
        with scope(seed, "client-global", r, k):
            net.train()
            own = method.before_local(net, data, client)
            optimizer = make_optimizer(config.client, binding.trained(k))
            for batch in own.batches(
                needs.views,
                task.local_epochs,
                config.client.batch_size,
                keep_last=config.client.keep_last_batch,
                min_batch=setup.min_batch,
                order=generator(seed, "order", r, k),
                augment=generator(seed, "views", r, k),
            ):
                binding.zero_grad()
                loss = method.loss(net, batch, client)
                loss.total.backward()
                optimizer.step()
                with torch.no_grad():
                    method.after_step(net, loss, client)
                losses.append(loss.total.detach())
                for name, value in loss.parts.items():
                    parts[name] = parts.get(name, torch.zeros_like(value)) + value
            with torch.no_grad():
                sent = method.after_local(net, own, client)
                # Copies: the net's own memory is overwritten by the next client.
                extras = {name: value.detach().cpu().clone() for name, value in sent.items()}
        stored = self._store_personal(task)
        self.layout.pack(binding.server.data, k, out)
        steps = len(losses)
        mean = float(torch.stack(losses).double().mean()) if steps else math.nan
        wire = Ledger({"activations": net.wire.up}, {"activations": net.wire.down})
        return Trained(
            client_id=k,
            num_examples=len(own),
            num_steps=steps,
            loss=mean,
            finite=steps == 0 or (math.isfinite(mean) and bool(out.isfinite().all())),
            parts={name: float(value) / steps for name, value in parts.items()},
            extras=extras,
            wire=wire if net.wire.up or net.wire.down else Ledger(),
            stored_personal=stored,
        )

    def _load_personal(self, task: Task) -> None:
        if not self.layout.personal_size:
            return
        own = self._first_personal
        if task.personal_round is not None:
            own = self._personal.load(task.client_id, task.personal_round)
        self.binding.personal.data.copy_(own)

    def _store_personal(self, task: Task) -> bool:
        if not self.layout.personal_size:
            return False
        self._personal.save(task.client_id, task.round_index, self.binding.personal.data)
        return True
