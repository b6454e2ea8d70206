"""Which bytes a client and the server exchange, by tensor group and direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedbench.bench.layout import Layout, Slot
from fedbench.bench.sharing import ROWS, SENT_DOWN, UPLOADED

BYTES_PER_NUMBER = 4  # tensors travel as float32


def group_of(name: str) -> str:
    """The part of the net that a tensor belongs to: `encoder.stem.weight` -> `encoder`."""
    return name.split(".", 1)[0]


@dataclass
class Ledger:
    """Running totals in bytes, `{group: bytes}` for each direction, over all clients and rounds."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_client(cls, layout: Layout) -> Ledger:
        """What the sharing table alone makes one client exchange in one round."""
        ledger = cls()
        for slot in layout.server:
            if slot.rule in SENT_DOWN:
                ledger.add("down", group_of(slot.name), _numbers(slot) * BYTES_PER_NUMBER)
            if slot.rule in UPLOADED:
                sent = slot.row_size if slot.rule in ROWS else _numbers(slot)
                ledger.add("up", group_of(slot.name), sent * BYTES_PER_NUMBER)
        return ledger

    def add(self, direction: str, group: str, size: int) -> None:
        """Count one message of `size` bytes."""
        side = self.up if direction == "up" else self.down
        side[group] = side.get(group, 0) + size

    def add_extras(self, extras: Mapping[str, Tensor]) -> None:
        """Count what `after_local` sends up."""
        for name, value in extras.items():
            self.add("up", name, value.numel() * value.element_size())

    def merge(self, other: Ledger, times: int = 1) -> None:
        """Add another ledger, `times` over."""
        for direction, side in (("up", other.up), ("down", other.down)):
            for group, size in side.items():
                self.add(direction, group, size * times)

    @property
    def bytes_up(self) -> int:
        """Total from clients to the server."""
        return sum(self.up.values())

    @property
    def bytes_down(self) -> int:
        """Total from the server to clients."""
        return sum(self.down.values())

    def as_dict(self) -> dict[str, dict[str, int]]:
        """For JSON: `{"up": {group: bytes}, "down": {…}}`."""
        return {"up": dict(sorted(self.up.items())), "down": dict(sorted(self.down.items()))}


def _numbers(slot: Slot) -> int:
    return slot.stop - slot.start
