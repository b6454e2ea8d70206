"""Parts of a net that live for one client's round: neither sent nor stored."""

from __future__ import annotations

from typing import Any

from torch import nn


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
