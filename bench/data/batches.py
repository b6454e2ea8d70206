"""Images and labels of one client, and the batches of local training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from fedbench.bench.data.views.views import make_view
from fedbench.bench.system.compute import to_device

_CHUNK = 512
"""Images augmented in one call: enough to hide Python's share, few enough for any memory."""


@dataclass(frozen=True)
class Batch:
    """Input of one local step."""

    views: tuple[Tensor, ...]  # each (B, C, H, W)
    labels: Tensor  # (B,), -1 where hidden
    examples: Tensor = field(default_factory=lambda: torch.empty(0))  # (B,) of the client's images
    draws: Mapping[str, Tensor] = field(default_factory=dict)  # what `Method.draws` returned for it
    second_batch: tuple[Tensor, ...] = ()  # views of other images of the client, if asked for


class SecondBatches:
    """Random batches of a client's images (N, C, H, W): reshuffled when all have been drawn.

    It draws from its own generator, so that the first batches of a method stay as they are.
    """

    def __init__(self, images: Tensor, views: Sequence[str], rng: torch.Generator) -> None:
        self._images, self._views, self._rng = images, views, rng
        self._left = torch.empty(0, dtype=torch.int64)

    def next(self, size: int) -> tuple[Tensor, ...]:
        """Return the views of the next `size` images, each (size, C, H, W)."""
        while len(self._left) < size:
            shuffled = torch.randperm(len(self._images), generator=self._rng)
            self._left = torch.cat([self._left, shuffled])
        chosen, self._left = self._left[:size], self._left[size:]
        images = self._images[to_device(chosen, self._images.device)]
        return tuple(_views(self._views, images, self._rng))


@dataclass(frozen=True)
class ClientData:
    """Data of one client: images uint8 (N, C, H, W) and labels (N,), -1 where hidden."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labelled(self) -> bool:
        """True if at least one label is visible."""
        return bool((self.labels >= 0).any())

    def keep(self, chosen: Tensor) -> Self:
        """Return the examples of a boolean mask (N,) or of an index (M,)."""
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])

    def relabel(self, labels: Tensor, keep: Tensor) -> Self:
        """Keep some examples and replace their labels by pseudo-labels; both arguments are (N,)."""
        return replace(self, labels=labels).keep(keep)

    def ordered(
        self, view: str, rng: torch.Generator, batch_size: int = _CHUNK
    ) -> Iterator[Tensor]:
        """Yield the views of one pass in stored order, each (B, C, H, W)."""
        for images in self.images.split(batch_size):
            yield make_view(view, images, rng)

    def batches(
        self,
        views: Sequence[str],
        epochs: int,
        batch_size: int,
        *,
        keep_last: bool,
        min_batch: int,
        order: torch.Generator,
        augment: torch.Generator,
    ) -> Iterator[Batch]:
        """Yield the shuffled batches of some epochs; each epoch draws new views.

        A batch has the views in the order of their names. An incomplete last batch is used with
        `keep_last` only, and none smaller than `min_batch`. `order` shuffles, `augment` draws
        views.
        """
        per_chunk = batch_size * max(1, _CHUNK // batch_size)
        for _ in range(epochs):
            shuffled = to_device(torch.randperm(len(self), generator=order), self.images.device)
            if not keep_last:
                shuffled = shuffled[: len(shuffled) // batch_size * batch_size]
            for chunk in shuffled.split(per_chunk):
                images = self.images[chunk]
                chunks = [view.split(batch_size) for view in _views(views, images, augment)]
                for index, part in enumerate(chunk.split(batch_size)):
                    if len(part) >= max(1, min_batch):
                        yield Batch(tuple(view[index] for view in chunks), self.labels[part], part)


def _views(names: Sequence[str], images: Tensor, rng: torch.Generator) -> Sequence[Tensor]:
    """Draw one view per name; equal names share one call, which is faster for few images.

    One call draws other numbers than two: that was a benchmark version of its own.
    """
    if len(set(names)) == 1:
        return make_view(names[0], images.repeat(len(names), 1, 1, 1), rng).chunk(len(names))
    return [make_view(name, images, rng) for name in names]
