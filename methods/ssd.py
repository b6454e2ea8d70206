"""SSD: alignment and uniformity with directions of a client's own, and the encoder as a student."""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    ConfigError,
    DataSpec,
    Loss,
    Net,
    RunConfig,
    register,
)
from fedbench.bench.nn import Backbone, keep_within_round
from fedbench.methods.aligned import Aligned


@register("ssd")
class SSD(Aligned):
    """`aligned`, where each client also stretches into directions of its own.

    Source: Fang et al. 2025, https://arxiv.org/abs/2508.01251. The separation is the paper's, after
    notes on it: squared distance to the projection stretched along the client's coordinates. The
    release differs: `target`, `basis` and `reduction` have its choices, but for the owner of a
    direction, which is a position in the round's cohort there and always the client here. The
    distillation is the release's: KL(softmax of the projection || softmax of the features) at
    temperature 0.5, without stop-gradient. Directions cost no traffic: they follow from the seed.
    """

    separation: float = Field(1.0, ge=0, description="factor of the separation")
    stretch: float = Field(10.0, gt=0, description="scale along the client's directions")
    distillation: float = Field(0.1, ge=0, description="factor of the distillation")
    distillation_temperature: float = Field(0.5, gt=0, description="distillation: softmax divisor")
    target: Literal["scaled", "unit"] = Field(
        "scaled", description="unit: brought to length 1, as released"
    )
    basis: Literal["coordinates", "rotated"] = Field(
        "coordinates", description="rotated: a random orthonormal basis, as released"
    )
    reduction: Literal["squared", "frobenius"] = Field(
        "squared", description="frobenius: norm of the batch's differences by B, as released"
    )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make the base's net and the clients' scales of directions, which never travel."""
        dim = self.projection_dim or backbone.dim
        share = dim // data.num_clients
        if self.separation and not share:
            raise ConfigError(
                f"method.projection_dim: {dim} directions do not give each of {data.num_clients}"
                " clients one of its own; raise it, or set method.separation=0"
            )
        if self.distillation and dim != backbone.dim:
            raise ConfigError(
                f"method.projection_dim: must equal the encoder's width {backbone.dim} for the"
                f" distillation (got {dim}); or set method.distillation=0"
            )
        net = super().build(backbone, data)
        if self.separation:
            scales = torch.ones(data.num_clients, dim)
            for k in range(data.num_clients):
                scales[k, k * share : (k + 1) * share] = self.stretch
            net["directions"] = nn.Module()
            net["directions"].register_buffer("scales", scales)
            if self.basis == "rotated":
                axes = torch.linalg.qr(torch.randn(dim, dim)).Q
                net["directions"].register_buffer("axes", axes)
            keep_within_round(net["directions"])
        return net

    def draws(self, batch_size: int, client: Client) -> Mapping[str, Tensor]:
        """Return the client's number, whose directions the loss takes."""
        return {"ssd_client": torch.tensor([client.id])}

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return that of `aligned` for alignment and uniformity."""
        terms = {
            "separation": (self.separation, "equal outputs along a client's directions have least"),
            "distillation": (self.distillation, "equal outputs have its least value"),
        }
        own = {name: reason for name, (factor, reason) in terms.items() if factor}
        known = dict(super().chance(config))
        return {" - ".join(("loss", *own)): known.pop("loss"), **known, **own}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Add separation and distillation to alignment and uniformity."""
        out = super().loss(net, batch, client)
        if self.separation:
            terms = [self._separation(net, z, batch.draws["ssd_client"]) for z in out.projections]
            out = out.plus("separation", self.separation * torch.stack(terms).mean())
        if self.distillation:
            both = zip(out.projections, out.features, strict=True)
            terms = [distillation(z, h, self.distillation_temperature) for z, h in both]
            out = out.plus("distillation", self.distillation * torch.stack(terms).mean())
        return out

    def _separation(self, net: Net, projections: Tensor, client: Tensor) -> Tensor:
        unit = F.normalize(projections, dim=1)
        with torch.no_grad():
            scale = net.tensor("directions.scales").index_select(0, client)  # (1, d)
            if self.basis == "rotated":
                axes = net.tensor("directions.axes")
                wanted = (unit @ axes * scale) @ axes.T
            else:
                wanted = unit * scale
            if self.target == "unit":
                wanted = F.normalize(wanted, dim=1)
        gap = unit - wanted
        if self.reduction == "squared":
            return gap.square().sum(dim=1).mean()
        length: Tensor = torch.linalg.matrix_norm(gap)
        return length / len(gap)


def distillation(projections: Tensor, features: Tensor, temperature: float) -> Tensor:
    """Mean KL divergence from the features' softmax to that of the projections; both get gradient.

    Args:
        projections: (B, d).
        features: (B, d).
        temperature: divisor of both, > 0.

    Returns:
        Scalar >= 0.
    """
    teacher = F.log_softmax(projections / temperature, dim=1)
    student = F.log_softmax(features / temperature, dim=1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)
