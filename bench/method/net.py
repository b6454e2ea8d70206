"""The container of every tensor of a run: named parts that meter what crosses to the server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, Self

import torch
from torch import Tensor, nn

from fedbench.bench.nn.freezing import is_frozen
from fedbench.bench.nn.norms import PerView, batch_norms, views_apart
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import PluginError


@dataclass
class Wire:
    """Traffic between a client and server-only parts in one round.

    Attributes:
        up, down: bytes of activations and gradients to the server, and from it.
        received: activations that the server got in training, batch by batch, without gradient;
            emptied before every local epoch.
    """

    up: int = 0
    down: int = 0
    received: list[Tensor] = field(default_factory=list)


class Passes(Protocol):
    """Compiled passes of a net in a step."""

    def takes(self, x: Tensor) -> bool:
        """Tell whether there are passes of the size of x, (B, …)."""

    def tensors(self, part: str) -> Mapping[str, Tensor]:
        """Return the tensors of a part that the passes read, by their names there."""

    def run(self, part: str, x: Tensor) -> Tensor:
        """Run a part on (B, …)."""


class Net(nn.ModuleDict):
    """Parts by name (`encoder`, `projector`, …) plus loose tensors registered as buffers.

    `net(x, "encoder", "projector")` runs parts in a row; `net.tensor("centroids")` reads a buffer
    or parameter by its full name. Tensors are float32; counters of batch norm are dropped, since
    nothing reads them when the momentum is fixed. The part `encoder` is evaluated.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__(dict(parts))
        self.remote: frozenset[str] = frozenset()
        self.precision: Literal["fp32", "tf32", "bf16"] = "fp32"
        self.wire = Wire()
        self.compiled: Passes | None = None
        self._reused: str | None = None
        self._last: tuple[Tensor, Tensor] | None = None  # input and output of that part
        self.drop_counters()

    def drop_counters(self) -> None:
        """Remove `num_batches_tracked`; call again after adding parts with batch norm."""
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
                module.num_batches_tracked = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen batch norms keep to the statistics that they have."""
        super().train(mode)
        for norm in filter(is_frozen, batch_norms(self)):
            norm.eval()
        return self

    def forward(self, x: Tensor, *parts: str) -> Tensor:
        """Run `parts` one after another on `x`, (B, …) -> (B, …)."""
        on_server = False
        for part in parts:
            remote = part in self.remote
            if remote != on_server:
                self._meter(x, to_server=remote)
                on_server = remote
            x = self._run(part, x)
        if on_server:
            self._meter(x, to_server=False)
        return x

    def _run(self, part: str, x: Tensor) -> Tensor:
        # The same object, not equal numbers: comparing these would cost what the pass does.
        if part == self._reused and self._last is not None and self._last[0] is x:
            return self._last[1]
        compiled = self.compiled is not None and self.compiled.takes(x)
        compiled = compiled and first_use.COMPILER not in first_use.switched_off()
        y = self._compiled(part, x) if compiled else self._precisely(self[part], x)
        if part == self._reused:
            self._last = x, y
        return y

    def _compiled(self, part: str, x: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException  # imports the compiler: seconds

        passes = self.compiled
        assert passes is not None
        tensors = passes.tensors(part)
        first: list[Tensor] = []  # outputs by the compiler, so as to tell whose gradients are read

        def compiled() -> Tensor:
            y = passes.run(part, x)
            first.append(y)
            return y

        def read(y: Tensor) -> dict[str, Sequence[Tensor]]:
            sources = tensors if first and y is first[0] else dict(self[part].named_parameters())
            weights = [v for v in sources.values() if isinstance(v, nn.Parameter)]
            return {"outputs": [y], "gradients": _gradients([y], [x, *weights])}

        return first_use.checked(
            first_use.COMPILED.format(f"{part} of {len(x)}"),
            compiled,
            partial(self._precisely, self[part], x),
            read,
            lambda: {"statistics": [b for b in self[part].buffers() if b.is_floating_point()]},
            first_use.VIEWS_TOLERANCE[self.precision],
            {"gradients": first_use.GRADIENT_FACTOR},
            TorchDynamoException,
            first_use.COMPILER,
            # Lanes share code that was made of one net: a part that holds a tensor in a list of its
            # own would read that net's in all of them.
            net=id(self),
        )

    def call(self, part: str, function: str, *inputs: Tensor) -> Tensor:
        """Run another function of a part than its `forward`, in the precision of the run.

        The function maps tensors to one. A part of the server is refused: only `net(x, …)` meters
        the way there.
        """
        if part in self.remote:
            raise PluginError(f"part {part!r} is the server's: run it as net(x, {part!r})")
        return self._precisely(getattr(self[part], function), *inputs)

    def _precisely(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if self.precision != "bf16":
            return function(*inputs)
        # Numbers are float32 again between parts: losses and messages need that.
        with torch.autocast(inputs[0].device.type, torch.bfloat16):
            y = function(*inputs)
        return y.float()

    @contextmanager
    def reusing(self, part: str) -> Iterator[None]:
        """Inside the block, do not run `part` again on the tensor that it was run on last.

        Saves a pass where the same images are looked at twice, in eval mode and without gradients.
        """
        self._reused = part
        try:
            yield
        finally:
            self._reused = self._last = None

    def views(
        self, images: Sequence[Tensor], *parts: str, cpu_apart: bool = False
    ) -> tuple[Tensor, ...]:
        """Run the same parts on several views: in one pass, if that is no slower.

        `cpu_apart`: one by one on a CPU, unless the run compiles its passes.

        One pass is a twelfth faster for a small encoder on a CPU; with batch norm, which has to
        keep the views apart, only a GPU gains, by a quarter fewer kernels (docs/speed.md).
        Gradients are sums over the same examples in another order than after two passes.
        """
        norms = [norm for part in parts for norm in batch_norms(self[part])]

        def one_by_one() -> tuple[Tensor, ...]:
            return tuple(self(view, *parts) for view in images)

        def at_once() -> tuple[Tensor, ...]:
            with views_apart(norms, len(images)):
                both = self(torch.cat(tuple(images)), *parts)
            return tuple(both.split([len(view) for view in images]))

        here = not images[0].is_cuda and self.compiled is None
        together = _in_one_pass(norms, images, here, here and cpu_apart)
        if len(images) < 2 or self.remote & {*parts} or not together:
            return one_by_one()
        if not images[0].is_cuda:
            return at_once()
        if first_use.VIEWS_AT_ONCE in first_use.switched_off():
            return one_by_one()

        def plain() -> tuple[Tensor, ...]:  # nothing is compiled for a comparison
            passes, self.compiled = self.compiled, None
            try:
                return one_by_one()
            finally:
                self.compiled = passes

        def read(outputs: tuple[Tensor, ...]) -> dict[str, Sequence[Tensor]]:
            if self.compiled is not None:  # its pass is compared with one by torch, gradients too
                return {"outputs": outputs}
            weights = [p for part in parts for p in self[part].parameters()]
            gradients = _gradients(outputs, [*images, *weights])
            return {"outputs": outputs, "gradients": gradients}

        return first_use.checked(
            first_use.VIEWS_AT_ONCE,
            at_once,
            plain,
            read,
            lambda: {"statistics": [buffer for norm in norms for buffer in norm.buffers()]},
            first_use.VIEWS_TOLERANCE[self.precision],
            {"gradients": first_use.GRADIENT_FACTOR},
        )

    def tensor(self, name: str) -> Tensor:
        """Return the parameter or buffer with this `state_dict` name.

        Raises:
            PluginError: if there is none.
        """
        path, _, leaf = name.rpartition(".")
        try:
            value = getattr(self.get_submodule(path), leaf, None)
        except AttributeError:
            value = None
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


def _in_one_pass(
    norms: Sequence[nn.Module], images: Sequence[Tensor], on_cpu: bool, apart: bool
) -> bool:
    """Tell whether views go through parts with these batch norms at once."""
    equal = len({len(view) for view in images}) == 1
    able = all(isinstance(norm, PerView) for norm in norms)  # torch's own mix the views
    return not apart and (not norms or (not on_cpu and equal and able))


def _gradients(outputs: Sequence[Tensor], sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the gradients of a weighted sum of outputs; none where none are wanted."""
    if not outputs[0].requires_grad:
        return ()
    # The plain sum of what a batch norm gives is constant, so that its gradient is only rounding.
    weights = [torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y) for y in outputs]
    total = torch.stack([(y * w).sum() for y, w in zip(outputs, weights, strict=True)]).sum()
    wanted = [value for value in sources if value.requires_grad]
    return torch.autograd.grad(total, wanted, retain_graph=True, materialize_grads=True)
