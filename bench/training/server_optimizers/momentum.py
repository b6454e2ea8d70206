"""Momentum of averaged changes."""

from torch import Tensor

from fedbench.bench.training.server_optimizers.base import ServerOptimizer


class Momentum(ServerOptimizer):
    """m = μ m + Δ; θ += η m."""

    reads = ("momentum",)
    first = True

    def move(self, theta: Tensor, change: Tensor) -> None:
        self.m.mul_(self.config.momentum).add_(change.to(theta.dtype))
        theta.add_(self.m, alpha=self.lr)
