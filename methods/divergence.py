"""Clients that remember: how far they moved decides what they keep of their own model.

FedU: Zhuang et al. 2021, https://arxiv.org/abs/2108.06492 (its divergence-aware predictor update).
FedEMA: Zhuang et al. 2022, https://arxiv.org/abs/2204.04385. Constants that the papers leave open
follow their released code, https://github.com/EasyFL-AI/EasyFL.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedbench.bench.method import Net, Sharing
from fedbench.bench.nn import keep_within_round

Update = Literal["average", "fedu", "fedema", "frozen-predictor"]
"""What a client makes of the server's tensors at the start of a round.

`average` takes them. `fedu` and `fedema` mix in what the client kept. `frozen-predictor` is what
the release of Lubana et al. 2022 comes to: its server never updates the predictor.
"""

ONLINE = ("encoder", "projector", "predictor")

_KEPT: dict[Update, tuple[str, ...]] = {"fedu": ("predictor",), "fedema": ONLINE}

_OWN = "own_"

_RECORD = "own_record"

_FROZEN = "initial_predictor"


class Record(nn.Module):
    """What a client knows of its earlier rounds; personal.

    Attributes:
        divergence: how far its encoder moved in its last round (`mean_distance`).
        scale: FedEMA's factor from divergence to the own share; 0 until it is fixed.
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
    """Weights of all convolutions."""
    return [module.weight for module in encoder.modules() if isinstance(module, nn.Conv2d)]


def mean_distance(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """Mean over tensors of the Euclidean distance between old and new, >= 0."""
    pairs = zip(before, after, strict=True)
    return torch.stack([torch.dist(old.detach(), new.detach()) for old, new in pairs]).mean()


def own_share(divergence: Tensor, scale: Tensor) -> Tensor:
    """FedEMA's share of the own model, min(1, scale * divergence), in [0, 1]."""
    return (scale * divergence).clamp(max=1.0)


def mix(received: nn.Module, own: nn.Module, share: float) -> None:
    """Set `received` to share * own + (1 - share) * received; parameters and buffers alike.

    Args:
        received: edited in place.
        own: a module of the same shape.
        share: in [0, 1].
    """
    with torch.no_grad():
        for theirs, mine in zip(_tensors(received), _tensors(own), strict=True):
            theirs.copy_(mine) if share == 1 else theirs.lerp_(mine, share)


def add_memory(net: Net, update: Update, *, record: bool) -> None:
    """Give a net what an update rule needs besides its online parts.

    Args:
        net: edited in place; has encoder, projector and predictor.
        update: the rule.
        record: keep a `Record` even if the rule needs none.
    """
    for part in _KEPT.get(update, ()):
        net[_OWN + part] = copy.deepcopy(net[part]).requires_grad_(False)
    if record or update in _KEPT:
        net[_RECORD] = Record(net["encoder"])
    if update == "frozen-predictor":
        net[_FROZEN] = copy.deepcopy(net["predictor"]).requires_grad_(False)


def memory_rules(update: Update, *, record: bool) -> Mapping[str, Sharing]:
    """Rows of a sharing table for what `add_memory` adds under the same arguments."""
    rules: dict[str, Sharing] = {}
    if record or update in _KEPT:
        rules[f"{_OWN}*"] = Sharing.PERSONAL
    if update == "frozen-predictor":
        rules[f"{_FROZEN}.*"] = Sharing.SERVER_ONLY
    return rules


def begin_round(net: Net, update: Update, round_index: int, threshold: float) -> bool:
    """At the start of a client's round: what it kept meets what it received.

    * fedu: the own predictor takes the place of the server's if the client's last divergence was
      at least `threshold`; encoder and projector are the server's.
    * fedema: all online parts become share * own + (1 - share) * received (`own_share`); after a
      round that the client missed, the server's are taken as they are.
    * else, or without a record, nothing happens.

    Deviation: the release of FedEMA mixes parameters only; here statistics of batch norm mix too.

    Args:
        net: with the received online parts and the client's memory; edited in place.
        update: the rule.
        round_index: the round at hand.
        threshold: divergence from which on fedu keeps the own predictor.

    Returns:
        Whether the client starts from the server's tensors alone, because this is its first round
        or, under fedema, because it missed the last one.
    """
    record = _record(net)
    if record is None:
        return True
    last = int(record.last_round)
    afresh = last < 0 or (update == "fedema" and last != round_index - 1)
    if not afresh:
        keeps = update == "fedu" and float(record.divergence) >= threshold
        share = float(own_share(record.divergence, record.scale)) if update == "fedema" else 1.0
        for part in _KEPT[update] if keeps or update == "fedema" else ():
            mix(net[part], net[_OWN + part], share)
    with torch.no_grad():
        for old, now in zip(record.start, convolutions(net["encoder"]), strict=True):
            old.copy_(now)
    return afresh


def end_round(net: Net, update: Update, round_index: int, target: float) -> None:
    """At the end of a client's round: measure how far it moved and keep the own parts.

    Without a record nothing happens.

    Args:
        net: edited in place.
        update: the rule.
        round_index: the round at hand.
        target: fedema's own share after a first round that moves as far as later ones; it fixes
            the client's scale, target / divergence, once and for all.
    """
    record = _record(net)
    if record is None:
        return
    with torch.no_grad():
        record.divergence.copy_(mean_distance(list(record.start), convolutions(net["encoder"])))
        if float(record.scale) == 0 and float(record.divergence) > 0:
            record.scale.copy_(target / record.divergence)
        record.last_round.fill_(round_index)
    for part in _KEPT.get(update, ()):
        mix(net[_OWN + part], net[part], 1.0)


def restore_frozen_predictor(net: Net) -> None:
    """On the server, under `frozen-predictor`: initial weights and statistics again."""
    if _FROZEN in net:
        mix(net["predictor"], net[_FROZEN], 1.0)


def _record(net: Net) -> Record | None:
    records = [part for name, part in net.items() if name == _RECORD and isinstance(part, Record)]
    return records[0] if records else None


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
