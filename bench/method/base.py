"""The plugin interface: the hooks of a federated method and the records that they exchange."""

from abc import ABC, abstractmethod, update_abstractmethods
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from inspect import isfunction
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import ConfigDict
from pydantic import dataclasses as checked
from torch import Tensor

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.data.views.views import MEAN, STD
from fedbench.bench.method.aggregator import Aggregator
from fedbench.bench.method.net import Net
from fedbench.bench.method.sharing import Extra, Sharing
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system.errors import ConfigError


class Labels(StrEnum):
    """The labels that the data layer shows to a method; every other label arrives as -1.

    All but `NONE` see the share `data.label_fraction`. Where it is 0, `OPTIONAL` sees none, `ALL`
    and `ONLY` see every label, and `SOME` is refused. Under `ONLY` clients train on the images
    whose label is visible, and on no other.
    """

    NONE = "none"
    OPTIONAL = "optional"
    SOME = "some"
    ALL = "all"
    ONLY = "only"


# Types are checked: views=("base") is a word and no tuple, and named an unknown view "b".
@checked.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Needs:
    """Requirements of a method, answered by `Method.needs`.

    Attributes:
        views: names of the augmented versions made of every image, in order (`bench.data.views`).
        labels: the labels that the method sees.
        min_batch: smallest batch on which the loss is defined; smaller ones are left out.
        evaluate_on: the encoder that is evaluated: the server's, or every client's.
        encoders: parts that k-NN and linear probe judge besides `encoder`, by the prefix of their
            metrics.
        pixels: range of the encoder's input, [-1, 1] or [0, 1]; `encode` gets the former either
            way.
        pooled: one client holds all the data: a reference, not a federated method.
        keep_optimizer: the state of a client's optimizer is kept for its next round.
        preparatory_rounds: rounds before the configured ones; they count in traffic only.
        least_rounds: smallest number of configured rounds that reaches every phase of the method.
        single_uploads: hand `server_step` each client's tensors; costs the memory of a cohort.
        second_batch: views of a second random batch of the client's images, which `loss` finds in
            `Batch.second_batch`.
        pre_round: names of the broadcast tensors that `server_pre_round` sets before a round, from
            sums over the statistics that `pre_round` returns on the cohort; they are then sent down
            once more. Empty = there are no such statistics.
        extras: declaration, by name, of everything that `after_local` and `pre_round` may send, and
            of `activations` if the loss computes through server-only parts. Sending anything else
            stops the run.
        mean_gradients: names of averaged buffers that hold means of gradients. In their mean every
            client counts the same, whatever `server.weighting` and `weigh` say. They reveal what
            trained weights do, which no rehearsal measures.
        capturable: `loss` and `after_step` make the same operations on tensors of the same shapes
            for every full batch of every client: no branch on values, no counter in Python, no
            draws but `Method.draws`. Lanes then record the step once and replay it.
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
    second_batch: tuple[str, ...] = ()
    pre_round: tuple[str, ...] = ()
    extras: Mapping[str, Extra] = field(default_factory=dict)
    mean_gradients: tuple[str, ...] = ()
    capturable: bool = False


@dataclass(frozen=True)
class DataSpec:
    """Facts about the data that `build` may use."""

    image_shape: tuple[int, int, int]  # (C, H, W)
    num_classes: int  # of the data set
    num_clients: int  # K
    labelled: bool = False  # at least one label is visible, so a classifier is of use

    def require_square(self, method: str, remedy: str = "") -> None:
        """Refuse images that `rotate90` cannot turn; `remedy` is a setting without turns."""
        height, width = self.image_shape[1:]
        if height != width:
            raise ConfigError(
                f"{method} turns images by quarters, so they must be square, but these are"
                f" {width}x{height} (width x height); set data.image_size={min(width, height)},"
                " which keeps their middle" + (f", or {remedy}" if remedy else "")
            )


@dataclass(frozen=True)
class Client:
    """The client that a hook runs on."""

    id: int  # 0…K-1
    round: int  # index of the round, from 0
    rng: torch.Generator  # CPU generator of this client in this round; a hook draws from it only
    # What the client's `pre_round` returned in this round; empty there. It is computed again for
    # the training, so it may not read what `server_pre_round` sets.
    answers: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """Result of `Method.loss`; parts, and what is kept, have no gradient."""

    total: Tensor  # scalar that is differentiated
    features: tuple[Tensor, ...] = ()  # per view, the encoder's output (B, D); add-ons work on it
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # named scalars for the log
    keep: Mapping[str, Tensor] = field(default_factory=dict)  # for `after_step`
    projections: tuple[Tensor, ...] = ()  # per view, what the loss compares, (B, d)

    def __post_init__(self) -> None:
        """Raise a TypeError in the method's line for what is no scalar, or no tuple of views."""
        if isinstance(self.features, Tensor) or isinstance(self.projections, Tensor):
            raise TypeError("Loss: features and projections must be tuples of a tensor per view")
        for name, value in {"total": self.total, **self.parts}.items():
            if not isinstance(value, Tensor) or value.numel() != 1:
                got = getattr(value, "shape", type(value).__name__)
                raise TypeError(f"Loss: {name} must be a tensor of one number (got {got})")

    def plus(self, name: str, value: Tensor) -> Self:
        """Return this loss with one more term, logged under `name`."""
        parts = {**self.parts, name: value.detach()}
        return replace(self, total=self.total + value, parts=parts)


