"""Differential privacy of whole clients: clipped changes, and noise on their sum."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.bench.method.aggregator import Aggregator


@dataclass
class ClippedMean(Aggregator):
    """Mean of the clients' changes under client-level differential privacy, with equal weights.

    Each client's change, over all averaged numbers together, is cut to the norm `clip`; Gaussian
    noise is added to the sum of changes, which is divided by the expected size of the cohort, a
    number that does not depend on who took part. Nobody's upload gives noise too.

    Source: McMahan et al. 2018, https://arxiv.org/abs/1710.06963, with flat clipping, equal weights
    and the estimator of fixed denominator. The noise comes from a seeded generator: a simulation.
    """

    before: Tensor  # the server's averaged numbers, (n,), from which changes are measured
    clip: float  # > 0
    noise: float  # standard deviation on each number of the sum
    expected_clients: float  # divisor of the sum
    rng: torch.Generator  # draws the noise, on the CPU
    num_clipped: int = 0
    _sum: Tensor = field(init=False)

    single_uploads = False  # a client can cut its own change before it is added to others'
    memory = "model"

    def __post_init__(self) -> None:
        """Begin with a sum of 0."""
        self._sum = torch.zeros_like(self.before, dtype=torch.float64)

    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        """Add a client's change, cut to the norm `clip`."""
        change = upload.double() - self.before.double()
        norm = float(torch.linalg.vector_norm(change))
        if norm > self.clip:
            self.num_clipped += 1
            change.mul_(self.clip / norm)
        self._sum.add_(change, alpha=weight)

    def result(self) -> Tensor:
        """Return the server's numbers plus the mean change with noise."""
        noise = torch.randn(len(self._sum), dtype=torch.float64, generator=self.rng)
        change = self._sum + self.noise * noise.to(self._sum.device)
        return self.before.double() + change / self.expected_clients
