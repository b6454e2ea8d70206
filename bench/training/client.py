"""Local training of one client, the same in every process."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedbench.bench.config import ClientConfig
from fedbench.bench.data.batches import Batch, ClientData, SecondBatches
from fedbench.bench.method import ACTIVATIONS, Client, Loss, RoundPlan
from fedbench.bench.method.blame import error_in_backward
from fedbench.bench.method.net import Wire
from fedbench.bench.method.sharing import check_sent
from fedbench.bench.nn.backbones import CHANNELS_LAST
from fedbench.bench.nn.compiled import CompiledParts
from fedbench.bench.nn.optimizers import SGD, Adam, Optimizer
from fedbench.bench.system.compute import all_finite, keep_freed_memory, of_machine, to_device
from fedbench.bench.system.errors import PluginError, expect
from fedbench.bench.system.regime import TF32, check_precision, products
from fedbench.bench.system.seeding import generator, scope
from fedbench.bench.training.compiled_step import CompiledStep
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup, least_batch


@dataclass(frozen=True)
class Task:
    """One client's part of a round."""

    client_id: int
    round_index: int  # from 0
    plan: RoundPlan
    personal_round: int | None = None  # which stored its personal tensors; None = none did
    pre_round: bool = False  # do not train, but send the statistics before the round
    max_steps: int | None = None  # local steps that its device has time for; None = all
    version: int | None = None  # the server step whose model it starts from; None = the present one

    def settings(self, config: ClientConfig) -> ClientConfig:
        """Return the configuration of local training in this round."""
        planned = {"optimizer": self.plan.optimizer, "lr": self.plan.lr}
        return config.model_copy(update={k: v for k, v in planned.items() if v is not None})


@dataclass(frozen=True)
class Trained:
    """Result of a client's part of a round besides the uploaded tensors."""

    client_id: int
    num_examples: int  # images it trained on
    num_steps: int
    loss: float  # mean loss over its steps; NaN if it made none
    finite: bool  # whether its losses, its upload and its own tensors are
    parts: Mapping[str, float] = field(default_factory=dict)  # means of the logged terms
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # of `after_local`
    wire: Ledger = field(default_factory=Ledger)  # extras, activations and gradients that crossed
    stored_personal: bool = False  # whether personal tensors or an optimizer's state were stored
    without_gradient: tuple[str, ...] = ()  # trained parts that the last step did not reach


@dataclass
class LocalRun:
    """One client's local training while it goes on."""

    task: Task
    client: Client  # for the hooks
    data: ClientData  # the images that `before_local` chose
    batches: Iterator[Batch]  # those that are left
    losses: list[Tensor] = field(default_factory=list)  # of the steps so far, scalars on the device
    parts: dict[str, Tensor] = field(default_factory=dict)  # sums of the logged terms so far

    def add(self, loss: Loss) -> None:
        """Record a step."""
        self.losses.append(loss.total.detach())
        for name, value in loss.parts.items():
            self.parts[name] = self.parts.get(name, torch.zeros_like(value)) + value