@dataclass(frozen=True)
class Upload:
    """One client's contribution to a round, besides the sum that the server streams.

    Attributes:
        client_id, num_examples: the sender, and the number of images that it trained on.
        num_steps: optimizer steps that it stands for; 0 for a client whose images make no batch,
            which sends no weights and has no part in the average.
        extras: tensors returned by `after_local`, and `activations` that reached server-only parts
            in the last local epoch, (N, …).
        weights: shared tensors by name; empty unless `Needs.single_uploads`.
    """

    client_id: int
    num_examples: int
    num_steps: int
    extras: Mapping[str, Tensor]
    weights: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """Context of `server_step`.

    Attributes:
        round: index of the round, from 0.
        rng: CPU generator of the server in this round; `server_step` draws from it only.
        optimizers: those that `optimizer` has made; they live as long as the run.
        restored: states of optimizers from a checkpoint that `optimizer` has not yet asked for.
        log: numbers written here stand among the loss terms of the round's record.
        before: the server's tensors by name as the clients received them, not to be edited.
    """

    round: int
    rng: torch.Generator
    optimizers: dict[str, Optimizer]
    restored: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: dict[str, float] = field(default_factory=dict)
    before: Mapping[str, Tensor] = field(default_factory=dict)

    def optimizer(self, name: str, make: Callable[[], Optimizer]) -> Optimizer:
        """Return the optimizer of this name; the first call of a run makes it.

        Checkpoints hold its state.
        """
        if name not in self.optimizers:
            self.optimizers[name] = make()
            if name in self.restored:
                self.optimizers[name].load_state_dict(self.restored.pop(name))
        return self.optimizers[name]


@checked.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RoundPlan:
    """Participants and local training of one round."""

    local_epochs: int  # passes over a client's data; 0 runs the other hooks without training
    # A sample of all clients, all of them, or a sample of those with a visible label.
    cohort: Literal["sampled", "all", "labelled"] = "sampled"
    # Client optimizer of this round; None = the configured one.
    optimizer: Literal["sgd", "adam"] | None = None
    lr: float | None = None  # its learning rate; None = the configured one


