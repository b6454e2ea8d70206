"""FedYogi."""

import torch
from torch import Tensor

from fedbench.bench.training.server_optimizers.adam_reddi import AdamReddi


class Yogi(AdamReddi):
    """As adam-reddi with v -= (1 - β2) Δ² sign(v - Δ²).

    Source: Reddi et al. 2021, https://arxiv.org/abs/2003.00295, algorithm 2.
    """

    def remember(self, square: Tensor) -> None:
        self.v.addcmul_(square, torch.sign(self.v - square), value=-(1 - self.beta2))
