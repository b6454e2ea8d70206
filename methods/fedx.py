"""FedX: contrast with the own images, prediction of the received model, relations to others."""

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
    ClientData,
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
    mlp,
    nt_xent,
)


@register("fedx")
class FedX(Method):
    """SimCLR, its prediction by the received model, and equal relations of both views to others.

    Source: Han et al. 2022, https://arxiv.org/abs/2207.09158, read in its released code (04f67c9),
    whose only base is SimCLR. Relations are softmaxes over the similarities to a second random
    batch of the client. As released, each view is pulled towards their mean, which has gradient as
    well: KL(mean || relation), though it is called a Jensen-Shannon divergence there. All batches
    go through the net in one pass. The release weighs clients by another client's data when not
    all take part; here the server weighs as configured.

    `anchors="halves"` relates each half of a batch to the other half instead of to a second batch.
    """

    objective_caution: ClassVar[str] = (
        "on CIFAR-10 the choice among 16 settings by align-unif lost 4.2 points of accuracy, by"
        " --objective loss 0.8; the preset lost 1.9"  # leaderboards/studies/equivalence
    )

    temperature: float = Field(0.1, gt=0, description="softmax divisor of the contrasts")
    relation_temperature: float = Field(0.1, gt=0, description="divisor of the similarities")
    target_temperature: float = Field(0.1, gt=0, description="divisor of similarities in the mean")
    relational: float = Field(1.0, ge=0, description="factor of both relational terms")
    anchors: Literal["batch", "halves"] = Field("batch", description="images that views relate to")
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-m", description="how all views are made; the release has no colours on CIFAR-10"
    )
    hidden_dim: Size = Field(256, description="width of the heads' hidden layers")
    projection_dim: Size = Field(256, description="width of the heads' outputs")

    def needs(self) -> Needs:
        """Ask for two views, and one view of a second batch as anchors."""
        view = self.augmentation
        others = (view,) if self.anchors == "batch" else ()
        return Needs(views=(view, view), second_batch=others, min_batch=2, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, heads without norm, and a copy of the received parts for one round."""
        dims = self.hidden_dim, self.projection_dim
        net = Net(
            {
                "encoder": backbone.make(),
                "projector": mlp(backbone.dim, *dims),
                "predictor": mlp(self.projection_dim, *dims),
            }
        )
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
        """Return ln(2B - 1) for both contrasts, as `simclr`; the received net has no more."""
        contrast = math.log(2 * config.client.batch_size - 1)
        if not self.relational:
            return {"loss - received": contrast, "received": contrast}
        return {
            "loss - received - relations": contrast,
            "received": contrast,
            "relations": "equal outputs have its least value",
        }

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute both contrasts and both relations."""
        size = len(batch.labels)
        images = torch.cat([*batch.views, *batch.second_batch])  # (2 B or 3 B, C, H, W)
        h = net(images, "encoder").split(size)  # per view, (B, D)
        z = net(torch.cat(h), "projector").split(size)  # per view, (B, d)
        p1, p2 = net(torch.cat(z[:2]), "predictor").split(size)  # (B, d)
        with torch.no_grad():
            received = net(images[size:], "target_encoder", "target_projector").split(size)
        total = nt_xent(z[0], z[1], self.temperature)
        out = Loss(total, features=(h[0], h[1]), projections=(z[0], z[1]))
        out = out.plus("received", nt_xent(p1, received[0], self.temperature))
        if not self.relational:
            return out
        if self.anchors == "batch":
            local = self._relation(z[0], z[1], z[2])
            remote = self._relation(p1, p2, received[1])
        else:
            with torch.no_grad():
                first = net(images[:size], "target_encoder", "target_projector")
            half = size // 2
            local = self._halves(z[0], z[1], z[0], half)
            remote = self._halves(p1, p2, first, half)
        return out.plus("relations", self.relational * (local + remote))

    def _halves(self, a: Tensor, b: Tensor, others: Tensor, half: int) -> Tensor:
        front = self._relation(a[:half], b[:half], others[half:])
        back = self._relation(a[half:], b[half:], others[:half])
        return (front + back) / 2

    def _relation(self, a: Tensor, b: Tensor, anchors: Tensor) -> Tensor:
        return relation_gap(a, b, anchors, self.relation_temperature, self.target_temperature)


def relation_gap(a: Tensor, b: Tensor, anchors: Tensor, t: float, target_t: float) -> Tensor:
    """Distance of two views' relations to some anchors from the mean of both.

    A relation is the softmax over anchors of the cosines; the gap is the mean over both views of
    KL(mean || relation), with the mean taken at a temperature of its own.

    Args:
        a: embeddings of the first views, (B, d).
        b: of the second views, (B, d).
        anchors: (M, d).
        t: divisor of the cosines, > 0.
        target_t: divisor of the cosines in the mean, > 0.

    Returns:
        Scalar >= 0; 0 for equal views and equal temperatures, and for one anchor.
    """
    unit = F.normalize(anchors, dim=1).T  # (d, M)
    cosines = [F.normalize(rows, dim=1) @ unit for rows in (a, b)]  # (B, M)
    mean = torch.stack([(c / target_t).softmax(dim=1) for c in cosines]).mean(dim=0)
    gaps = [F.kl_div((c / t).log_softmax(dim=1), mean, reduction="batchmean") for c in cosines]
    return torch.stack(gaps).mean()
