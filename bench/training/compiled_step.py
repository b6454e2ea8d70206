"""A step of compiled passes: the weights that they read, and the way of the gradients back.

A cast, a transposition and a sum for each tensor are most kernels of a step that is compiled. Here
one kernel casts all weights of a step, and each gradient is written once, not added to zero.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedbench.bench.nn.compiled import CompiledParts
from fedbench.bench.training.layout import Binding, Slot

_FACTORS = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
"""Modules whose matrices are factors of products, which autocast computes in bf16."""


class CompiledStep:
    """The leaves of a step, which are a net's trained tensors, or in bf16 copies of its factors.

    Args:
        binding: a net in the layout of `VectorLayout.for_steps`.
        parts: compiled parts of all nets like this one.
        batch_size: of the steps.
    """

    def __init__(self, binding: Binding, parts: CompiledParts, batch_size: int) -> None:
        self._batch_size = batch_size
        self._vector, self._personal = binding.server, binding.personal
        self._net, self._parts = binding.net, parts
        trained = binding.layout.trained
        self._matrices = [slot for slot in trained if not slot.is_vector]
        self._others = [slot for slot in trained if slot.is_vector]
        self._stop = binding.layout.num_trained
        self._copies: list[tuple[Tensor, Tensor]] = []  # numbers of the vector, and them in bf16
        self._own = {slot.name: binding.net.get_parameter(slot.name) for slot in trained}
        self._leaves: dict[str, nn.Parameter] = dict(self._own)
        self._read: dict[str, Tensor] = {}
        if binding.net.precision == "bf16":
            still = [s for s in binding.layout.averaged if not (s.trainable or s.is_vector)]
            copies = self._copied(self._matrices)
            self._leaves |= {name: nn.Parameter(value) for name, value in copies.items()}
            self._read = self._copied(still)
        self._read |= self._leaves

    def takes(self, x: Tensor) -> bool:
        """Tell whether x, (B, …), is of whole batches.

        Each other size, such as that of a batch's images without a label, would be compiled anew.
        """
        return len(x) % self._batch_size == 0

    def tensors(self, part: str) -> Mapping[str, Tensor]:
        """Return the tensors of a part by their names there."""
        module = self._net[part]
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: self._read.get(f"{part}.{name}", value) for name, value in named.items()}

    def _copied(self, slots: list[Slot]) -> dict[str, Tensor]:
        """Return bf16 copies by name, which a step's begin renews, of those that are factors.

        The slots are neighbours. Other matrices, such as positions, are added to activations, which
        would be bf16 then where autocast leaves them in float32.
        """
        if not slots:
            return {}
        first = slots[0].start
        numbers = self._vector.data[first : slots[-1].stop]
        copy = numbers.to(torch.bfloat16)
        self._copies.append((numbers, copy))
        moved = [replace(slot, start=slot.start - first, stop=slot.stop - first) for slot in slots]
        return {
            slot.name: slot.of(copy)
            for slot in moved
            if isinstance(self._net.get_submodule(slot.name.rpartition(".")[0]), _FACTORS)
        }

    def run(self, part: str, x: Tensor) -> Tensor:
        """Run a part on (B, …)."""
        return self._parts.run(part, self._net[part], self.tensors(part), x)

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Inside the block the net's passes are compiled; after it, all gradients are in place."""
        self._begin()
        self._net.compiled = self
        try:
            yield
        finally:
            self._net.compiled = None
        self._end_of_step()

    def _begin(self) -> None:
        """Take the weights as they are, without gradients."""
        for numbers, copy in self._copies:
            copy.copy_(numbers)
        for parameter in (*self._own.values(), *self._leaves.values()):
            parameter.grad = None
        self._vector.grad[self._stop :].zero_()
        self._personal.grad.zero_()

    def _end_of_step(self) -> None:
        """Write all gradients into the vector, of which the net's gradients are views again."""
        for slots in (self._matrices, self._others):
            if slots:
                span = self._vector.grad[slots[0].start : slots[-1].stop]
                values = [self._gradient(slot).flatten() for slot in slots]
                if values[0].dtype == span.dtype:
                    torch.cat(values, out=span)
                else:
                    span.copy_(torch.cat(values))
        for slot in (*self._matrices, *self._others):
            own, view = self._own[slot.name], slot.of(self._vector.grad)
            # What is no compiled pass, such as a penalty on weights, goes to the net's own tensor.
            if own is not self._leaves[slot.name] and own.grad is not None:
                view.add_(own.grad)
            own.grad = view

    def _gradient(self, slot: Slot) -> Tensor:
        leaf = self._leaves[slot.name]
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return gradient.movedim(1, -1) if slot.channels_last else gradient
