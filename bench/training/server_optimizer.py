"""Server optimizers, which turn the cohort's averaged change into the next global weights."""

import math

import torch
from torch import Tensor

from fedbench.bench.config import ServerConfig

_BETA2 = {"adam": 0.999, "adam-reddi": 0.99, "adam-flower": 0.99, "yogi": 0.99}
_EPSILON = {"adam": 1e-8, "average": 0.0, "momentum": 0.0}  # of others 1e-3


class ServerOptimizer:
    """Applies one averaged change per round to a flat vector; elementwise.

    With Δ the weighted mean of (client - server), β the momenta, η the learning rate, ε the
    adaptivity and v starting at 0:

    * average: θ += η Δ; η = 1 is FedAvg.
    * momentum: m = μ m + Δ; θ += η m.
    * adam: the library's Adam on the gradient -Δ, bias-corrected (ε 1e-8, β 0.9 and 0.999).
    * adam-reddi: no bias correction, ε = 1e-3, β2 = 0.99.
    * adam-flower: as adam-reddi with η sqrt(1 - β2^(t+1)) / (1 - β^(t+1)) in round t = 1, 2, ….
    * yogi: as adam-reddi with v -= (1 - β2) Δ² sign(v - Δ²).
    * adagrad: v += Δ²; θ += η Δ / (sqrt(v) + ε), without momentum.

    Source: Reddi et al. 2021, https://arxiv.org/abs/2003.00295, algorithm 2, except adam, which is
    Kingma & Ba 2015, https://arxiv.org/abs/1412.6980, as Louizos et al. 2024 can also be read, and
    adam-flower, which is FedAdam of Flower 1.42, https://flower.ai/docs/framework.
    Deviation: v starts at 0 for all of them, not at ε².
    """

    def __init__(self, config: ServerConfig, size: int, device: torch.device | str) -> None:
        self.config = config
        name = config.optimizer
        self.beta2 = config.beta2 if config.beta2 is not None else _BETA2.get(name, 0.0)
        self.epsilon = config.epsilon if config.epsilon is not None else _EPSILON.get(name, 1e-3)
        self.step_count = 0
        first = name not in ("average", "adagrad")
        second = name not in ("average", "momentum")
        self.m = torch.zeros(size if first else 0, device=device)
        self.v = torch.zeros(size if second else 0, device=device)

    def step(self, theta: Tensor, change: Tensor) -> None:
        """Update `theta`, float32 (size,), in place with the averaged change, float64 (size,)."""
        config, lr = self.config, self.config.lr
        self.step_count += 1
        delta = change.to(theta.dtype)  # moments are float32, half the memory of the sum's float64
        match config.optimizer:
            case "average":  # in float64, so that the mean of equal weights is that weight
                theta.copy_(theta.double().add_(change, alpha=lr))
            case "momentum":
                self.m.mul_(config.momentum).add_(delta)
                theta.add_(self.m, alpha=lr)
            case "adagrad":
                self.v.addcmul_(delta, delta)
                theta.addcdiv_(delta, self.v.sqrt().add_(self.epsilon), value=lr)
            case _:
                self._adaptive(theta, delta)

    def _adaptive(self, theta: Tensor, delta: Tensor) -> None:
        name, beta1, lr = self.config.optimizer, self.config.beta1, self.config.lr
        self.m.mul_(beta1).add_(delta, alpha=1 - beta1)
        square = delta * delta
        if name == "yogi":
            self.v.addcmul_(square, torch.sign(self.v - square), value=-(1 - self.beta2))
        else:
            self.v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)
        if name == "adam":
            scale = (self.v / (1 - self.beta2**self.step_count)).sqrt_().add_(self.epsilon)
            lr /= 1 - beta1**self.step_count
        else:
            scale = self.v.sqrt().add_(self.epsilon)
        if name == "adam-flower":
            power = self.step_count + 1
            lr *= math.sqrt(1 - self.beta2**power) / (1 - beta1**power)
        theta.addcdiv_(self.m, scale, value=lr)

    def state(self) -> dict[str, Tensor]:
        """Return moments by name; with `step_count` they are all that a checkpoint needs."""
        return {"m": self.m, "v": self.v}
