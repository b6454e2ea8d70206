"""Passes through the parts of nets by torch.compile, compiled once for all nets of a process.

A step of a small net is hundreds of short kernels; the compiler fuses norms, activations and sums.
Its kernels round in another way than torch's own, so that `client.compile` is part of a run's
identity.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbench.bench.nn.norms import PerView, add_statistics, views_apart

Tensors = Mapping[str, Tensor]
Compiled = Callable[[Tensors, Tensor], tuple[Tensor, list[tuple[Tensor, Tensor]]]]
BACKEND = "inductor"
"""Of torch.compile."""


class CompiledParts:
    """Parts of nets of one kind by name; the first net that runs a part gives its code."""

    def __init__(self, precision: str) -> None:
        self._bf16 = precision == "bf16"
        self._parts: dict[str, tuple[nn.Module, Compiled]] = {}
        self._places: tuple[Tensor, Tensor] | None = None

    def run(self, part: str, module: nn.Module, tensors: Tensors, x: Tensor) -> Tensor:
        """Run a part on (B, …) with these tensors by name, and move its norms' statistics.

        Returns float32.
        """
        if not self._parts:
            torch.compiler.reset()  # drops megabytes of each earlier run of this process
        if part not in self._parts:
            self._parts[part] = module, self._compile(part, module)
        template, compiled = self._parts[part]
        norms = _per_view(module)
        num_views = norms[0].num_views if norms else 1
        with (
            _in_modes_of(module, template),
            views_apart(_per_view(template), num_views),
            # The check of a run's first pass goes backwards twice.
            torch._functorch.config.patch(donated_buffer=False),
            warnings.catch_warnings(),
        ):
            # The compiler looks whether inputs have a gradient.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            y, taken = compiled(tensors, x)
        moved = [norm for norm in norms if norm.training and norm.momentum is not None]
        add_statistics(moved, taken)
        return y

    def places(self, order: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return an order of numbers and its inverse on the device, once for all nets."""
        if self._places is None:
            self._places = order.to(device), order.argsort().to(device)
        return self._places

    def _compile(self, part: str, template: nn.Module) -> Compiled:
        def run(tensors: Tensors, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
            kind = x.device.type
            with torch.autocast(kind, torch.bfloat16) if self._bf16 else nullcontext():
                y = functional_call(template, dict(tensors), (x,))
            taken: list[tuple[Tensor, Tensor]] = []  # plain: the compiler knows no `list[…]()`
            for norm in _per_view(template):
                if norm.taken is not None:
                    taken.append(norm.taken)
                    norm.taken = None
            return y.float(), taken

        # Of equal choices the compiler takes the faster one by measuring, unless told: two
        # processes would then compute other bits. Mixed orders of reduction fail in torch 2.11.
        wanted = {"deterministic": True, "triton.mix_order_reduction": False}
        known = torch._inductor.list_options() if BACKEND == "inductor" else []
        options: dict[str, Any] = {name: value for name, value in wanted.items() if name in known}
        # The compiler counts what it compiles by code object, and gives up after a few.
        run.__code__ = run.__code__.replace(co_name=f"run_{part}")
        return torch.compile(
            run, dynamic=False, fullgraph=True, backend=BACKEND, options=options or None
        )


@contextmanager
def _in_modes_of(module: nn.Module, template: nn.Module) -> Iterator[None]:
    """Inside the block the modules of a template, which is another net's, are in a part's modes."""
    before = [inner.training for inner in template.modules()]
    for own, first in zip(module.modules(), template.modules(), strict=True):
        first.training = own.training
    try:
        yield
    finally:
        for first, mode in zip(template.modules(), before, strict=True):
            first.training = mode


def _per_view(module: nn.Module) -> list[PerView]:
    return [norm for norm in module.modules() if isinstance(norm, PerView)]
