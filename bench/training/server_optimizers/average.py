"""The averaged change itself."""

from torch import Tensor

from fedbench.bench.training.server_optimizers.base import ServerOptimizer


class Average(ServerOptimizer):
    """θ += η Δ; η = 1 is FedAvg."""

    def move(self, theta: Tensor, change: Tensor) -> None:
        """In float64, so that the mean of equal weights is that weight."""
        theta.copy_(theta.double().add_(change, alpha=self.lr))
