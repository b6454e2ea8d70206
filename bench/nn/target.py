"""Target networks: frozen copies of parts, averaged over steps or filled again in every round."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.bench.nn.norms import batch_norms

PREFIX = "target_"

TARGET_ENCODER = {"target": PREFIX + "encoder"}
"""For `Needs.encoders`: evaluates the target as well as the encoder that it follows.

Papers disagree on which of the two is the result.
"""


def add_targets(net: nn.ModuleDict, *parts: str) -> None:
    """Give each part a frozen copy `target_<part>`, equal to it at the start.

    The copies have separate buffers (statistics of batch norm follow the data that goes through the
    copy) and parameters that no optimizer trains.
    """
    for part in parts:
        net[PREFIX + part] = copy.deepcopy(net[part]).requires_grad_(False)


def ema_update(net: nn.ModuleDict, decay: float) -> None:
    """Move the parameters of every target to `decay * target + (1 - decay) * online`.

    `decay` is the share of the OLD target that is kept, in [0, 1]. Buffers are left alone.
    """
    target, online = _tensors(net, nn.Module.parameters)
    if target:  # torch refuses empty lists
        with torch.no_grad():
            torch._foreach_lerp_(target, online, 1.0 - decay)


def copy_to_targets(net: nn.ModuleDict) -> None:
    """Set parameters and buffers of every target to its part's."""
    for kind in (nn.Module.buffers, nn.Module.parameters):
        target, online = _tensors(net, kind)
        if target:
            with torch.no_grad():
                torch._foreach_copy_(target, online)


def keep_within_round(*modules: nn.Module) -> None:
    """Hide modules from every `state_dict`, and so from sharing, traffic and checkpoints.

    Their content is undefined when a client's round begins: `before_local` has to fill them.
    """
    for module in modules:
        for inner in module.modules():
            inner.register_state_dict_post_hook(_hide)


def has_batch_norm(net: nn.Module) -> bool:
    """Tell whether batch statistics are used: a training pass leaves traces and mixes examples."""
    return bool(batch_norms(net))


@contextmanager
def restored_buffers(*modules: nn.Module) -> Iterator[None]:
    """Put buffers back after the block, in place: a training pass leaves no trace in norms."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(old)


def _hide(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        del state[name]


def _tensors(
    net: nn.ModuleDict, kind: Callable[[nn.Module], Iterator[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters or buffers of all targets, and those of the parts they follow."""
    targets = [name for name in net if name.startswith(PREFIX)]
    return (
        [tensor for name in targets for tensor in kind(net[name])],
        [tensor for name in targets for tensor in kind(net[name.removeprefix(PREFIX)])],
    )