class Method(Strict, ABC):
    """A federated learning method: its fields are hyperparameters, its methods are hooks.

    A method is frozen and holds no state. Everything that changes during a run lives in the `Net`
    that `build` returns, and `sharing` gives each of its tensors a rule: who holds it and when it
    travels. A round runs these hooks, on each client k of the cohort:

        net  <- the server's tensors, then the personal tensors of k
        data <- before_local(net, data_k, client)
        for batch in data: loss -> backward -> optimizer step -> after_step
        up   <- after_local(net, data, client)

    and then, on the server: the step of `server.optimizer` towards what the `aggregator` makes of
    the uploads (a mean, with the factors of `weigh`), own rows, `server_step`.
    With `Needs.pre_round` a round begins with `pre_round` on each client and `server_pre_round`.
    Only `needs`, `build` and `loss` have to be written; the other hooks default to FedAvg.

    Rules for every hook:

    * Do not edit `net` in `loss`; hand tensors to `after_step` through `Loss.keep`.
    * Draw random numbers from `client.rng` and `server.rng`. Global generators are seeded for a
      client's part of a round, the server's and each evaluation; a recorded step may not draw.
    * Give tensors that the method edits and the optimizer does not train (targets, memories)
      `requires_grad=False`, or register them as buffers; weight decay would change them otherwise.
    * A parameter under BROADCAST or SERVER_ONLY gets no gradient on a client, and on the server
      only after `requires_grad_(True)` in `server_step`.
    * Call the share of the OLD target that is kept `ema_decay`.
    """

    name: ClassVar[str] = ""
    """Name in the registry; `register` sets it."""

    relabels: ClassVar[bool] = False
    """True for a method whose `before_local` leaves no hidden label."""

    minimises_objective: ClassVar[bool] = False
    """True for a method whose loss is, up to weights, the objective by which settings are chosen: a
    high objective then says less of its encoder than of another method's."""

    objective_caution: ClassVar[str] = ""
    """What studies found against choosing the method's settings by the default objective; `tune`
    says it."""

    @abstractmethod
    def needs(self) -> Needs:
        """Return the method's requirements: views, labels, extras, encoders to evaluate.

        Called at any time, before and during a run; the answer depends on the fields alone.

        >>> from fedbench.bench.testing import example
        >>> example("byol").method.needs().encoders
        {'target': 'target_encoder'}
        """

    @abstractmethod
    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make every tensor of a run: all that the server and any one client hold.

        Called in every process of a run, always with the same result: initial weights are drawn
        from torch's global generator, which is seeded for the call. The part called "encoder" is
        evaluated.

        Args:
            backbone: makes the encoder, `backbone.make()`, and norms that match it.
            data: facts about the data; the data themselves stay out of reach.

        >>> from fedbench.bench.testing import example
        >>> of = example("simclr")
        >>> list(of.method.build(of.setup.backbone, of.setup.spec))
        ['encoder', 'projector']
        """

    def draws(self, batch_size: int, client: Client) -> Mapping[str, Tensor]:
        """Return random numbers and other values of the client that one step reads.

        Runs on a client before every step; `loss` gets the result as `Batch.draws`, on its device.
        With `Needs.capturable` the step reads the client in no other way, since one recording of it
        serves all clients. The tensors are on the CPU, of shapes that depend on `batch_size` alone.

        >>> from fedbench.bench.testing import example
        >>> of = example("rotpred")
        >>> {name: tuple(drawn.shape) for name, drawn in of.method.draws(4, of.client).items()}
        {'turns': (4,)}
        """
        return {}

    @abstractmethod
    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the loss of one batch.

        Runs on a client for every batch, in training mode. It may draw from `client.rng` and update
        batch-norm statistics by its passes; it changes nothing else.

        >>> from fedbench.bench.testing import example
        >>> of = example("simclr+uv")
        >>> out = of.method.loss(of.net, of.batch, of.client)
        >>> tuple(out.total.shape), len(out.features), sorted(out.parts)
        ((), 2, ['uv'])
        """

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return, by logged term of the loss, the least value that a net without information has.

        Such a net's outputs do not depend on the image: they are constant or noise. A run with a
        term that ends no more than a tenth below this value has not learnt its own task, and does
        not test the method; boards mark it *at chance*. The answer depends on `config` alone.

        Returns:
            For "loss" and each name in `Loss.parts` and `Server.log` a number, or a line that says
            why there is none. What a total holds besides logged terms has a name such as
            "loss - align". Empty, the default: the method does not say, and no run is marked.

        >>> from fedbench.bench.testing import example
        >>> of = example("rotpred")
        >>> of.method.chance(of.setup.config)  # ln 4, of four turns
        {'loss': 1.3862943611198906}
        """
        return {}

    def without_effect(self, config: RunConfig) -> str:
        """Return why the method is the same as another under a configuration; empty if it is not.

        `fedbench run` and `sweep` say it before they begin. Empty, the default.

        >>> from fedbench.bench.testing import example
        >>> of = example("simclr+l-dawa", federation__num_rounds=2)
        >>> of.method.without_effect(of.setup.config).partition(" (")[0]
        'l-dawa: its first 3 rounds average plainly'
        """
        return ""

    def encode(self, net: Net, images: Tensor) -> Tensor:
        """Return features (B, D) for k-NN and the linear probe.

        Runs in evaluation on normalised images, with the server's tensors or a client's
        (`Needs.evaluate_on`): in eval mode and without gradients, but fine-tuning trains through it
        in training mode. It changes nothing.

        >>> from fedbench.bench.testing import example
        >>> of = example("simclr")
        >>> tuple(of.method.encode(of.net.eval(), torch.zeros(5, *of.setup.spec.image_shape)).shape)
        (5, 16)
        """
        return run_parts(self, net, ["encoder"], images)

    def embed(self, net: Net, images: Tensor) -> Tensor:
        """Return projections (B, d) for alignment and uniformity, the objective of tuning.

        Runs as `encode` does. Default: the part "projector" on top of the encoder, if there is one.

        >>> from fedbench.bench.testing import example
        >>> of = example("simclr", method__projection_dim=8)
        >>> tuple(of.method.embed(of.net.eval(), torch.zeros(5, *of.setup.spec.image_shape)).shape)
        (5, 8)
        """
        if "projector" in net:
            return run_parts(self, net, ["encoder", "projector"], images)
        return self.encode(net, images)

    def centroids(self, net: Net) -> Tensor | None:
        """Return the unit centroids (G, d) of clusters of `embed`'s outputs; None, the default.

        >>> from fedbench.bench.testing import example
        >>> of = example("swav", method__num_prototypes=3, method__projection_dim=8)
        >>> tuple(of.method.centroids(of.net).shape)
        (3, 8)
        """
        return None

    def sharing(self) -> Mapping[str, Sharing]:
        """Return a rule for each pattern of `state_dict` names; the first match wins.

        Read when a run is set up; it depends on the fields alone. Every pattern has to match at
        least one tensor of `build`. Default: everything is averaged.

        >>> from fedbench.bench.testing import example
        >>> {name: str(rule) for name, rule in example("simclr+uv").method.sharing().items()}
        {'uv.weight': 'own-row', '*': 'averaged'}
        """
        return {"*": Sharing.AVERAGED}

    def plan_round(self, round_index: int, default: RoundPlan) -> RoundPlan:
        """Choose who takes part in a round, and how these clients train.

        Called before each round, and for rounds to come when a run is estimated; the answer depends
        on the fields and the arguments alone.

        >>> from fedbench.bench.testing import example
        >>> method = example("orchestra").method  # which begins without training
        >>> [method.plan_round(index, RoundPlan(5)).local_epochs for index in (0, 1)]
        [0, 5]
        """
        return default

    def pre_round(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Return statistics of a client's images under the received net, before anybody trains.

        Runs on each client of the cohort at the start of a round, in eval mode and without
        gradients; only with `Needs.pre_round`. It changes nothing.

        Returns:
            Tensors by name, each declared in `Needs.extras` with `summed=True`: the server streams
            their sums and keeps no client's.

        >>> from fedbench.bench.testing import example
        >>> of = example("fedsc")
        >>> sent = of.method.pre_round(of.net.eval(), of.data, of.client)
        >>> {name: tuple(value.shape) for name, value in sent.items()}
        {'correlation': (16, 16), 'count': (1,)}
        """
        return {}

    def server_pre_round(self, net: Net, sums: Mapping[str, Tensor], server: Server) -> None:
        """Set the tensors that `Needs.pre_round` names; every client then receives them again.

        Runs on the server between the statistics and the training of a round, without gradients. It
        may edit those tensors only. `sums` are those over the cohort of `pre_round`, in float64.

        >>> from fedbench.bench.testing import example
        >>> of = example("fedsc")
        >>> sums = {"correlation": torch.eye(16), "count": torch.tensor([3.0])}  # of 3 clients
        >>> of.method.server_pre_round(of.net, sums, of.server)
        >>> of.net.tensor("correlation_count").item()
        3.0
        """

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Prepare a client's round and return the images to train on, with their labels.

        Runs on a client before its first batch, after the received and the personal tensors are in
        place, in training mode and with gradients enabled. It may edit `net`; leave it in training
        mode. The number of images returned is the client's weight in the average.

        >>> from fedbench.bench.testing import example
        >>> of = example("cbafed", data__label_fraction=0.5)  # at first of labelled images alone
        >>> len(of.data), len(of.method.before_local(of.net, of.data, of.client))
        (20, 10)
        """
        return data

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """Update moving averages and memories in `net`, from what `loss` put into `out.keep`.

        Runs on a client after every optimizer step, without gradients. It may edit `net`.

        >>> from fedbench.bench.testing import example
        >>> of = example("byol")
        >>> online, target = (next(of.net[p].parameters()) for p in ("encoder", "target_encoder"))
        >>> with torch.no_grad():
        ...     moved = online.add_(1)  # as the optimizer does
        ...     of.method.after_step(of.net, Loss(torch.zeros(())), of.client)
        >>> round((online - target).mean().item(), 4)  # the target follows slowly
        0.99
        """

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Return what goes up besides the shared tensors: centroids, counts.

        Runs on a client after its last batch, without gradients, also in a round of 0 epochs. It
        may edit `net`, whose shared and personal tensors are read afterwards. `Needs.extras`
        declares every name. `data` is what `before_local` returned.

        >>> from fedbench.bench.testing import example
        >>> of = example("cbafed", data__label_fraction=1.0)
        >>> counts = of.method.after_local(of.net, of.data, of.client)["class_counts"]
        >>> len(counts), int(counts.sum()) == len(of.data)
        (10, True)
        """
        return {}

    def weigh(
        self, sent: Mapping[str, Tensor], held: Mapping[str, Tensor], round_index: int
    ) -> Mapping[str, float]:
        """Return factors for a client's tensors in the average; 1 for those that are left out.

        Runs on the server for each client whose upload counts, by ascending id. A factor scales
        what the tensor adds to the sum, not the weight by which the sum is divided. No upload is
        kept. A method that writes this hook is refused with client-level privacy, which needs
        changes of bounded length.

        `sent` are the averaged tensors that the client sends, by name, not to be edited, without
        `Needs.mean_gradients`; `held` those that it had received.

        >>> from fedbench.bench.testing import example
        >>> held, sent = ({"a.weight": torch.tensor(row)} for row in ([1.0, 0.0], [3.0, 4.0]))
        >>> factors = example("simclr+l-dawa").method.weigh(sent, held, round_index=3)
        >>> round(factors["a.weight"], 6)  # the cosine
        0.6
        """
        return {}

    def aggregator(self, default: Aggregator, held: Tensor, round_index: int) -> Aggregator:
        """Return what makes one vector of the uploads of a round, before the server's optimizer.

        Runs on the server before the uploads of each round arrive, and, to read what the aggregator
        declares, before a run with `held` empty. `default` is that of the configuration, which the
        hook may return, replace or wrap. `held`, (n,), are the server's averaged numbers in the
        order of an upload, as the clients receive them; not to be edited.

        >>> from fedbench.bench.method import TrimmedMean
        >>> class Trimmed(AddOn):
        ...     def aggregator(self, default, held, round_index):
        ...         return TrimmedMean(0.2)
        >>> from fedbench.bench.method import Mean
        >>> type(Trimmed.model_construct().aggregator(Mean(), torch.empty(0), 0)).__name__
        'TrimmedMean'
        """
        return default

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Edit the server's net in place: train server-only parts, set broadcast tensors.

        Runs once a round, after the average has been applied, in training mode and with gradients
        enabled. It may edit every tensor but the personal ones, which hold their initial values
        here. `uploads` has one for each client of the cohort, by ascending id.

        >>> from fedbench.bench.testing import example
        >>> of = example("simclr+uv")
        >>> rows = of.net.tensor("uv.weight").data.mul_(3)
        >>> of.method.server_step(of.net, [], of.server)  # brings rows back to length 1
        >>> torch.allclose(rows.norm(dim=1), torch.ones(len(rows)))
        True
        """


def run_parts(method: Method, net: Net, parts: Sequence[str], images: Tensor) -> Tensor:
    """Run parts on normalised images, which the first gets in the range of `Needs.pixels`."""
    if method.needs().pixels == "unit":
        images = images * STD + MEAN
    outputs: Tensor = net(images, *parts)
    return outputs


class AddOn(Method):
    """A method that wraps another one: every hook goes to `base` unless the add-on overrides it.

    A hook that does something more calls that of the base: `self.base.loss(net, batch, client)`.
    """

    base: Method

    def with_terms(self, config: RunConfig, **terms: float | str) -> Mapping[str, float | str]:
        """Return the base's values without the add-on's terms in its total, and the terms' own.

        Empty where the base does not say.
        """
        net_of = "".join(f" - {name}" for name in terms)
        known = {
            name + net_of * (name.partition(" - ")[0] == "loss"): value
            for name, value in self.base.chance(config).items()
        }
        return known and known | terms


def _of_base(hook: str) -> Callable[..., Any]:
    """Return the hook of an add-on that does what its base does."""

    def call(self: AddOn, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.base, hook)(*args, **kwargs)

    return call


HOOKS = tuple(name for name, value in vars(Method).items() if isfunction(value) and name[0] != "_")
for _hook in HOOKS:  # a loop, so that no hook can be forgotten
    setattr(AddOn, _hook, _of_base(_hook))
# The class was made with abstract hooks, and without this nobody could make an add-on.
update_abstractmethods(AddOn)  # type: ignore[type-abstract]


def writes(method: Method, hook: str) -> bool:
    """Tell whether a method, or one that it wraps, has a hook of its own.

    What only some methods need is found so, without a flag: `weigh` makes the server read single
    uploads, `server_step` makes it keep the tensors of before the round.

    >>> class Weighing(AddOn):
    ...     def weigh(self, sent, held, round_index):
    ...         return dict.fromkeys(sent, 0.5)
    >>> writes(Weighing.model_construct(), "weigh")
    True
    """
    if getattr(type(method), hook) not in (getattr(Method, hook), getattr(AddOn, hook)):
        return True
    return isinstance(method, AddOn) and writes(method.base, hook)
