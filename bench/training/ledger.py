"""What a client and the server exchange, by tensor group and direction, and what it reveals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fedbench.bench.method import ACTIVATIONS, Extra
from fedbench.bench.method.net import Wire
from fedbench.bench.method.sharing import ROWS, SENT_DOWN, UPLOADED
from fedbench.bench.training.layout import Layout, Slot

BYTES_PER_NUMBER = 4  # tensors travel as float32

_NOTHING: Mapping[str, Extra] = MappingProxyType({})


def group_of(name: str) -> str:
    """The part of the net that a tensor belongs to: `encoder.stem.weight` -> `encoder`."""
    return name.split(".", 1)[0]


@dataclass
class Flow:
    """All messages of one tensor group in one direction.

    Attributes:
        messages: how many; one per client and round.
        numbers: how many numbers they hold together.
        bytes: how long they are together.
        revealing: how many of them hold something of a single image.
        smallest: images that the smallest part of any of them stands for; None = nothing smaller
            than all images of a client.
    """

    messages: int = 0
    numbers: int = 0
    bytes: int = 0
    revealing: int = 0
    smallest: int | None = None

    def add(self, other: Flow, times: int = 1) -> None:
        """Count another flow, `times` over."""
        self.messages += other.messages * times
        self.numbers += other.numbers * times
        self.bytes += other.bytes * times
        self.revealing += other.revealing * times
        found = [each for each in (self.smallest, other.smallest) if each is not None]
        self.smallest = min(found, default=None)


@dataclass
class Ledger:
    """Running totals over clients and rounds: `{direction: {group: Flow}}`."""

    flows: dict[str, dict[str, Flow]] = field(default_factory=lambda: {"up": {}, "down": {}})

    @classmethod
    def of_client(cls, layout: Layout, declared: Mapping[str, Extra] = _NOTHING) -> Ledger:
        """What the sharing table alone makes one client exchange in a round in which it trains.

        Args:
            layout: the run's tensors.
            declared: the method's extras; a tensor's name may stand among them.
        """
        ledger = cls()
        for direction, rules in (("down", SENT_DOWN), ("up", UPLOADED)):
            groups: dict[str, list[Slot]] = {}
            for slot in layout.server:
                if slot.rule in rules:
                    groups.setdefault(group_of(slot.name), []).append(slot)
            for group, slots in groups.items():
                row = direction == "up"
                numbers = sum(_numbers(slot, one_row=row and slot.rule in ROWS) for slot in slots)
                single = any(declared.get(slot.name, Extra()).per_sample for slot in slots)
                ledger.add(direction, group, numbers, smallest=1 if single and row else None)
        return ledger

    @classmethod
    def of_wire(cls, wire: Wire) -> Ledger:
        """Activations and gradients that crossed between a client and server-only parts."""
        ledger = cls()
        if wire.up or wire.down:
            for direction, size in (("up", wire.up), ("down", wire.down)):
                numbers = size // BYTES_PER_NUMBER
                ledger.add(direction, ACTIVATIONS, numbers, size=size, smallest=1)
        return ledger

    @classmethod
    def from_dict(cls, plain: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Ledger:
        """The inverse of `as_dict`."""
        return cls(
            {
                direction: {group: Flow(**flow) for group, flow in groups.items()}
                for direction, groups in plain.items()
            }
        )

    def add(
        self,
        direction: str,
        group: str,
        numbers: int,
        *,
        size: int | None = None,
        smallest: int | None = None,
    ) -> None:
        """Count one message.

        Args:
            direction: `up` or `down`.
            group: which tensors.
            numbers: how many numbers.
            size: bytes; None = 4 for each number.
            smallest: images that its smallest part stands for; None = all of the client's.
        """
        size = numbers * BYTES_PER_NUMBER if size is None else size
        message = Flow(1, numbers, size, int(smallest is not None and smallest < 2), smallest)
        self.flows[direction].setdefault(group, Flow()).add(message)

    def add_extras(
        self, extras: Mapping[str, Tensor], declared: Mapping[str, Extra] = _NOTHING
    ) -> None:
        """Count what `after_local` sends up, under what the method declares of it."""
        for name, value in extras.items():
            extra = declared.get(name, Extra())
            smallest = 1 if extra.per_sample else None
            if extra.group_size is not None:
                smallest = int(extras[extra.group_size].min())
            size = value.numel() * value.element_size()
            self.add("up", name, value.numel(), size=size, smallest=smallest)

    def one_way(self, direction: str) -> Ledger:
        """The messages of one direction, `up` or `down`."""
        other = "down" if direction == "up" else "up"
        return Ledger({direction: self.flows[direction], other: {}})

    def merge(self, other: Ledger, times: int = 1) -> None:
        """Add another ledger, `times` over."""
        for direction, group, flow in other:
            self.flows[direction].setdefault(group, Flow()).add(flow, times)

    def __iter__(self) -> Iterator[tuple[str, str, Flow]]:
        """Every flow: direction, group, flow."""
        for direction, groups in self.flows.items():
            for group, flow in groups.items():
                yield direction, group, flow

    @property
    def up(self) -> dict[str, int]:
        """Bytes from clients to the server, by group."""
        return {group: flow.bytes for group, flow in self.flows["up"].items()}

    @property
    def down(self) -> dict[str, int]:
        """Bytes from the server to clients, by group."""
        return {group: flow.bytes for group, flow in self.flows["down"].items()}

    @property
    def bytes_up(self) -> int:
        """Total from clients to the server."""
        return sum(self.up.values())

    @property
    def bytes_down(self) -> int:
        """Total from the server to clients."""
        return sum(self.down.values())

    @property
    def revealing(self) -> int:
        """Messages to the server that hold something of a single image."""
        return sum(flow.revealing for flow in self.flows["up"].values())

    @property
    def smallest(self) -> int | None:
        """Images that the smallest part of any message to the server stands for."""
        found = [f.smallest for f in self.flows["up"].values() if f.smallest is not None]
        return min(found, default=None)

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """For JSON: `{"up": {group: {messages, numbers, …}}, "down": {…}}`."""
        return {
            direction: {group: asdict(flow) for group, flow in sorted(groups.items())}
            for direction, groups in self.flows.items()
        }


def _numbers(slot: Slot, *, one_row: bool) -> int:
    return slot.row_size if one_row else slot.stop - slot.start
