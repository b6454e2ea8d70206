"""What a server optimizer is: a rule from the cohort's mean change to the next global weights."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.bench.config import ServerConfig


class ServerOptimizer(ABC):
    """Applies one averaged change per round to a flat vector; elementwise.

    In the formulas of its members Δ is the weighted mean of (client - server), η the learning rate,
    μ, β1 and β2 the decays and ε the adaptivity of the configuration. The moments m and v start at
    0; a member that has none leaves the tensor empty.
    """

    reads: ClassVar[tuple[str, ...]] = ()  # fields of `ServerConfig` beside `lr`
    first: ClassVar[bool] = False  # has m
    second: ClassVar[bool] = False  # has v
    usual_beta2: ClassVar[float] = 0.99  # where the configuration has null
    usual_epsilon: ClassVar[float] = 1e-3

    def __init__(self, config: ServerConfig, size: int, device: torch.device | str) -> None:
        self.config, self.lr = config, config.lr
        self.beta2 = self.usual_beta2 if config.beta2 is None else config.beta2
        self.epsilon = self.usual_epsilon if config.epsilon is None else config.epsilon
        self.step_count = 0
        self.m = torch.zeros(size if self.first else 0, device=device)
        self.v = torch.zeros(size if self.second else 0, device=device)

    def step(self, theta: Tensor, change: Tensor) -> None:
        """Update `theta`, float32 (size,), in place with the averaged change, float64 (size,)."""
        self.step_count += 1
        self.move(theta, change)

    @abstractmethod
    def move(self, theta: Tensor, change: Tensor) -> None:
        """Do what `step` does, in round `step_count` = 1, 2, …."""

    def state(self) -> dict[str, Tensor]:
        """Return moments by name; with `step_count` they are all that a checkpoint needs."""
        return {"m": self.m, "v": self.v}
