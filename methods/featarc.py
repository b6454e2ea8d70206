"""FeatARC without clustering: SimCLR whose projections stay near those of the received model."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    ConfigError,
    DataSpec,
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
    add_targets,
    copy_to_targets,
    keep_within_round,
    negative_cosine,
    nt_xent,
    projector,
)


@register("featarc")
class FeatARC(Method):
    """SimCLR plus alignment of each view's projection with that of the received model.

    Source: Wang et al. 2023, https://arxiv.org/abs/2210.10947 (Dec-SSL); its alignment alone is a
    baseline of Louizos et al. 2024, https://arxiv.org/abs/2405.02081, table 3, with half
    the weight because 1 diverged there. Deviation: the release aligns projections with the received
    encoder's features of the clean image (`anchor: backbone-clean`), which needs both to be of one
    width; the default aligns them with the received projector's output on the same view.

    The received model lives in the client for one round: no traffic, no state between rounds.
    """

    align_weight: float = Field(0.5, ge=0, description="factor of the alignment")
    anchor: Literal["projector", "backbone-clean"] = Field(
        "projector", description="output of the received model that projections are aligned with"
    )
    temperature: float = Field(0.1, gt=0, description="softmax divisor of the contrast")
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-o", description="how both views are made"
    )
    hidden_dim: Size = Field(512, description="width of the projector's hidden layer")
    projection_dim: Size = Field(512, description="width of the projector's output")
    projector_norm: bool = Field(
        True, description="the encoder's norm in the projector, hidden and output (no affine there)"
    )

    def needs(self) -> Needs:
        """Ask for two views of a kind, and the image itself for its features."""
        clean = ("plain",) if self.anchor == "backbone-clean" else ()
        views = (self.augmentation, self.augmentation, *clean)
        return Needs(views=views, min_batch=2, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and projector, and a frozen copy of both that is filled every round."""
        if self.anchor == "backbone-clean" and self.projection_dim != backbone.dim:
            raise ConfigError(
                f"method.projection_dim: must equal the encoder's width {backbone.dim} for anchor"
                f" 'backbone-clean' (got {self.projection_dim})"
            )
        encoder, dims = backbone.make(), (self.hidden_dim, self.projection_dim)
        head = projector(backbone, *dims, normed=self.projector_norm)
        net = Net({"encoder": encoder, "projector": head})
        add_targets(net, "encoder", "projector")
        keep_within_round(net["target_encoder"], net["target_projector"])
        return net

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Freeze the received model, in eval mode."""
        copy_to_targets(net)
        net["target_encoder"].eval()
        net["target_projector"].eval()
        return data

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return ln(2B - 1) for the contrast, as `simclr`."""
        return {
            "loss - align": math.log(2 * config.client.batch_size - 1),
            "align": "equal outputs have its least value",
        }

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute NT-Xent plus the weighted mean of both views' negative cosine to the anchors."""
        views = batch.views[:2]
        h = net.views(views, "encoder")  # 2 x (B, D)
        z1, z2 = net.views(h, "projector")  # (B, projection_dim)
        a1, a2 = self._anchors(net, batch)  # (B, projection_dim)
        align = (negative_cosine(z1, a1) + negative_cosine(z2, a2)) / 2
        out = Loss(nt_xent(z1, z2, self.temperature), features=h, projections=(z1, z2))
        return out.plus("align", self.align_weight * align)

    @torch.no_grad()
    def _anchors(self, net: Net, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.anchor == "backbone-clean":
            clean = net(batch.views[2], "target_encoder")  # (B, D)
            return clean, clean
        a1, a2 = net.views(batch.views[:2], "target_encoder", "target_projector")
        return a1, a2
