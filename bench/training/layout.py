"""Flat vectors that hold all tensors of a run, so that moving a model is one copy.

A client's round is: copy the server's vector in, train, copy the uploaded part out. The optimizer
sees one tensor per group instead of one per layer.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from fedbench.bench.method import Net, Sharing
from fedbench.bench.method.sharing import ROWS, UNTRAINED, check_table, rule_of
from fedbench.bench.nn.freezing import freeze, frozen_tensors
from fedbench.bench.system.errors import PluginError, StoreError


@dataclass(frozen=True)
class Slot:
    """Place of one tensor: `state_dict` name, rule, shape, and [start, stop) in its vector."""

    name: str
    rule: Sharing
    trainable: bool
    shape: torch.Size
    start: int
    stop: int
    channels_last: bool = False  # a convolution's weight lies as (out, height, width, in)

    @property
    def size(self) -> int:
        """Count of numbers."""
        return self.stop - self.start

    @property
    def part(self) -> str:
        """Name of the net's part that it belongs to; a loose buffer is a part of its own."""
        return self.name.partition(".")[0]

    @property
    def is_vector(self) -> bool:
        """False for a matrix, or a tensor of more dimensions."""
        return len(self.shape) < 2

    @property
    def row_size(self) -> int:
        """Count of numbers in one row."""
        return self.size // self.shape[0]

    def of(self, vector: Tensor) -> Tensor:
        """Return the tensor as a view of a vector."""
        numbers = vector[self.start : self.stop]
        if not self.channels_last:
            return numbers.view(self.shape)
        out, inner, *size = self.shape
        return numbers.view(out, *size, inner).movedim(-1, 1)


@dataclass(frozen=True)
class VectorLayout:
    """The two vectors of a run: the server's, and a client's with its personal tensors.

    The server's vector begins with the averaged tensors: first the trained ones, then buffers and
    other tensors that are averaged as they are. Rows, broadcast and server-only tensors follow.
    Frozen tensors are in neither.

    Attributes:
        server: slots in the server's vector, in order.
        personal: slots in a client's personal vector, in order.
        frozen: names of the tensors that every net holds as it was made.
    """

    server: tuple[Slot, ...]
    personal: tuple[Slot, ...]
    frozen: tuple[str, ...] = ()

    @classmethod
    def of(cls, net: Net, table: Mapping[str, Sharing]) -> Self:
        """Return the layout of a net under a sharing table, which cannot unfreeze a tensor.

        Raises:
            PluginError: for a tensor without a rule, a rule without a tensor, a dtype other than
                float32, or a row rule on a tensor without rows.
        """
        state = net.state_dict(keep_vars=True)
        check_table(state, table)
        held, frozen = frozen_tensors(net), list[str]()
        found: list[tuple[Sharing, bool, str, torch.Size]] = []
        for name, value in state.items():
            rule = Sharing.FROZEN if name in held else rule_of(name, table)
            if rule is Sharing.FROZEN:
                frozen.append(name)
                continue
            if value.dtype != torch.float32:
                raise PluginError(
                    f"tensor {name!r} is {value.dtype}; register it as float32 or persistent=False"
                )
            if rule in ROWS and value.dim() < 2:
                raise PluginError(f"tensor {name!r} is {rule} but has no rows: {list(value.shape)}")
            found.append((rule, value.requires_grad and rule not in UNTRAINED, name, value.shape))
        # The order of `Sharing` is that of the vector: averaged tensors come first, as in uploads,
        # and checkpoints hold it without names.
        order = [*Sharing]
        found.sort(key=lambda each: (order.index(each[0]), not each[1]))
        server, personal = (
            _placed(each for each in found if (each[0] is Sharing.PERSONAL) == own)
            for own in (False, True)
        )
        return cls(server, personal, tuple(frozen))

    @property
    def server_size(self) -> int:
        """Length of the server's vector."""
        return self.server[-1].stop if self.server else 0

    @property
    def personal_size(self) -> int:
        """Length of a client's personal vector."""
        return self.personal[-1].stop if self.personal else 0

    @property
    def averaged(self) -> tuple[Slot, ...]:
        """Tensors that are averaged, at the front of the server's vector."""
        return tuple(slot for slot in self.server if slot.rule is Sharing.AVERAGED)

    @property
    def num_averaged(self) -> int:
        """Count of their numbers."""
        return max((slot.stop for slot in self.averaged), default=0)

    @property
    def num_trained(self) -> int:
        """Count of those that go through the server's optimizer."""
        return max((slot.stop for slot in self.averaged if slot.trainable), default=0)

    @property
    def trained(self) -> tuple[Slot, ...]:
        """Averaged tensors that are trained, at the front of the server's vector."""
        return tuple(slot for slot in self.averaged if slot.trainable)

    @property
    def rows(self) -> tuple[Slot, ...]:
        """Tensors of which each client sends one row."""
        return tuple(slot for slot in self.server if slot.rule in ROWS)

    @property
    def upload_size(self) -> int:
        """Count of numbers that a client sends to the server: the averaged part, then its rows."""
        return self.num_averaged + sum(slot.row_size for slot in self.rows)

    def for_steps(self, *, channels_last: bool = True) -> tuple[Self, Tensor]:
        """Return a layout that a GPU trains in with fewer kernels, and its order.

        Of the averaged tensors that are trained, and of those that are not, the matrices come
        first, those of convolutions in `channels_last`; the rest stays. The order, (server_size,)
        int64, has for each place the place here.
        """
        places = torch.arange(self.server_size)
        slots, order, at = list[Slot](), list[Tensor](), 0
        for slot in sorted(self.averaged, key=lambda slot: (not slot.trainable, slot.is_vector)):
            numbers, nhwc = slot.of(places), channels_last and len(slot.shape) == 4
            order.append((numbers.movedim(1, -1) if nhwc else numbers).flatten())
            moved = replace(slot, start=at, stop=at + slot.size, channels_last=nhwc)
            slots.append(moved)
            at += slot.size
        layout = replace(self, server=(*slots, *self.server[len(slots) :]))
        return layout, torch.cat([*order, places[at:]])

    def pack(self, vector: Tensor, client_id: int, out: Tensor) -> None:
        """Copy a client's upload from its server-shaped vector into `out`, (upload_size,)."""
        out[: self.num_averaged].copy_(vector[: self.num_averaged])
        for _, row, place in self.row_places(client_id):
            out[place].copy_(vector[row])

    def row_places(self, client_id: int) -> Iterator[tuple[Slot, slice, slice]]:
        """Yield for each row tensor the client's row in the server's vector and in an upload."""
        at = self.num_averaged
        for slot in self.rows:
            begin = slot.start + client_id * slot.row_size
            yield slot, slice(begin, begin + slot.row_size), slice(at, at + slot.row_size)
            at += slot.row_size

    def bind(self, net: Net, device: torch.device | str = "cpu") -> "Binding":
        """Move the net's tensors into new vectors, of which the net then is a view.

        Broadcast, server-only and frozen parameters stop requiring gradients, and batch norms with
        frozen statistics keep to these.
        """
        net.to(device)
        for name in self.frozen:
            net.tensor(name).requires_grad_(False)
            module, _, leaf = name.rpartition(".")
            if leaf == "running_mean":  # each pass in training mode would change it
                freeze([net.get_submodule(module)])
        server, personal = (_bind(net, slots, device) for slots in (self.server, self.personal))
        return Binding(self, net, server, personal)


