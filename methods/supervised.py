"""FedAvg on labels, the reference for methods without labels."""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from fedbench.bench.method import (
    Batch,
    Client,
    DataSpec,
    Labels,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    register,
)
from fedbench.bench.nn import Backbone


@register("supervised")
class Supervised(Method):
    """Cross entropy on the visible labels: all of them, or the share `data.label_fraction`.

    Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629. Lubana et al. 2022 train on one
    `base` view, Louizos et al. 2024 on both views of their SimCLR augmentation.
    """

    augmentation: Literal["base", "simclr-m"] = Field("base", description="how views are made")
    num_views: int = Field(1, ge=1, le=2, description="views per image; losses are averaged")

    def needs(self) -> Needs:
        """Ask for views and all labels."""
        views = (self.augmentation,) * self.num_views
        return Needs(views=views, labels=Labels.ONLY, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and a linear classifier."""
        classifier = nn.Linear(backbone.dim, data.num_classes)
        return Net({"encoder": backbone.make(), "classifier": classifier})

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: a client's constant guess leaves the entropy of its labels."""
        return {"loss": "the entropy of each client's labels, which data decide"}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the mean cross entropy over views and batch."""
        h = net.views(batch.views, "encoder")  # per view, (B, D)
        terms = [F.cross_entropy(net(x, "classifier"), batch.labels) for x in h]
        return Loss(torch.stack(terms).mean(), features=h)
