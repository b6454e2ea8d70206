"""SimCLR on every client; weights are averaged; with labels, contrast inside each class."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

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
    Size,
    register,
)
from fedbench.bench.nn import (
    Backbone,
    classification,
    info_nce,
    nt_xent,
    projector,
    sum_over_classes,
)


@register("simclr")
class SimCLR(Method):
    """Two views of an image attract, all other images of the batch repel.

    Source: Chen et al. 2020, https://arxiv.org/abs/2002.05709; as a federated baseline in Lubana et
    al. 2022, https://arxiv.org/abs/2205.11506 (f-SimCLR: 512-512-512 head with batch norm, T = 0.1)
    and Louizos et al. 2024, https://arxiv.org/abs/2405.02081 (Local SimCLR: 512-2048-128
    without norm), which gives no temperature; its preset takes 0.5, and NT-Xent, where equation 3
    has InfoNCE in one direction (`variant: info-nce` has both).

    With visible labels it is the latter's label-dependent variant (equation 12, algorithm 2):
    contrast among the unlabelled images and inside each class, and a linear classifier.
    """

    temperature: float = Field(0.1, gt=0, description="softmax divisor")
    variant: Literal["nt-xent", "info-nce"] = Field(
        "nt-xent", description="info-nce: negatives from the other view only"
    )
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-o", description="how both views are made"
    )
    hidden_dim: Size = Field(512, description="width of the projector's hidden layer")
    projection_dim: Size = Field(512, description="width of the projector's output")
    projector_norm: bool = Field(
        True, description="the encoder's norm in the projector, hidden and output (no affine there)"
    )

    def needs(self) -> Needs:
        """Ask for two views of a kind; a batch of one has no negatives."""
        views = (self.augmentation, self.augmentation)
        return Needs(views=views, labels=Labels.OPTIONAL, min_batch=2, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and projector; with labels, a linear classifier on the encoder."""
        encoder, dims = backbone.make(), (self.hidden_dim, self.projection_dim)
        head = projector(backbone, *dims, normed=self.projector_norm)
        net = Net({"encoder": encoder, "projector": head})
        if data.labelled:
            net["classifier"] = nn.Linear(backbone.dim, data.num_classes)
        return net

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return ln(2B - 1), or ln B for InfoNCE: a partner is picked among so many views.

        To a net without information partner and other views are exchangeable, so the cross entropy
        is at least that of a blind guess, which equal outputs reach.
        """
        if config.data.label_fraction:
            return dict.fromkeys(("loss", "labels"), "depends on the classes of each batch")
        size = config.client.batch_size
        return {"loss": math.log(2 * size - 1 if self.variant == "nt-xent" else size)}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute NT-Xent or InfoNCE; with labels, inside groups, plus their cross entropy."""
        h = net.views(batch.views, "encoder")  # 2 x (B, D)
        z1, z2 = net.views(h, "projector")  # (B, projection_dim)
        variant = nt_xent if self.variant == "nt-xent" else info_nce
        contrast = partial(variant, temperature=self.temperature)
        if "classifier" not in net:
            return Loss(contrast(z1, z2), features=h, projections=(z1, z2))
        total = sum_over_classes(lambda g: contrast(z1[g], z2[g]), batch.labels, min_size=2)
        y = classification(net.views(h, "classifier"), batch.labels)
        return Loss(total, features=h, projections=(z1, z2)).plus("labels", y)
