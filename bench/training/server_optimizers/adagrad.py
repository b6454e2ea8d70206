"""Adagrad of averaged changes."""

from torch import Tensor

from fedbench.bench.training.server_optimizers.base import ServerOptimizer


class Adagrad(ServerOptimizer):
    """v += Δ²; θ += η Δ / (sqrt(v) + ε), without momentum.

    Source: Reddi et al. 2021, https://arxiv.org/abs/2003.00295, algorithm 2. Deviation: v starts at
    0, not at ε².
    """

    reads = ("epsilon",)
    second = True

    def move(self, theta: Tensor, change: Tensor) -> None:
        delta = change.to(theta.dtype)
        self.v.addcmul_(delta, delta)
        theta.addcdiv_(delta, self.v.sqrt().add_(self.epsilon), value=self.lr)
