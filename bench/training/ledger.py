"""Count of the messages between clients and server, by tensor group, and what they reveal."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor

from fedbench.bench.method import ACTIVATIONS, Extra, Sharing
from fedbench.bench.method.net import Wire
from fedbench.bench.method.sharing import ROWS, SENT_DOWN, UPLOADED
from fedbench.bench.system.errors import PluginError
from fedbench.bench.training.layout import VectorLayout

BYTES_PER_NUMBER = 4  # tensors travel as float32

_NOTHING: Mapping[str, Extra] = MappingProxyType({})


@dataclass
class Flow:
    """All messages of one tensor group in one direction."""

    messages: int = 0  # count; one per client and round
    numbers: int = 0  # numbers in all of them
    bytes: int = 0  # length of all of them
    revealing: int = 0  # count of those that contain information on a single image
    # Images behind the smallest part of any of them; None = every part comes from all images of a
    # client.
    smallest: int | None = None
    single: int = 0  # count of those that an aggregator reads one by one

    def add(self, other: Self, times: int = 1) -> None:
        """Add another flow `times` times."""
        self.messages += other.messages * times
        self.numbers += other.numbers * times
        self.bytes += other.bytes * times
        self.revealing += other.revealing * times
        self.single += other.single * times
        smallest = (size for size in (self.smallest, other.smallest) if size is not None)
        self.smallest = min(smallest, default=None)


@dataclass
class Ledger:
    """Running totals over clients and rounds: `{direction: {group: Flow}}`."""

    flows: dict[str, dict[str, Flow]] = field(default_factory=lambda: {"up": {}, "down": {}})

    @classmethod
    def of_client(
        cls, layout: VectorLayout, declared: Mapping[str, Extra] = _NOTHING, *, single: bool = False
    ) -> Self:
        """Count the tensors that one client exchanges in a round in which it trains; no extras.

        `declared` are the method's extras, which may also describe tensors of the net; `single`
        says that the aggregator reads uploads one by one.
        """
        ledger = cls()
        for direction, rules in (("down", SENT_DOWN), ("up", UPLOADED)):
            for slot in layout.server:
                if slot.rule not in rules:
                    continue
                flow, up = ledger.flows[direction].setdefault(slot.part, Flow(1)), direction == "up"
                flow.numbers += slot.row_size if up and slot.rule in ROWS else slot.size
                flow.bytes = flow.numbers * BYTES_PER_NUMBER
                if up and declared.get(slot.name, Extra()).per_sample:
                    flow.revealing = flow.smallest = 1
                if up and single and slot.rule is Sharing.AVERAGED:
                    flow.single = 1
        return ledger

    @classmethod
    def resent(cls, layout: VectorLayout, names: Collection[str]) -> Self:
        """Count the broadcast tensors that a client receives again after the pre-round statistics.

        Raises:
            PluginError: for a name that no broadcast tensor has.
        """
        ledger = cls()
        sizes = {s.name: s.size for s in layout.server if s.rule is Sharing.BROADCAST}
        for name in names:
            if name not in sizes:
                known = ", ".join(sizes) or "none"
                raise PluginError(
                    f"needs().pre_round names {name!r}, which is no broadcast tensor: {known}"
                )
            ledger.add("down", name.split(".", 1)[0], sizes[name])
        return ledger

    @classmethod
    def of_wire(cls, wire: Wire) -> Self:
        """Count activations and gradients that crossed between a client and server-only parts."""
        ledger = cls()
        if wire.up or wire.down:
            for direction, size in (("up", wire.up), ("down", wire.down)):
                ledger.add(direction, ACTIVATIONS, size // BYTES_PER_NUMBER, smallest=1)
        return ledger

    @classmethod
    def from_dict(cls, plain: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Self:
        """Rebuild a ledger from its `as_dict`."""
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
        """Count one message of so many numbers and `size` bytes (None = 4 for each number).

        `smallest` counts the images behind its smallest part; None = all of the client's.
        """
        size = numbers * BYTES_PER_NUMBER if size is None else size
        message = Flow(1, numbers, size, int(smallest is not None and smallest < 2), smallest)
        self.flows[direction].setdefault(group, Flow()).add(message)

    def add_extras(
        self, extras: Mapping[str, Tensor], declared: Mapping[str, Extra] = _NOTHING
    ) -> None:
        """Count the tensors that `after_local` sends, which the method declares."""
        for name, value in extras.items():
            extra = declared.get(name, Extra())
            smallest = 1 if extra.per_sample else None
            # Read from the message itself: how many images are behind a part differs by round.
            if extra.group_size is not None:
                smallest = int(extras[extra.group_size].min())
            size = value.numel() * value.element_size()
            self.add("up", name, value.numel(), size=size, smallest=smallest)

    def merge(self, other: Self, only: str | None = None, times: int = 1) -> None:
        """Add another ledger, or the direction `only` of it, `times` times."""
        for direction in self.flows if only is None else (only,):
            for group, flow in other.flows[direction].items():
                self.flows[direction].setdefault(group, Flow()).add(flow, times)

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
        """Count of messages to the server that contain information on a single image."""
        return sum(flow.revealing for flow in self.flows["up"].values())

    @property
    def smallest(self) -> int | None:
        """Images behind the smallest part of any message to the server; None = all of a client."""
        sizes = (f.smallest for f in self.flows["up"].values() if f.smallest is not None)
        return min(sizes, default=None)

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return JSON values: `{"up": {group: {messages, numbers, …}}, "down": {…}}`."""
        return {
            direction: {group: _plain(flow) for group, flow in sorted(groups.items())}
            for direction, groups in self.flows.items()
        }


def _plain(flow: Flow) -> dict[str, Any]:
    """Return a flow as JSON values, without `single` where it is 0: of a mean, as in most runs."""
    return {name: value for name, value in asdict(flow).items() if value or name != "single"}
