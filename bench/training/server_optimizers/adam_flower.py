"""FedAdam as Flower steps."""

import math

from fedbench.bench.training.server_optimizers.adam_reddi import AdamReddi


class AdamFlower(AdamReddi):
    """As adam-reddi with η sqrt(1 - β2^(t+1)) / (1 - β1^(t+1)) in round t = 1, 2, ….

    Source: FedAdam of Flower 1.42, https://flower.ai/docs/framework.
    """

    def rate(self) -> float:
        power = self.step_count + 1
        return self.lr * (math.sqrt(1 - self.beta2**power) / (1 - self.config.beta1**power))
