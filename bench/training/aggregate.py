"""Streaming aggregation: uploads are added as they arrive and not kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.bench.method import Sharing
from fedbench.bench.training.layout import Layout, Slot
from fedbench.bench.training.server_optimizer import ServerOptimizer


@dataclass(frozen=True)
class Protection:
    """Client-level differential privacy of one round.

    Each client's change, over all averaged numbers together, is cut to the norm `clip`; Gaussian
    noise is added to the sum of changes, which is divided by the expected size of the cohort, a
    number that does not depend on who took part.

    Source: McMahan et al. 2018, https://arxiv.org/abs/1710.06963, with flat clipping, equal weights
    and the estimator of fixed denominator. The noise comes from a seeded generator: a simulation.
    """

    before: Tensor  # the server's vector, from which changes are measured
    clip: float  # > 0
    noise: float  # standard deviation on each number of the sum
    expected_clients: float  # divisor of the sum
    rng: torch.Generator  # draws the noise, on the CPU


Weigh = Callable[[Mapping[str, Tensor]], Mapping[str, float]]
"""Returns factors by name for the averaged tensors of one upload; 1 for those left out."""


class Aggregate:
    """The weighted sum of one round's uploads, in float64.

    Memory does not grow with the cohort, except for the clients' rows. Uploads are added in
    client-id order, so that the sum has the same bits with any number of workers. An upload of
    weight 0 (a client that made no step) is ignored.

    Args:
        layout, device: of the uploads, and of their sum.
        protection: client-level privacy; needs equal weights and no rows.
        weigh: scales the tensors of each upload; not with `protection`.
        unweighted: names of averaged buffers to which every client with a weight adds the same.
    """

    def __init__(
        self,
        layout: Layout,
        device: torch.device | str,
        protection: Protection | None = None,
        weigh: Weigh | None = None,
        unweighted: Sequence[str] = (),
    ) -> None:
        self._layout, self._protection, self._weigh = layout, protection, weigh
        self._sum = torch.zeros(layout.num_averaged, dtype=torch.float64, device=device)
        self._rows: dict[int, tuple[float, Tensor]] = {}
        self.total, self._count, self.num_clipped = 0.0, 0, 0
        slots = {slot.name: slice(slot.start, slot.stop) for slot in layout.averaged}
        self._unweighted = [slots[name] for name in unweighted]

    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        """Add one client's upload, (upload_size,), which may be overwritten afterwards."""
        if weight <= 0:
            return
        upload = upload.to(self._sum.device)
        averaged = upload[: self._layout.num_averaged]
        if self._protection is not None:
            averaged = self._clipped(averaged, self._protection)
        self._sum.add_(averaged, alpha=weight)
        for part in self._unweighted:
            self._sum[part].add_(averaged[part], alpha=1.0 - weight)
        if self._weigh is not None:
            self._scale(averaged, weight, self._weigh)
        self.total += weight
        self._count += 1
        if self._layout.rows:
            self._rows[client_id] = (weight, upload[self._layout.num_averaged :].clone())

    def apply(self, theta: Tensor, optimizer: ServerOptimizer) -> None:
        """Update the server's vector, (server_size,), in place.

        Trained tensors and mean-rows go through the optimizer; averaged buffers become their mean
        and own-rows the client's. If all weights are 0, nothing changes.
        """
        if self.total == 0 and self._protection is None:
            return
        trained, averaged = self._layout.num_trained, self._layout.num_averaged
        mean = self._mean() if self._protection is None else self._noisy(self._protection)
        theta[trained:averaged].copy_(mean[trained:averaged])
        mean_rows = [s for s in self._layout.rows if s.rule is Sharing.MEAN_ROW]
        spans = [slice(0, trained), *(slice(slot.start, slot.stop) for slot in mean_rows)]
        row_changes = [self._row_change(slot, theta) for slot in mean_rows]
        changes = [mean[:trained] - theta[:trained].double(), *row_changes]
        joined = torch.cat([theta[span] for span in spans])
        optimizer.step(joined, torch.cat(changes))
        for span, part in zip(spans, joined.split([len(c) for c in changes]), strict=True):
            theta[span].copy_(part)
        for slot, row, sent, _ in self._sent_rows():
            if slot.rule is Sharing.OWN_ROW:
                theta[row].copy_(sent)

    def _mean(self) -> Tensor:
        mean = self._sum / self.total
        for part in self._unweighted:
            mean[part] = self._sum[part] / self._count
        return mean

    def _scale(self, averaged: Tensor, weight: float, weigh: Weigh) -> None:
        """Add what the factors change; tensors of factor 1 keep the bits of a plain average."""
        slots = {slot.name: slot for slot in self._layout.averaged}
        sent = {name: slot.of(averaged) for name, slot in slots.items()}
        for name, factor in weigh(sent).items():
            part = slice(slots[name].start, slots[name].stop)
            self._sum[part].add_(averaged[part], alpha=weight * (factor - 1.0))

    def _clipped(self, averaged: Tensor, protection: Protection) -> Tensor:
        """Return a client's change, cut to the norm `clip`, (num_averaged,) float64."""
        change = averaged.double() - protection.before[: len(averaged)].double()
        norm = float(torch.linalg.vector_norm(change))
        if norm > protection.clip:
            self.num_clipped += 1
            change.mul_(protection.clip / norm)
        return change

    def _noisy(self, protection: Protection) -> Tensor:
        """Return the server's values plus the mean change with noise, (num_averaged,) float64."""
        noise = torch.randn(len(self._sum), dtype=torch.float64, generator=protection.rng)
        change = self._sum + protection.noise * noise.to(self._sum.device)
        before = protection.before[: len(change)].double()
        return before + change / protection.expected_clients

    def _sent_rows(self) -> Iterator[tuple[Slot, slice, Tensor, float]]:
        """Yield each row that a client sent: its tensor, its place there, itself, its weight."""
        skip = self._layout.num_averaged
        for client_id, (weight, rows) in self._rows.items():
            for slot, row, place in self._layout.row_places(client_id):
                yield slot, row, rows[place.start - skip : place.stop - skip], weight

    def _row_change(self, table: Slot, theta: Tensor) -> Tensor:
        """Return the mean change of a table of rows over the cohort, (size,) float64."""
        change = torch.zeros(table.size, dtype=torch.float64, device=theta.device)
        for slot, row, sent, weight in self._sent_rows():
            if slot is table:
                moved = (sent.double() - theta[row].double()) * weight
                change[row.start - table.start : row.stop - table.start] = moved
        return change / self.total


def optimized_size(layout: Layout) -> int:
    """Count numbers that go through the server's optimizer: trained averaged ones and mean-rows."""
    return layout.num_trained + sum(s.size for s in layout.rows if s.rule is Sharing.MEAN_ROW)