@dataclass
class Vector:
    """A flat tensor, (size,), with a gradient of the same size for its trainable slots."""

    data: Tensor
    grad: Tensor


@dataclass
class Binding:
    """A net and the vectors that hold its tensors."""

    layout: VectorLayout
    net: Net
    server: Vector
    personal: Vector

    def trained(self, client_id: int) -> list[nn.Parameter]:
        """Return what a client's optimizer trains: averaged part, the client's rows, personal part.

        Each is one flat parameter that shares memory and gradient with the net, so that not even
        weight decay reaches another client's row.
        """
        spans = [(self.server, slice(0, self.layout.num_trained))]
        for slot, row, _ in self.layout.row_places(client_id):
            spans += [(self.server, row)] if slot.trainable else []
        stops = (slot.stop for slot in self.layout.personal if slot.trainable)
        spans.append((self.personal, slice(0, max(stops, default=0))))
        result = []
        for vector, span in spans:
            if span.stop > span.start:
                parameter = nn.Parameter(vector.data[span])
                parameter.grad = vector.grad[span]
                result.append(parameter)
        return result

    def parts_without_gradient(self) -> tuple[str, ...]:
        """Return the parts of the net that are trained, and whose gradient is 0 everywhere."""
        reached: dict[str, bool] = {}
        for vector, slots in (
            (self.server, self.layout.server),
            (self.personal, self.layout.personal),
        ):
            for slot in slots:
                if slot.trainable and not reached.get(slot.part, False):
                    reached[slot.part] = bool(slot.of(vector.grad).any())
        return tuple(part for part, has in reached.items() if not has)

    def zero_grad(self) -> None:
        """Clear all gradients, in place."""
        # In place, since every parameter's gradient is a view; None would cut them loose.
        self.server.grad.zero_()
        self.personal.grad.zero_()

    @property
    def frozen_hash(self) -> str:
        """Hash of the frozen tensors."""
        digest = hashlib.sha256()
        for name in self.layout.frozen:
            digest.update(self.net.tensor(name).detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def check_frozen(self, expected: str) -> None:
        """Refuse frozen tensors whose hash is not the one of a checkpoint, which holds no more.

        Raises:
            StoreError: if they differ.
        """
        if expected != self.frozen_hash:
            raise StoreError(
                "the frozen tensors of the run are not those that are made here; install the"
                " versions of fedbench, torch and timm that made it, or run it again"
            )

    def named(self, slots: Iterable[Slot]) -> dict[str, Tensor]:
        """Return copies of tensors by name."""
        state = self.net.state_dict()
        return {slot.name: state[slot.name].detach().clone() for slot in slots}


def _placed(found: Iterable[tuple[Sharing, bool, str, torch.Size]]) -> tuple[Slot, ...]:
    # No padding between slots: it would change the length of checkpoints, and nearly all begin at
    # multiples of 16 bytes as it is, which is what a GPU's vector loads ask for.
    slots, at = list[Slot](), 0
    for rule, trained, name, shape in found:
        slots.append(Slot(name, rule, trained, shape, at, at + shape.numel()))
        at += shape.numel()
    return tuple(slots)


def _bind(net: Net, slots: tuple[Slot, ...], device: torch.device | str) -> Vector:
    size = slots[-1].stop if slots else 0
    vector = Vector(torch.zeros(size, device=device), torch.zeros(size, device=device))
    for slot in slots:
        # In torch's default order on a GPU too: NHWC weights would spare it a transposition in each
        # pass, but checkpoints would have another order than on a CPU, where a run may go on.
        view, value = slot.of(vector.data), net.tensor(slot.name)
        view.copy_(value.detach())
        if isinstance(value, nn.Parameter):
            value.data = view  # the Parameter stays: a part may hold it in a list of its own
            value.requires_grad_(slot.trainable)
            if slot.trainable:
                value.grad = slot.of(vector.grad)
        else:
            *path, leaf = slot.name.split(".")
            # `register_buffer` would refuse a name that is there already.
            net.get_submodule(".".join(path))._buffers[leaf] = view
    return vector
