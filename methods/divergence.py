"""Federated updates by divergence: FedU, FedEMA, and a predictor that is never updated.

FedU: Zhuang et al. 2021, https://arxiv.org/abs/2108.06492 (its divergence-aware predictor update).
FedEMA: Zhuang et al. 2022, https://arxiv.org/abs/2204.04385. Constants that the papers leave open
follow their released code, https://github.com/EasyFL-AI/EasyFL.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Client,
    ClientData,
    ConfigError,
    Method,
    Net,
    Server,
    Sharing,
    Upload,
)
from fedbench.bench.nn import keep_within_round

Update = Literal["average", "fedu", "fedema", "frozen-predictor"]

ONLINE = ("encoder", "projector", "predictor")

_REMEMBERED: dict[Update, tuple[str, ...]] = {"fedu": ("predictor",), "fedema": ONLINE}
_PREFIX, _RECORD, _FROZEN = "own_", "own_record", "initial_predictor"


class DivergenceAware(Method):
    """Base of methods with a predictor whose clients may keep a share of their previous model.

    At the end of a round a client measures how far its encoder moved, and stores its parts; at the
    start of its next round these meet the received ones, by the rule `update`:

    * average: the received tensors are taken as they are.
    * fedu: the client's predictor replaces the received one if its last divergence was at least
      `predictor_threshold`.
    * fedema: every online part becomes share * stored + (1 - share) * received (`stored_share`);
      after a round that the client missed, the received parts are taken as they are.
    * frozen-predictor: the server restores the initial predictor after every round, which is what
      the release of Lubana et al. 2022 comes to.

    Deviations: FedEMA's paper measures how far the stored encoder is from the received one; its
    release, followed here, how far the last round's training moved it. The release mixes parameters
    only; here batch-norm statistics mix too. In a client's first round its target is the online net
    itself there, and a copy that follows here.

    The three fields belong to the method, and `fedu` and `fedema` are no add-ons: stored rows,
    presets and published rows name them `method.update` and so on.

    A subclass calls `add_memory` at the end of `build`, and inherits or extends the other hooks.
    """

    update: Update = Field("average", description="what clients make of the server's tensors")
    predictor_threshold: float = Field(
        0.4, ge=0, description="fedu: from this divergence on a client keeps its own predictor"
    )
    mixing_target: float = Field(
        0.7, gt=0, le=1, description="fedema: share of the stored model at the first divergence"
    )

    @property
    def keeps_record(self) -> bool:
        """True if clients keep a `Record`; a subclass may need one under every rule."""
        return self.update in _REMEMBERED

    def add_memory(self, net: Net) -> None:
        """Give a net with encoder, projector and predictor the tensors that the rule needs.

        Raises:
            ConfigError: if the rule goes by how far convolutions move, and none is trained.
        """
        trained = any(weight.requires_grad for weight in convolutions(net["encoder"]))
        if self.update in _REMEMBERED and not trained:
            raise ConfigError(
                f"method.update: {self.update} goes by how far the encoder's convolutions move, and"
                " none is trained; set average, or another model.trainable or model.backbone"
            )
        for part in _REMEMBERED.get(self.update, ()):
            net[_PREFIX + part] = copy.deepcopy(net[part]).requires_grad_(False)
        if self.keeps_record:
            net[_RECORD] = Record(net["encoder"])
        if self.update == "frozen-predictor":
            net[_FROZEN] = copy.deepcopy(net["predictor"]).requires_grad_(False)

    def sharing(self) -> Mapping[str, Sharing]:
        """Average everything but a client's memory, and the predictor that the server restores."""
        personal = {f"{_PREFIX}*": Sharing.PERSONAL} if self.keeps_record else {}
        frozen = {f"{_FROZEN}.*": Sharing.SERVER_ONLY} if self.update == "frozen-predictor" else {}
        return {**personal, **frozen, "*": Sharing.AVERAGED}

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Bring the client's stored parts in."""
        self.begin_round(net, client)
        return data

    def begin_round(self, net: Net, client: Client) -> bool:
        """Apply the rule to the received parts in `net`.

        Returns:
            True if the client starts from the server's tensors alone: in its first round, under
            fedema after a round that it missed, and always without a record.
        """
        record = _record(net)
        if record is None:
            return True
        fedema, last = self.update == "fedema", int(record.last_round)
        missed = last < 0 or (fedema and last != client.round - 1)
        far = float(record.divergence) >= self.predictor_threshold
        if not missed and (fedema or (self.update == "fedu" and far)):
            share = float(stored_share(record.divergence, record.scale)) if fedema else 1.0
            for part in _REMEMBERED[self.update]:
                mix(net[part], net[_PREFIX + part], share)
        with torch.no_grad():
            for old, now in zip(record.start, convolutions(net["encoder"]), strict=True):
                old.copy_(now)
        return missed

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Measure how far the client moved and store its parts; nothing extra goes up.

        The first divergence above 0 fixes the client's scale for the whole run, so that FedEMA's
        share after a round that moves as far is `mixing_target`.
        """
        record = _record(net)
        if record is not None:
            record.last_round.fill_(client.round)
        if record is not None and self.update in _REMEMBERED:
            moved = mean_distance(list(record.start), convolutions(net["encoder"]))
            record.divergence.copy_(moved)
            if float(record.scale) == 0 and float(record.divergence) > 0:
                record.scale.copy_(self.mixing_target / record.divergence)
        for part in _REMEMBERED.get(self.update, ()):
            mix(net[_PREFIX + part], net[part], 1.0)
        return {}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Restore weights and statistics of the initial predictor under `frozen-predictor`."""
        if _FROZEN in net:
            mix(net["predictor"], net[_FROZEN], 1.0)


class Record(nn.Module):
    """A client's record of its earlier rounds; personal.

    Attributes:
        divergence: how far its encoder moved in its last round (`mean_distance`).
        scale: FedEMA's factor from divergence to share; 0 until it is fixed.
        last_round: the last round it took part in; -1 before the first.
    """

    divergence: Tensor
    scale: Tensor
    last_round: Tensor

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        for name, value in (("divergence", 0.0), ("scale", 0.0), ("last_round", -1.0)):
            self.register_buffer(name, torch.tensor(value))
        weights = [weight.detach().clone() for weight in convolutions(encoder)]
        self.start = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)
        keep_within_round(self.start)


def convolutions(encoder: nn.Module) -> list[Tensor]:
    """Return the weights of all convolutions but 1x1 ones, the shortcuts.

    Frozen ones count as well, and have not moved.

    Source: the release of FedU and FedEMA, which finds layers by the name `conv`.
    """
    return [
        module.weight
        for module in encoder.modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)
    ]


def mean_distance(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """Mean over tensors of the Euclidean distance between old and new, >= 0."""
    pairs = zip(before, after, strict=True)
    return torch.stack([torch.dist(old.detach(), new.detach()) for old, new in pairs]).mean()


def stored_share(divergence: Tensor, scale: Tensor) -> Tensor:
    """FedEMA's share of the client's stored model, min(1, scale * divergence), in [0, 1]."""
    return (scale * divergence).clamp(max=1.0)


def mix(received: nn.Module, stored: nn.Module, share: float) -> None:
    """Set `received` to share * stored + (1 - share) * received; parameters and buffers alike.

    Args:
        received: edited in place.
        stored: a module of the same shape.
        share: in [0, 1].
    """
    with torch.no_grad():
        for old, new in zip(_tensors(received), _tensors(stored), strict=True):
            old.copy_(new) if share == 1 else old.lerp_(new, share)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _record(net: Net) -> Record | None:
    return next((part for part in net.values() if isinstance(part, Record)), None)
