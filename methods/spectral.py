"""Spectral contrastive learning on every client; with labels, contrast inside each class."""

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

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
    clipped_spectral_contrast,
    projector,
    spectral_contrast,
    sum_over_classes,
)


@register("spectral")
class Spectral(Method):
    """Two views of an image attract linearly, other images of the batch repel quadratically.

    Source: HaoChen et al. 2021, https://arxiv.org/abs/2106.04156; as a federated baseline in Lubana
    et al. 2022, https://arxiv.org/abs/2205.11506 (f-SpecLoss: 512-512-512 head with batch norm, a
    linear layer on its unit-length output, cosines; a weak and a strong view) and Louizos et al.
    2024, https://arxiv.org/abs/2405.02081 (512-2048-128 without norm). The last states no
    norm of the embeddings; its preset clips them as the first source's release does.

    With visible labels it is the last one's label-dependent variant (equation 12, algorithm 2):
    contrast among the unlabelled images and inside each class, and a linear classifier.
    """

    norm: Literal["cos", "clip", "none"] = Field(
        "cos", description="embeddings at unit length, clipped to sqrt(mu), or unchanged"
    )
    mu: float = Field(1.0, gt=0, description="clip: square of the greatest length")
    augmentation: Literal["spec-o", "simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "spec-o", description="how views are made; spec-o: the first weakly, the second strongly"
    )
    hidden_dim: Size = Field(512, description="width of the projector's hidden layer")
    projection_dim: Size = Field(512, description="width of the projector's output")
    projector_norm: bool = Field(
        True, description="the encoder's norm in the projector, hidden and output (no affine there)"
    )
    num_outputs: Size | None = Field(
        32, description="linear layer on the unit-length projections; null = none"
    )

    def needs(self) -> Needs:
        """Ask for two views; a batch of one has no negatives."""
        name = self.augmentation
        views = ("spec-o-1", "spec-o-2") if name == "spec-o" else (name, name)
        return Needs(views=views, labels=Labels.OPTIONAL, min_batch=2, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, projector and output layer, if any; with labels, a classifier."""
        encoder, dims = backbone.make(), (self.hidden_dim, self.projection_dim)
        head = projector(backbone, *dims, normed=self.projector_norm, out_bias=False)
        net = Net({"encoder": encoder, "projector": head})
        if self.num_outputs is not None:
            net["output"] = nn.Linear(self.projection_dim, self.num_outputs)
        if data.labelled:
            net["classifier"] = nn.Linear(backbone.dim, data.num_classes)
        return net

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return -1 for cosines: equal outputs of squared length s have s^2 - 2 s, least at s = 1.

        Noise does no better: for outputs with mean m and second moment M, which do not depend on
        the image, the loss is |M|^2 - 2 |m|^2 with M >= m m^T, so at least |m|^4 - 2 |m|^2.
        Clipping bounds s by mu and divides by mu.
        """
        if config.data.label_fraction:
            return dict.fromkeys(("loss", "labels"), "depends on the classes of each batch")
        if self.norm != "clip":
            return {"loss": -1.0}
        length = min(1.0, self.mu)
        return {"loss": (length**2 - 2 * length) / self.mu}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the spectral loss of the embeddings; with labels, inside groups."""
        h = net.views(batch.views, "encoder")  # 2 x (B, D)
        z1, z2 = net.views(h, "projector")  # (B, projection_dim)
        if self.num_outputs is not None:
            unit = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
            z1, z2 = net.views(unit, "output")  # (B, num_outputs)
        contrast = self._contrast
        if "classifier" not in net:
            return Loss(contrast(z1, z2), features=h, projections=(z1, z2))
        total = sum_over_classes(lambda g: contrast(z1[g], z2[g]), batch.labels, min_size=2)
        y = classification(net.views(h, "classifier"), batch.labels)
        return Loss(total, features=h, projections=(z1, z2)).plus("labels", y)

    def _contrast(self, z1: Tensor, z2: Tensor) -> Tensor:
        if self.norm == "cos":
            return spectral_contrast(F.normalize(z1, dim=1), F.normalize(z2, dim=1))
        if self.norm == "clip":
            return clipped_spectral_contrast(z1, z2, self.mu)
        return spectral_contrast(z1, z2)
