"""FLOP of what runs: products of matrices and convolutions, two for each multiplication."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_LEFT = {_ATEN.mm: 0, _ATEN.bmm: 0, _ATEN.addmm: 1, _ATEN.baddbmm: 1}
"""Products of matrices, and the place of their left factor among the arguments."""


class FlopCounter(TorchDispatchMode):
    """Counts while it is entered, forward and back.

    Torch's own counter brings Triton and torch.compile: 150 MB and seconds of every run.
    """

    flop = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what skips it imports torch.compile

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result, operation = func(*args, **(kwargs or {})), func.overloadpacket
        if (left := _LEFT.get(operation)) is not None:
            self.flop += 2 * result.numel() * args[left].shape[-1]
        elif operation is _ATEN.convolution:
            self.flop += 2 * result.numel() * args[1][0].numel()
        elif operation is _ATEN.convolution_backward:
            of_input, of_weight, _ = args[-1]  # the output mask: which gradients are wanted
            self.flop += 2 * args[0].numel() * args[2][0].numel() * (of_input + of_weight)
        return result


@contextmanager
def counted() -> Iterator[FlopCounter]:
    """Count FLOP, of attention too, which each device would hide in a kernel of its own."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:  # type: ignore[no-untyped-call]
        yield counter
