"""Batch norms that keep several views apart which go through a net in one pass."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class PerView(_BatchNorm):
    """Batch norm of as many equal parts of the batch as there are views, one after another."""

    num_views = 1

    def forward(self, x: Tensor) -> Tensor:
        """Norm (B, C, …) over the examples of each view."""
        norm = super().forward
        if self.num_views == 1:
            return norm(x)
        return torch.cat([norm(view) for view in x.chunk(self.num_views)])


class BatchNorm1d(PerView, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that can keep views apart."""


class BatchNorm2d(PerView, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that can keep views apart."""


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return all batch norms of a module, which mix the examples of a batch."""
    return [inner for inner in module.modules() if isinstance(inner, _BatchNorm)]


@contextmanager
def views_apart(norms: Iterable[_BatchNorm], num_views: int) -> Iterator[None]:
    """Inside the block, let norms take a batch for so many equal views, one after another."""
    able = [norm for norm in norms if isinstance(norm, PerView)]
    for norm in able:
        norm.num_views = num_views
    try:
        yield
    finally:
        for norm in able:
            norm.num_views = 1
