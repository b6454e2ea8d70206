"""The plugin interface: what a federated method is, and when each of its hooks runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor

from fedbench.bench.config import Strict
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.data.views.views import MEAN, STD
from fedbench.bench.method.net import Net
from fedbench.bench.method.sharing import Extra, Sharing
from fedbench.bench.nn.optimizers import Optimizer

if TYPE_CHECKING:
    from fedbench.bench.nn.backbones import Backbone


class Labels(StrEnum):
    """Which labels the data layer lets a method see; every other label arrives as -1.

    `OPTIONAL`, `SOME` and `ALL` see the share `data.label_fraction`. Where it is 0, `OPTIONAL` sees
    none, `ALL` every label, and `SOME` is refused.
    """

    NONE = "none"
    OPTIONAL = "optional"
    SOME = "some"
    ALL = "all"


@dataclass(frozen=True)
class Needs:
    """What a method asks of the harness.

    Attributes:
        views: names of the augmented versions made of every image, in order (`bench.data.views`).
        labels: which labels the method sees.
        min_batch: smallest batch on which the loss is defined; smaller ones are left out.
        evaluate_on: whose encoder is evaluated: the server's, or each client's own.
        encoders: parts that k-NN and linear probe judge beside `encoder`, by their metrics' prefix.
        pixels: what the encoder takes, [-1, 1] or [0, 1]; `encode` is given the former in any case.
        pooled: one client holds the data of all: a reference, not a federated method.
        keep_optimizer: each client's optimizer state lives on to its next round.
        preparatory_rounds: rounds in front of the configured ones, counted in traffic only.
        least_rounds: with fewer configured rounds a phase of the method would never come.
        single_uploads: hand `server_step` each client's tensors, at a cohort's cost in memory.
        extras: what `after_local` may send up, by name, and `activations` if the loss computes
            through server-only parts. Whatever is not named here stops the run.
    """

    views: tuple[str, ...]
    labels: Labels = Labels.NONE
    min_batch: int = 1
    evaluate_on: Literal["server", "clients"] = "server"
    encoders: Mapping[str, str] = field(default_factory=dict)
    pixels: Literal["normalised", "unit"] = "normalised"
    pooled: bool = False
    keep_optimizer: bool = False
    preparatory_rounds: int = 0
    least_rounds: int = 0
    single_uploads: bool = False
    extras: Mapping[str, Extra] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSpec:
    """What `build` may know of the data.

    Attributes:
        image_shape: (C, H, W).
        num_classes, num_clients: C, K.
        labelled: whether the method sees any label: a head for classes is of use.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    num_clients: int
    labelled: bool = False


@dataclass(frozen=True)
class Client:
    """The client at work: its id in 0…K-1, the round, and its generator for this round."""

    id: int
    round: int
    rng: torch.Generator


@dataclass(frozen=True)
class Loss:
    """What `loss` returns.

    Attributes:
        total: scalar that is differentiated.
        features: per view, the encoder's output (B, D); add-ons work on it.
        parts: named scalars for the log, without gradient.
        keep: tensors handed to `after_step`, without gradient.
    """

    total: Tensor
    features: tuple[Tensor, ...] = ()
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    keep: Mapping[str, Tensor] = field(default_factory=dict)

    def plus(self, name: str, value: Tensor) -> Loss:
        """This loss with one more term, which is logged under `name`."""
        parts = {**self.parts, name: value.detach()}
        return replace(self, total=self.total + value, parts=parts)


@dataclass(frozen=True)
class Upload:
    """What the server keeps of one client's round, besides the streamed sum.

    Attributes:
        client_id: who sent it.
        num_examples: images trained on.
        extras: what `after_local` returned, and `activations` that server-only parts got, (N, …).
        weights: shared tensors by name; empty unless `Needs.single_uploads`.
    """

    client_id: int
    num_examples: int
    extras: Mapping[str, Tensor]
    weights: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """The server at work: the round, its generator, and optimizers that live as long as the run.

    `restored` holds states of optimizers from a checkpoint until they are asked for. Numbers that
    `server_step` puts into `log` stand among the loss terms of the round's record.
    """

    round: int
    rng: torch.Generator
    optimizers: dict[str, Optimizer]
    restored: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: dict[str, float] = field(default_factory=dict)

    def optimizer(self, name: str, make: Callable[[], Optimizer]) -> Optimizer:
        """The optimizer of this name, made on first use and kept (also in checkpoints)."""
        if name not in self.optimizers:
            self.optimizers[name] = make()
            if name in self.restored:
                self.optimizers[name].load_state_dict(self.restored.pop(name))
        return self.optimizers[name]


