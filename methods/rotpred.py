"""Rotation prediction on every client, weights averaged."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    DataSpec,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    Size,
    register,
    rotate90,
)
from fedbench.bench.nn import Backbone, projector


@register("rotpred")
class RotPred(Method):
    """Predict the rotation of an image: 0, 90, 180 or 270 degrees.

    Source: Gidaris et al. 2018, https://arxiv.org/abs/1803.07728; as a federated baseline in Lubana
    et al. 2022, https://arxiv.org/abs/2205.11506 (no other augmentation, one turn per image and
    epoch, a 512-512-512 projector before the classifier). The release of the latter cannot train
    it, and neither gives a learning rate for it.
    """

    hidden_dim: Size = Field(512, description="width of the projector's hidden layer")
    projection_dim: Size = Field(512, description="width of the projector's output")

    def needs(self) -> Needs:
        """Ask for the image itself; `loss` turns it."""
        return Needs(views=("rot",), capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, projector and the classifier of turns."""
        data.require_square(self.name)
        dims = self.hidden_dim, self.projection_dim
        return Net(
            {
                "encoder": backbone.make(),
                "projector": projector(backbone, *dims, normed=True),
                "rotation": nn.Linear(self.projection_dim, 4),
            }
        )

    def draws(self, batch_size: int, client: Client) -> Mapping[str, Tensor]:
        """Draw the number of quarter turns of each image."""
        return {"turns": torch.randint(4, (batch_size,), generator=client.rng)}

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return ln 4: turns are drawn evenly, whatever the image."""
        return {"loss": math.log(4)}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the cross entropy of the four turns."""
        (x,) = batch.views  # (B, C, H, W)
        turns = batch.draws["turns"]  # (B,)
        h = net(rotate90(x, turns), "encoder")  # (B, D)
        return Loss(F.cross_entropy(net(h, "projector", "rotation"), turns), features=(h,))
