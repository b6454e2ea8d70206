"""The container of every tensor of a run: named parts, run in a row, metering the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fedbench.bench.system.errors import PluginError


@dataclass
class Wire:
    """What crossed between a client and server-only parts.

    Attributes:
        up: bytes of activations and gradients to the server.
        down: bytes of both from the server.
        received: activations that the server got in training, batch by batch, without gradient;
            emptied in front of every local epoch.
    """

    up: int = 0
    down: int = 0
    received: list[Tensor] = field(default_factory=list)


class Net(nn.ModuleDict):
    """Parts by name (`encoder`, `projector`, …) plus loose tensors registered as buffers.

    `net(x, "encoder", "projector")` runs parts in a row; `net.tensor("centroids")` reads a buffer
    or parameter by its full name. Tensors are float32; counters of batch norm are dropped, since
    nothing reads them when the momentum is fixed.

    Args:
        parts: modules by name; one of them is called `encoder` and is what gets evaluated.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__(dict(parts))
        self.remote: frozenset[str] = frozenset()
        self.precision: Literal["fp32", "bf16"] = "fp32"
        self.wire = Wire()
        self._reused: str | None = None
        self._last: tuple[Tensor, Tensor] | None = None  # input and output of that part
        self.drop_counters()

    def drop_counters(self) -> None:
        """Remove `num_batches_tracked`; call again after adding parts with batch norm."""
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
                module.num_batches_tracked = None

    def forward(self, x: Tensor, *parts: str) -> Tensor:
        """Run `parts` one after another on `x`, (B, …) -> (B, …)."""
        inside = False
        for part in parts:
            remote = part in self.remote
            if remote != inside:
                self._meter(x, to_server=remote)
                inside = remote
            x = self._run(part, x)
        if inside:
            self._meter(x, to_server=False)
        return x

    def _run(self, part: str, x: Tensor) -> Tensor:
        if part == self._reused and self._last is not None and self._last[0] is x:
            return self._last[1]
        if self.precision == "fp32":
            y = self[part](x)
        else:  # between parts numbers are float32: losses and messages know no other
            with torch.autocast(x.device.type, torch.bfloat16):
                y = self[part](x)
            y = y.float()
        if part == self._reused:
            self._last = x, y
        return y  # type: ignore[no-any-return]

    @contextmanager
    def reusing(self, part: str) -> Iterator[None]:
        """Inside the block `part` is not run again on the tensor that it was run on last.

        For two looks at the same images, in eval mode and without gradients.
        """
        self._reused = part
        try:
            yield
        finally:
            self._reused = self._last = None

    def views(self, images: Sequence[Tensor], *parts: str) -> tuple[Tensor, ...]:
        """The same parts on several views: in one pass, unless a norm would mix them.

        One pass is a twelfth faster for a small encoder on a CPU (docs/speed.md); gradients are
        sums over the same examples in another order than after two passes.
        """
        if len(images) > 1 and self._keeps_apart(parts):
            sizes = [len(view) for view in images]
            return tuple(self(torch.cat(tuple(images)), *parts).split(sizes))
        return tuple(self(view, *parts) for view in images)

    def _keeps_apart(self, parts: Sequence[str]) -> bool:
        """Whether an example's outcome under these parts depends on it alone, and stays here."""
        return not any(
            part in self.remote
            or any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self[part].modules())
            for part in parts
        )

    def tensor(self, name: str) -> Tensor:
        """The parameter or buffer with this `state_dict` name.

        Raises:
            PluginError: if there is none.
        """
        *path, leaf = name.split(".")
        module: nn.Module | None = self
        for step in path:
            module = module._modules.get(step) if module is not None else None
        value = getattr(module, leaf, None)
        if not isinstance(value, Tensor):
            raise PluginError(f"the net has no tensor {name!r}")
        return value

    def _meter(self, x: Tensor, *, to_server: bool) -> None:
        size = x.numel() * x.element_size()
        back = size if torch.is_grad_enabled() and x.requires_grad else 0  # its gradient returns
        self.wire.up += size if to_server else back
        self.wire.down += back if to_server else size
        if to_server and self.training:
            self.wire.received.append(x.detach())
