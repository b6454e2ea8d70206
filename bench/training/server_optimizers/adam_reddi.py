"""FedAdam as printed."""

from torch import Tensor

from fedbench.bench.training.server_optimizers.base import ServerOptimizer


class AdamReddi(ServerOptimizer):
    """m = β1 m + (1 - β1) Δ; v = β2 v + (1 - β2) Δ²; θ += η m / (sqrt(v) + ε).

    Source: Reddi et al. 2021, https://arxiv.org/abs/2003.00295, algorithm 2, without correction of
    bias. Deviation: v starts at 0, not at ε². Other members change one of its three parts.
    """

    reads = ("beta1", "beta2", "epsilon")
    first = second = True

    def move(self, theta: Tensor, change: Tensor) -> None:
        # Moments are float32, half the memory of the sum's float64.
        delta, beta1 = change.to(theta.dtype), self.config.beta1
        self.m.mul_(beta1).add_(delta, alpha=1 - beta1)
        self.remember(delta * delta)
        theta.addcdiv_(self.m, self.scale(), value=self.rate())

    def remember(self, square: Tensor) -> None:
        """Update v with Δ²."""
        self.v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)

    def scale(self) -> Tensor:
        """Return what m is divided by."""
        return self.v.sqrt().add_(self.epsilon)

    def rate(self) -> float:
        """Return the learning rate of this round."""
        return self.lr
