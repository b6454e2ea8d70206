"""Alignment and uniformity as the loss of every client (FedAlignUniform)."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

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
)
from fedbench.bench.nn import Backbone, mlp

_SHARP = 4.0
"""Value of `t` above which kernels of distant points are lost beside the ones of the diagonal."""


@register("aligned")
class Aligned(Method):
    """Views of an image attract; all projections of a batch spread over the sphere.

    Source: Wang & Isola 2020, https://arxiv.org/abs/2005.10242; as the federated baseline of Fang
    et al. 2025, https://arxiv.org/abs/2508.01251, read in its released code: alignment plus the
    mean of both views' uniformity at t = 2, on projections of length 1. Deviation: the projector's
    first layer has no bias, which batch norm behind it would cancel.
    """

    minimises_objective: ClassVar[bool] = True

    uniformity: float = Field(1.0, ge=0, description="factor of the uniformity")
    t: float = Field(2.0, gt=0, description="sharpness of the uniformity's kernel")
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-m", description="how both views are made"
    )
    hidden_dim: Size = Field(2048, description="width of the projector's hidden layer")
    projection_dim: Size | None = Field(
        None, description="width of the projector's output; null = the encoder's"
    )

    def needs(self) -> Needs:
        """Ask for two views of a kind; a batch of one has no pairs."""
        views = (self.augmentation, self.augmentation)
        return Needs(views=views, min_batch=2, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and projector."""
        encoder, dims = backbone.make(), (self.hidden_dim, self.projection_dim or backbone.dim)
        head = mlp(backbone.dim, *dims, norm=backbone.head_norm)
        return Net({"encoder": encoder, "projector": head})

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return that of noise, 2 - 2 t w, or of equal outputs, 0, whichever is less.

        Points that are drawn evenly from the sphere, for each view anew, are at a squared distance
        of 2 on average; in many dimensions nearly always, so that the uniformity is -2 t (in d
        dimensions some 2 t^2 / d more), or the least that `log_potential` gives.
        """
        noise = max(-2 * self.t, math.log(torch.finfo(torch.float32).tiny))
        return {
            "loss": min(0.0, 2 + noise * self.uniformity),
            "uniformity": "noise has its least value",
        }

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute alignment plus uniformity."""
        h = net.views(batch.views, "encoder")  # 2 x (B, D)
        z = net.views(h, "projector")  # 2 x (B, projection_dim)
        u1, u2 = (F.normalize(rows, dim=1) for rows in z)
        align = (u1 - u2).square().sum(dim=1).mean()
        spread = (log_potential(u1, self.t) + log_potential(u2, self.t)) / 2
        return Loss(align, features=h, projections=z).plus("uniformity", self.uniformity * spread)


def log_potential(unit: Tensor, t: float) -> Tensor:
    """Logarithm of the mean Gaussian kernel over pairs: lower where points are spread evenly.

    Source: Wang & Isola 2020, https://arxiv.org/abs/2005.10242, equation for uniformity.

    Args:
        unit: rows of length 1, (B, d), B at least 2.
        t: > 0.

    Returns:
        Scalar in [-4 t, 0], and at least log(1.2e-38) = -87.3; 0 if all rows coincide.
    """
    size = len(unit)
    squared = (2 - 2 * unit @ unit.T).clamp(min=0.0)  # (B, B)
    kernel = torch.exp(-t * squared)
    if t > _SHARP:
        kernel = kernel.masked_fill(torch.eye(size, dtype=torch.bool, device=unit.device), 0.0)
        pairs = kernel.sum() / (size * (size - 1))
    else:
        pairs = (kernel.sum() - kernel.diagonal().sum()) / (size * (size - 1))
    return pairs.clamp(min=max(math.exp(-4 * t), torch.finfo(torch.float32).tiny)).log()
