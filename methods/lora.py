"""LoRA as an add-on: the encoder's weights are frozen, and learn changes of low rank."""

import math
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from fedbench.bench.method import AddOn, ConfigError, DataSpec, Net, Size, register
from fedbench.bench.nn import Backbone, freeze


@register("lora")
class LoRA(AddOn):
    """Train low-rank changes of the encoder's linear layers and convolutions, and the heads.

    Source: Hu et al. 2021, https://arxiv.org/abs/2106.09685: a weight becomes
    W + scale / rank * B A, where B is zero at first, so that the first encoder is the start's. As
    in its release, A is drawn as torch draws a linear layer. Deviations: of a transformer all
    linear layers are adapted, not some projections of attention (in torchvision's attention the
    output's alone, since queries, keys and values are no layers there), and a kernel is a matrix
    with a row for each output channel. All else in the encoder is frozen, biases and norms too:
    batch norms keep the statistics of the start, which say nothing where its weights are random.

    The server averages A and B, and targets follow both; the mean of B times the mean of A is not
    the mean of B A that FedAvg of the weights would give (Sun et al. 2024, FFA-LoRA,
    https://arxiv.org/abs/2403.12313, which freezes A for that).
    """

    rank: Size = Field(8, description="rank of a change: rows of A, columns of B")
    scale: float = Field(16.0, gt=0, description="factor of a change, divided by the rank")

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make the base's net with adapted encoders."""
        if backbone.prepare is not None:
            raise ConfigError(
                "model.trainable: must be all with lora, which freezes the encoder itself"
            )
        return self.base.build(replace(backbone, prepare=self._adapt), data)

    def _adapt(self, encoder: nn.Module) -> None:
        layers = [m for m in encoder.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        if not layers:
            raise ConfigError(
                "lora: the encoder has neither a linear layer nor a convolution to adapt; leave it"
                " out, or choose another model.backbone"
            )
        for layer in layers:
            change = LowRank(layer.weight, self.rank, self.scale)
            register_parametrization(layer, "weight", change)
        freeze(module for module in encoder.modules() if not isinstance(module, LowRank))


class LowRank(nn.Module):
    """A weight with a change of low rank: W + scale / rank * B A.

    Args:
        weight: W, (out, …); a kernel is taken as a matrix (out, in / groups * height * width).
        rank, scale: of the change.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, weight[0].numel()))
        self.b = nn.Parameter(torch.zeros(len(weight), rank))
        self.factor = scale / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the changed weight, of the same shape."""
        return weight + self.factor * (self.b @ self.a).view_as(weight)
