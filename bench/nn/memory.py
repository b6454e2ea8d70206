"""A client's memory of projections, for clustering at the end of its round."""

from typing import Self, cast

import torch
from torch import Tensor, nn


class Memory(nn.Module):
    """The newest rows of a client's round, in a ring of (size, dim).

    Its buffers are not persistent: they are no tensors of the run, so neither sent nor stored.
    """

    rows: Tensor
    places: Tensor
    _limit: Tensor
    _pushed: Tensor

    @classmethod
    def of(cls, net: nn.ModuleDict) -> Self:
        """Return the part `memory` of a net."""
        return cast(Self, net["memory"])

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, dim), persistent=False)
        # Counters lie on the device, so that a recorded step counts on.
        for name, shape in (("places", (size,)), ("_limit", ()), ("_pushed", ())):
            counters = torch.zeros(shape, dtype=torch.int64)
            self.register_buffer(name, counters, persistent=False)
        self.reset(size)

    def reset(self, capacity: int) -> None:
        """Forget everything and limit the rows to `capacity`, or to `size` if that is less."""
        self.capacity = min(capacity, len(self.rows))
        self._limit.fill_(max(1, self.capacity))
        self._pushed.zero_()
        self._held: Tensor | None = None

    def hold(self, rows: Tensor) -> None:
        """Hold exactly these rows (n, dim), any number, one per image, until the next `reset`."""
        self._held = rows

    def push(self, rows: Tensor, images: Tensor) -> None:
        """Add rows (n, dim), the last one being the newest; the oldest make room.

        `images` are the positions of their images among the client's, (n,) int64.
        """
        if self.capacity:
            rows, images = rows[-self.capacity :], images[-self.capacity :]
            at = (self._pushed + torch.arange(len(rows), device=rows.device)) % self._limit
            self.rows[at] = rows
            self.places[at] = images
            self._pushed += len(rows)

    @property
    def _count(self) -> int:
        return min(int(self._pushed), self.capacity)

    def valid(self) -> Tensor:
        """Return the rows held, (min(pushed, capacity), dim), in no particular order."""
        return self.rows[: self._count] if self._held is None else self._held

    def images(self) -> Tensor:
        """Return the position of each held row's image, (n,) int64."""
        return self.places[: self._count] if self._held is None else torch.arange(len(self._held))

    def newest(self) -> Tensor:
        """Return the index of each image's newest row among those held, int64 ascending."""
        full = self._held is None and 0 < self.capacity <= int(self._pushed)
        start = int(self._pushed) % self.capacity if full else 0
        images = self.images().tolist()
        newest = {images[at]: at for at in (*range(start, len(images)), *range(start))}
        return torch.tensor(sorted(newest.values()), dtype=torch.int64)
