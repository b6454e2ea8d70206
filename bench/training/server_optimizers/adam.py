"""Adam."""

from torch import Tensor

from fedbench.bench.training.server_optimizers.adam_reddi import AdamReddi


class Adam(AdamReddi):
    """The library's Adam on the gradient -Δ, bias-corrected; null is β2 = 0.999 and ε = 1e-8.

    Source: Kingma & Ba 2015, https://arxiv.org/abs/1412.6980, as Louizos et al. 2024 can also be
    read.
    """

    usual_beta2, usual_epsilon = 0.999, 1e-8

    def scale(self) -> Tensor:
        return (self.v / (1 - self.beta2**self.step_count)).sqrt_().add_(self.epsilon)

    def rate(self) -> float:
        return self.lr / (1 - self.config.beta1**self.step_count)
