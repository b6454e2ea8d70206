"""Streaming aggregation: uploads are folded in as they arrive and not kept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedbench.bench.layout import Layout, Slot
from fedbench.bench.server import ServerOptimizer
from fedbench.bench.sharing import Sharing


class Aggregate:
    """The weighted sum of one round's uploads, in float64.

    Memory does not grow with the cohort, but for the clients' own rows.

    Uploads are folded in client-id order, so that the sum has the same bits however clients were
    spread over workers. Weight 0 (a client that made no step) leaves no trace.
    """

    def __init__(self, layout: Layout, device: torch.device | str) -> None:
        self._layout = layout
        self._sum = torch.zeros(layout.num_averaged, dtype=torch.float64, device=device)
        self._rows: dict[int, tuple[float, Tensor]] = {}
        self.total = 0.0

    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        """Add one client's upload, (upload_size,), which may be overwritten afterwards."""
        if weight <= 0:
            return
        upload = upload.to(self._sum.device)
        self._sum.add_(upload[: self._layout.num_averaged], alpha=weight)
        self.total += weight
        if self._layout.rows:
            self._rows[client_id] = (weight, upload[self._layout.num_averaged :].clone())

    def apply(self, theta: Tensor, optimizer: ServerOptimizer) -> None:
        """Bring the server's vector, (server_size,), to the next round, in place.

        Trained tensors and mean-rows go through the optimizer; averaged buffers become their mean,
        own-rows the client's. Without any weight nothing changes.
        """
        if self.total == 0:
            return
        trained, averaged = self._layout.num_trained, self._layout.num_averaged
        mean = self._sum / self.total
        theta[trained:averaged].copy_(mean[trained:averaged])
        spans = [slice(0, trained), *self._mean_rows()]
        changes = [mean[:trained] - theta[:trained].double(), *self._mean_row_changes(theta)]
        joined = torch.cat([theta[span] for span in spans])
        optimizer.step(joined, torch.cat(changes))
        for span, part in zip(spans, joined.split([len(c) for c in changes]), strict=True):
            theta[span].copy_(part)
        for client_id, (_, rows) in self._rows.items():
            for slot, row, place in self._row_places(client_id):
                if slot.rule is Sharing.OWN_ROW:
                    theta[row].copy_(rows[place])

    def _row_places(self, client_id: int) -> Iterator[tuple[Slot, slice, slice]]:
        """As `Layout.row_places`, with places in the kept rows alone."""
        skip = self._layout.num_averaged
        for slot, row, place in self._layout.row_places(client_id):
            yield slot, row, slice(place.start - skip, place.stop - skip)

    def _mean_rows(self) -> list[slice]:
        return [slice(s.start, s.stop) for s in self._layout.rows if s.rule is Sharing.MEAN_ROW]

    def _mean_row_changes(self, theta: Tensor) -> list[Tensor]:
        changes = []
        for span in self._mean_rows():
            change = torch.zeros(span.stop - span.start, dtype=torch.float64, device=theta.device)
            for client_id, (weight, rows) in self._rows.items():
                for _, row, place in self._row_places(client_id):
                    if span.start <= row.start < span.stop:
                        moved = rows[place].double() - theta[row].double()
                        change[row.start - span.start : row.stop - span.start] = moved * weight
            changes.append(change / self.total)
        return changes


def optimized_size(layout: Layout) -> int:
    """How many numbers go through the server's optimizer: trained averaged ones and mean-rows."""
    rows = [s.stop - s.start for s in layout.rows if s.rule is Sharing.MEAN_ROW]
    return layout.num_trained + sum(rows)