def make_optimizer(config: ClientConfig, parameters: list[torch.nn.Parameter]) -> Optimizer:
    """Return a new client optimizer."""
    if config.optimizer == "adam":
        return Adam(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


class ClientSide:
    """What one client holds: its images, and tensors of its own in a private folder.

    A simulation makes one of each client; a real client is the only one of its process.
    """

    def __init__(self, setup: Setup, client_id: int, folder: Path) -> None:
        self._setup, self.id, self._store = setup, client_id, PersonalStore(folder)

    def data(self, device: torch.device, images: Tensor | None = None) -> ClientData:
        """Return the images it trains on, and their visible labels: `Setup.client_data`."""
        return self._setup.client_data(self.id, device, images)

    def tensors(self, round_index: int) -> Tensor:
        """Return its personal tensors after a round, (personal_size,)."""
        return self._store.load(self.id, round_index)

    def moments(self, round_index: int, kind: str) -> dict[int, dict[str, Tensor]]:
        """Return its optimizer's state after a round: `PersonalStore.load_optimizer`."""
        return self._store.load_optimizer(self.id, round_index, kind)

    def keep(self, round_index: int, vector: Tensor, optimizer: Optimizer | None) -> None:
        """Store what stays with it after a round."""
        self._store.save(self.id, round_index, vector, optimizer)


class ClientRunner:
    """Trains clients one after another on one net.

    On a CPU torch runs on one thread here: a client's bits then do not depend on the number of
    workers, and cores are used by running several clients at once.

    Args:
        setup: the run.
        device: where the net lies.
        personal_dir: folder of the clients' personal tensors.
        images: all training images on the device; None = each client brings its own there.
        parts: where `client.compile`, the compiled parts of another runner; None = new ones.
    """

    def __init__(
        self,
        setup: Setup,
        device: torch.device,
        personal_dir: Path,
        images: Tensor | None = None,
        parts: CompiledParts | None = None,
    ) -> None:
        self.setup, self.device, self._images = setup, device, images
        precision = setup.config.client.precision
        check_precision(precision, device)
        self._tf32 = precision == TF32
        keep_freed_memory()
        net = setup.make_net(last=True)
        self.layout = layout = setup.layout(net)
        net.precision = precision
        self._order = self._places = None
        parts = CompiledParts(precision) if parts is None else parts
        if setup.config.client.compile:
            least = CHANNELS_LAST.start  # on a CPU, where oneDNN would write past its buffers
            wide = device.type == "cuda" or setup.backbone.width >= least
            layout, order = layout.for_steps(channels_last=wide)
            self._order, self._places = parts.places(order, device)
        self.binding = layout.bind(net, device)
        compiles, size = setup.config.client.compile, setup.config.client.batch_size
        self._compiled = CompiledStep(self.binding, parts, size) if compiles else None
        self._folder = personal_dir
        self._first_personal = self.binding.personal.data.clone()

    def run(self, task: Task, server: Tensor, out: Tensor) -> Trained:
        """Train a client from `server`, (server_size,), and overwrite `out`, (upload_size,)."""
        if task.pre_round:
            return self._pre_round(task, server)
        with self.regime(), self.draws_of(task):
            local = self.begin(task, server)
            optimizer = self.optimizer(local)
            for batch in local.batches:
                local.add(self.step(batch, local.client, optimizer))
            sent = self.after(local)
        return self.end(local, sent, optimizer, out)

    def regime(self) -> AbstractContextManager[None]:
        """Round products to TF32 inside the block if the run trains in it."""
        return products(tf32=True) if self._tf32 else nullcontext()

    def draws_of(self, task: Task) -> AbstractContextManager[None]:
        """Seed global generators for a client's part of a round, and restore them."""
        # Hooks draw from `client.rng`; layers that draw by themselves, as dropout, draw globally.
        return scope(self.setup.config.seed, "client-global", task.round_index, task.client_id)

    @torch.no_grad()
    def _pre_round(self, task: Task, server: Tensor) -> Trained:
        """Return the statistics that a client sends before a round; nothing is trained."""
        with self.regime(), self.draws_of(task):
            client, data = self._load(task, server)
            extras = _copies(self._answers(data, client))
        declared, wire = self.setup.needs.extras, Ledger()
        check_sent(self.setup.config.spec, declared, extras, activations=False)
        if kept := [name for name in extras if not declared[name].summed]:
            raise PluginError(
                f"method {self.setup.config.spec!r} sends {kept[0]!r} before a round, of which the"
                f' server keeps the sum only; declare extras={{"{kept[0]}": Extra(summed=True)}}'
            )
        wire.add_extras(extras, declared)
        finite = all(all_finite(value) for value in extras.values())
        return Trained(task.client_id, len(data), 0, math.nan, finite, extras=extras, wire=wire)

    def begin(self, task: Task, server: Tensor) -> LocalRun:
        """Load a client's tensors and images; `before_local` has run when this returns."""
        client, data = self._load(task, server)
        if self.setup.needs.pre_round:
            client = replace(client, answers=self._answers(data, client))
        net = self.binding.net.train()
        chosen = self.setup.method.before_local(net, data, client)
        expect(chosen, ClientData, "before_local()")
        return LocalRun(task, client, chosen, self._batches(chosen, task, client))

    def optimizer(self, local: LocalRun) -> Optimizer:
        """Return a client's optimizer, with the state of its last round if that is kept."""
        task, parameters = local.task, self.binding.trained(local.client.id)
        optimizer = make_optimizer(task.settings(self.setup.config.client), parameters)
        if self.setup.needs.keep_optimizer and task.personal_round is not None:
            kind = type(optimizer).__name__
            state = self._side(task.client_id).moments(task.personal_round, kind)
            # Rates are of this round's plan; only moments are carried over.
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        return optimizer

    def step(self, batch: Batch, client: Client, optimizer: Optimizer) -> Loss:
        """Make one local step."""
        method, net, compiled = self.setup.method, self.binding.net, self._compiled
        # A compiled pass has the shapes of a full batch; the last one of an epoch may be smaller.
        full = len(batch.labels) == self.setup.config.client.batch_size
        if compiled is None or not full:
            self.binding.zero_grad()
        with compiled.gradients() if compiled is not None and full else nullcontext():
            loss = expect(method.loss(net, batch, client), Loss, "loss()")
            if not loss.total.requires_grad:
                raise PluginError("the loss depends on no tensor that clients train")
            try:
                loss.total.backward()
            except RuntimeError as err:
                if of_machine(err):
                    raise
                net.compiled = None

                def total() -> Tensor:
                    return method.loss(net, batch, client).total

                raise error_in_backward(err, self.setup.config.spec, total) from err
        optimizer.step()
        with torch.no_grad():
            method.after_step(net, loss, client)
        return loss

    @torch.no_grad()
    def after(self, local: LocalRun) -> dict[str, Tensor]:
        """Return the extras that a client sends after its last step, on the CPU."""
        return _copies(self.setup.method.after_local(self.binding.net, local.data, local.client))

    def end(
        self, local: LocalRun, extras: dict[str, Tensor], optimizer: Optimizer, out: Tensor
    ) -> Trained:
        """Write a client's upload to `out`, store what stays with it, and return its report."""
        setup, binding, net = self.setup, self.binding, self.binding.net
        needs, k, r = setup.needs, local.task.client_id, local.task.round_index
        wire = Ledger.of_wire(net.wire)
        check_sent(setup.config.spec, needs.extras, extras, activations=bool(wire.bytes_up))
        wire.add_extras(extras, needs.extras)
        if net.remote and net.wire.received:  # metered already, when they crossed
            extras[ACTIVATIONS] = torch.cat(net.wire.received).cpu()
        vector = binding.server.data
        self.layout.pack(vector if self._places is None else vector[self._places], k, out)
        steps = len(local.losses)
        mean = float(torch.stack(local.losses).double().mean()) if steps else math.nan
        finite = all_finite(out) and all_finite(binding.personal.data)
        trained = Trained(
            client_id=k,
            num_examples=len(local.data),
            num_steps=steps,
            loss=mean,
            # Without a step nothing is sent, so that nothing can spoil the average.
            finite=steps == 0 or (math.isfinite(mean) and finite),
            parts={name: float(value) / steps for name, value in local.parts.items()},
            extras=extras,
            wire=wire,
            stored_personal=bool(self.layout.personal_size) or needs.keep_optimizer,
            without_gradient=binding.parts_without_gradient() if steps else (),
        )
        if trained.stored_personal:
            state = optimizer if needs.keep_optimizer else None
            self._side(k).keep(r, binding.personal.data, state)
        return trained

    def _batches(self, data: ClientData, task: Task, client: Client) -> Iterator[Batch]:
        setup, config = self.setup, self.setup.config.client
        seed, k, r = setup.config.seed, task.client_id, task.round_index
        order, augment = generator(seed, "order", r, k), generator(seed, "views", r, k)
        others = setup.needs.second_batch
        # "companions" is what they were first called: another name would change the draws.
        second_batch = SecondBatches(data.images, others, generator(seed, "companions", r, k))
        left = task.max_steps
        for _ in range(task.plan.local_epochs):
            # The server of pfedae learns from the latents of the last epoch alone.
            self.binding.net.wire.received.clear()
            batches = data.batches(
                setup.needs.views,
                1,
                config.batch_size,
                keep_last=config.keep_last_batch,
                min_batch=least_batch(setup.config, setup.needs),
                order=order,
                augment=augment,
            )
            for batch in batches:
                if left == 0:
                    return
                left = None if left is None else left - 1
                draws = expect(setup.method.draws(len(batch.labels), client), Mapping, "draws()")
                yield replace(
                    batch,
                    draws={
                        n: to_device(expect(v, Tensor, f"{n!r} of draws()"), self.device)
                        for n, v in draws.items()
                    },
                    second_batch=second_batch.next(len(batch.labels)) if others else (),
                )

    @torch.no_grad()
    def _answers(self, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Return a client's statistics before a round; equal tensors give equal bits."""
        k, r = client.id, client.round
        # Asked again before the training, maybe in another process: the draws must be the same.
        client = Client(k, r, generator(self.setup.config.seed, "survey", r, k))
        return self.setup.method.pre_round(self.binding.net.eval(), data, client)

    def _load(self, task: Task, server: Tensor) -> tuple[Client, ClientData]:
        """Put the received and the personal tensors in place; return the client and its images."""
        k, r, stored = task.client_id, task.round_index, task.personal_round
        side = self._side(k)
        # The net's tensors are views of these vectors: two copies put the whole model in place.
        self.binding.server.data.copy_(server if self._order is None else server[self._order])
        if self.layout.personal_size:
            personal = self._first_personal if stored is None else side.tensors(stored)
            self.binding.personal.data.copy_(personal)
        self.binding.net.wire = Wire()
        client = Client(k, r, generator(self.setup.config.seed, "client", r, k))
        return client, side.data(self.device, self._images)

    def _side(self, client_id: int) -> ClientSide:
        return ClientSide(self.setup, client_id, self._folder)


def _copies(sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU; the net's own memory is overwritten by the next client."""
    values = expect(sent, Mapping, "what a client sends").items()
    tensors = {name: expect(value, Tensor, f"{name!r} of a client") for name, value in values}
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}