@dataclass(frozen=True)
class RoundPlan:
    """Who takes part, for how many local epochs (0: only the other hooks), with which own rate."""

    local_epochs: int
    cohort: Literal["sampled", "all", "labelled"] = "sampled"
    optimizer: Literal["sgd", "adam"] | None = None
    lr: float | None = None


class Method(Strict, ABC):
    """A federated learning method: its fields are its hyperparameters, its methods are hooks.

    A method holds no state. Whatever changes during a run lives in the `Net` that `build` returns,
    and `sharing` says of each of its tensors who holds it and when it travels. One round, for each
    client k of the cohort:

        net  <- the server's tensors, then k's personal ones
        data <- before_local(net, data_k, client)
        for batch in data: loss -> backward -> optimizer step -> after_step
        up   <- after_local(net, data, client)

    and then, on the server: average, write own rows, `server_step`. Traps:

    * A parameter whose rule is BROADCAST or SERVER_ONLY gets no gradient on a client, and on the
      server only after `requires_grad_(True)` in `server_step`.
    * `loss` must not edit `net`; hand tensors to `after_step` through `Loss.keep`.
    * Draw from `client.rng` and `server.rng` only.
    * `ema_decay`, wherever it appears, is the share of the OLD target that is kept.
    * Tensors that the optimizer does not train but the method edits (targets, memories) must have
      `requires_grad=False` or be buffers, or weight decay would touch them.
    """

    name: ClassVar[str] = ""
    relabels: ClassVar[bool] = False  # `before_local` leaves no hidden label

    @abstractmethod
    def needs(self) -> Needs:
        """Views per image, visible labels, and whose encoder is evaluated."""

    @abstractmethod
    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Every tensor of a run, on server and clients. The part "encoder" is what is evaluated."""

    @abstractmethod
    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """The loss of one batch. Pure: apart from batch-norm statistics it changes nothing."""

    def encode(self, net: Net, images: Tensor) -> Tensor:
        """(B, C, H, W), normalised -> (B, D) features for k-NN and the linear probe."""
        x = images * STD + MEAN if self.needs().pixels == "unit" else images
        return net(x, "encoder")  # type: ignore[no-any-return]

    def embed(self, net: Net, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, d) projections for alignment and uniformity."""
        return (
            net(images, "encoder", "projector") if "projector" in net else self.encode(net, images)
        )

    def sharing(self) -> Mapping[str, Sharing]:
        """Pattern of `state_dict` names -> rule; the first that matches wins. Default: FedAvg."""
        return {"*": Sharing.AVERAGED}

    def plan_round(self, round_index: int, default: RoundPlan) -> RoundPlan:
        """Who takes part and for how many local epochs."""
        return default

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Prepare, and choose what to train on (pseudo-labels); its length weighs the client."""
        return data

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """After each optimizer step: moving averages, memories. The only hook that edits `net`."""

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """What goes up besides the shared tensors: centroids, counts; `Needs.extras` names it."""
        return {}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """After aggregation: edit the server's net in place. `uploads` come in client-id order."""


class AddOn(Method):
    """A method that wraps another one: every hook goes to `base` unless the add-on overrides it."""

    base: SerializeAsAny[Method]

    def needs(self) -> Needs:
        """What the base needs."""
        return self.base.needs()

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """The base's net; add parts to it."""
        return self.base.build(backbone, data)

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """The base's loss; add terms to it."""
        return self.base.loss(net, batch, client)

    def encode(self, net: Net, images: Tensor) -> Tensor:
        """The base's features."""
        return self.base.encode(net, images)

    def embed(self, net: Net, images: Tensor) -> Tensor:
        """The base's projections."""
        return self.base.embed(net, images)

    def sharing(self) -> Mapping[str, Sharing]:
        """The base's table; put the add-on's rows in front of it."""
        return self.base.sharing()

    def plan_round(self, round_index: int, default: RoundPlan) -> RoundPlan:
        """The base's plan."""
        return self.base.plan_round(round_index, default)

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """The base's preparation."""
        return self.base.before_local(net, data, client)

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """The base's bookkeeping."""
        self.base.after_step(net, out, client)

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """The base's extras."""
        return self.base.after_local(net, data, client)

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """The base's server step."""
        self.base.server_step(net, uploads, server)
