"""Batch norms that keep several views apart which go through a net in one pass."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class PerView(_BatchNorm):
    """Batch norm of as many equal parts of the batch as there are views, one after another."""

    num_views = 1
    taken: tuple[Tensor, Tensor] | None = None
    """Means and variances of the views, each (V, C), of a compiled pass that is going on."""

    def forward(self, x: Tensor) -> Tensor:
        """Norm (B, C, …) over the examples of each view."""
        if self.training and self.momentum is not None and torch.compiler.is_compiling():
            return self._at_once(x)
        norm = super().forward
        if self.num_views == 1:
            return norm(x)
        return torch.cat([norm(view) for view in x.chunk(self.num_views)])

    def _at_once(self, x: Tensor) -> Tensor:
        """Do the same as one formula for all views, of which a compiler makes few kernels.

        Running statistics stay as they are: `add_statistics` moves those of all norms together.
        """
        with torch.no_grad():
            split = x.float().unflatten(0, (self.num_views, -1))  # (V, B / V, C, …)
            over = [1, *range(3, split.dim())]
            variances, means = torch.var_mean(split, over, correction=0, keepdim=True)
            count = x.numel() // means.numel()
            self.taken = means.flatten(1), variances.flatten(1) * (count / (count - 1))
            scales = torch.rsqrt(variances + self.eps)
        normed = cast(Tensor, _ViewNorm.apply(x, means, scales, self.weight, self.bias))
        # Out here: of a function that gives a view, or its input's type, torch 2.11 compiles no
        # gradient.
        rounded: Tensor = normed.flatten(0, 1).to(x.dtype)
        return rounded


_SMALL_MAP = 64
"""Most numbers of a map that are summed at once."""


class _ViewNorm(torch.autograd.Function):
    """Batch norm by view with its gradient written out: sums over the batch are made once."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        means: Tensor,
        scales: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Norm (B, C, …) -> (V, B / V, C, …) by the views' own means and 1 / deviations."""
        ctx.save_for_backward(x, means, scales, weight)
        y: Tensor = (x.float().unflatten(0, (len(means), -1)) - means) * scales
        if weight is not None and bias is not None:
            y = y * _channels(weight, y) + _channels(bias, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, weight and bias, through means and deviations too."""
        x, means, scales, weight = ctx.saved_tensors
        normed = (x.float().unflatten(0, (len(means), -1)) - means) * scales
        # In two steps, of which a compiler makes a kernel each: over the columns of maps, or whole
        # maps if small, then over the rest.
        inner = [*range(3, dy.dim())]
        if dy[0, 0, 0].numel() > _SMALL_MAP:
            inner = inner[-1:]
        parts = [v.sum(inner) if inner else v for v in (dy, dy * normed)]  # (V, B / V, C, …) each
        sums = torch.stack(parts).movedim(3, 2).flatten(3).sum(3)  # (2, V, C)
        shares = (sums * (means.numel() / x.numel())).view(2, *means.shape)
        dx = (dy - shares[0] - normed * shares[1]) * scales
        if weight is None:
            return dx.flatten(0, 1).to(x.dtype), None, None, None, None
        dx = dx * _channels(weight, dx)
        d_bias, d_weight = sums.sum(1)
        return dx.flatten(0, 1).to(x.dtype), None, None, d_weight, d_bias


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """Return one number a channel, (C,), in the shape of (V, B, C, …)."""
    return values.view(-1, *(1 for _ in range(like.dim() - 3)))


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
    before = [(norm, norm.num_views) for norm in norms if isinstance(norm, PerView)]
    for norm, _ in before:
        norm.num_views = num_views
    try:
        yield
    finally:
        for norm, number in before:
            norm.num_views = number


@torch.no_grad()
def add_statistics(norms: Sequence[PerView], taken: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Move the running statistics of norms towards those of the views of a pass, one by one."""
    # Through `data`: autograd would refuse to go back through an earlier pass of torch's own norm,
    # which holds the statistics although it does not read them.
    for momentum in {norm.momentum for norm in norms if norm.momentum is not None}:
        own = [at for at, norm in enumerate(norms) if norm.momentum == momentum]
        running = [buffer.data for at in own for buffer in norms[at].buffers()]
        for view in range(len(taken[own[0]][0])):
            batch = [value[view] for at in own for value in taken[at]]
            torch._foreach_lerp_(running, batch, momentum)
