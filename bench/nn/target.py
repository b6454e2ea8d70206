"""Target networks: frozen copies of parts that follow them as moving averages."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.bench.system.errors import PluginError


def keep_within_round(*modules: nn.Module) -> None:
    """Hide modules from every `state_dict`, and so from sharing, traffic and checkpoints.

    What they hold after one client's round is undefined: `before_local` has to fill them.

    Args:
        modules: edited in place, with all that is below them.
    """
    for module in modules:
        for inner in module.modules():
            inner.register_state_dict_post_hook(_forget)


def _forget(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        del state[name]


PREFIX = "target_"

TARGET_ENCODER = {"target": PREFIX + "encoder"}
"""For `Needs.encoders`: the target is evaluated beside the encoder that it follows."""


def add_targets(net: nn.ModuleDict, *parts: str) -> None:
    """Give each part a frozen copy `target_<part>`, equal to it at the start.

    The copies have buffers of their own (statistics of batch norm follow the data that goes through
    the copy) and parameters that no optimizer trains.

    Args:
        net: edited in place.
        parts: names of parts.

    Raises:
        PluginError: if there is no such part, or it has a copy already.
    """
    for part in parts:
        if part not in net:
            raise PluginError(f"the net has no part {part!r}, only {', '.join(net)}")
        if PREFIX + part in net:
            raise PluginError(f"part {part!r} has a target already")
        net[PREFIX + part] = copy.deepcopy(net[part]).requires_grad_(False)


def ema_update(net: nn.ModuleDict, decay: float) -> None:
    """Move the parameters of every target to `decay * target + (1 - decay) * online`.

    Buffers are left alone.

    Args:
        net: with targets from `add_targets`; edited in place.
        decay: share of the OLD target that is kept, in [0, 1]: at 1 nothing moves, at 0 the target
            becomes the online part.
    """
    target, online = _pairs(net)
    if target:
        with torch.no_grad():
            torch._foreach_lerp_(target, online, 1.0 - decay)


def copy_to_targets(net: nn.ModuleDict) -> None:
    """Set parameters and buffers of every target to those of its part."""
    with torch.no_grad():
        for part in _parts(net):
            for old, new in zip(net[PREFIX + part].buffers(), net[part].buffers(), strict=True):
                old.copy_(new)
        target, online = _pairs(net)
        if target:
            torch._foreach_copy_(target, online)


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a pass in training mode leaves traces, and one image alone is too few for it."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())


@contextmanager
def kept_buffers(*modules: nn.Module) -> Iterator[None]:
    """Put buffers back after the block: a pass in training mode leaves no trace in batch norms.

    Args:
        modules: whose buffers; restored in place, since they may be views of a larger vector.
    """
    buffers = [buffer for module in modules for buffer in module.buffers()]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(old)


def _parts(net: nn.ModuleDict) -> list[str]:
    return [name.removeprefix(PREFIX) for name in net if name.startswith(PREFIX)]


def _pairs(net: nn.ModuleDict) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters of all targets, and those of the parts they follow, in the same order."""
    target: list[Tensor] = []
    online: list[Tensor] = []
    for part in _parts(net):
        target += net[PREFIX + part].parameters()
        online += net[part].parameters()
    return target, online
