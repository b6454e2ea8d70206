"""FedSC: the spectral contrast against the other clients' correlation matrices."""

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
    DataSpec,
    Extra,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    Server,
    Sharing,
    Size,
    register,
)
from fedbench.bench.nn import Backbone, clip_length, keep_within_round, mlp


@register("fedsc")
class FedSC(Method):
    """Spectral contrast that repels from the own batch and from what other clients hold.

    Source: Jing et al. 2024, https://arxiv.org/abs/2405.03949, read in its released code (da8a531).
    Before a round, every client of the cohort sends the correlation matrix of its
    projections, the server returns their sum, and a client takes its own out of it. Deviations: the
    release keeps the last matrix of clients that do not take part, here the cohort counts; its
    encoder has no norm layers (Fixup), it cuts gradients at length 3, and its rate falls along a
    cosine over the rounds, where `client.lr` is constant. A client that is alone in a round has the
    plain loss.

    The noise is the release's: one draw per number and round, 0.00104 there, which protects an
    image nominally at best; no budget is claimed.
    """

    mu: float = Field(4.0, gt=0, description="square of the greatest length of a projection")
    least_own: float = Field(
        0.2, ge=0, le=1, description="own share in the repulsion after the annealing"
    )
    anneal_rounds: int = Field(
        200, ge=1, description="rounds in which the own share falls from 1 to that"
    )
    noise: float = Field(0.0, ge=0, description="standard deviation on a sent matrix")
    passes: int = Field(1, ge=1, description="passes over the images before a round; 5 as released")
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-m", description="how both views are made"
    )
    hidden_dim: Size = Field(1024, description="width of the projector's hidden layer")
    projection_dim: Size = Field(512, description="width of the projector's output")

    def needs(self) -> Needs:
        """Ask for two views of a kind, and for the correlation matrices before each round."""
        views = (self.augmentation, self.augmentation)
        return Needs(
            views=views,
            min_batch=2,
            pre_round=("correlations", "correlation_count"),
            extras={"correlation": Extra(summed=True), "count": Extra(summed=True)},
            capturable=True,
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, projector and the collected matrices."""
        encoder, dims = backbone.make(), (self.hidden_dim, self.projection_dim)
        net = Net({"encoder": encoder, "projector": mlp(backbone.dim, *dims)})
        matrix = torch.zeros(self.projection_dim, self.projection_dim)
        net.register_buffer("correlations", matrix)
        net.register_buffer("correlation_count", torch.zeros(1))
        net["others"] = torch.nn.Module()
        net["others"].register_buffer("correlation", matrix.clone())
        net["others"].register_buffer("own_share", torch.ones(1))
        keep_within_round(net["others"])
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Send the sum of matrices down; average everything else."""
        return {"correlation*": Sharing.BROADCAST, "*": Sharing.AVERAGED}

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: the repulsion's weight and the others' matrix change from round to round."""
        return {"loss": "depends on the other clients' matrices"}

    def pre_round(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Return the correlation matrix of the client's projections, with noise."""
        total = torch.zeros_like(net.tensor("correlations"))
        for _ in range(2 * self.passes):  # the views of a pair are alike
            for images in data.ordered(self.augmentation, client.rng):
                z = self._clipped(net(images, "encoder", "projector"))  # (B, d)
                total += z.T @ z
        matrix = total / (2 * self.passes * max(1, len(data)))
        if self.noise:
            drawn = torch.randn(matrix.shape, generator=client.rng)
            matrix += self.noise * drawn.to(matrix.device)
        return {"correlation": matrix, "count": torch.ones(1)}

    def server_pre_round(self, net: Net, sums: Mapping[str, Tensor], server: Server) -> None:
        """Publish the sum of the matrices and their number."""
        net.tensor("correlations").copy_(sums["correlation"])
        net.tensor("correlation_count").copy_(sums["count"])

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Take the client's own matrix out of the sum; set its share for this round."""
        others = (net.tensor("correlation_count") - 1).clamp(min=1)
        with torch.no_grad():
            rest = net.tensor("correlations") - client.answers["correlation"]
            net.tensor("others.correlation").copy_(rest / others)
            done = min(1.0, client.round / self.anneal_rounds)
            own = 1 - (1 - self.least_own) * done
            alone = net.tensor("correlation_count") < 2  # nobody else repels: the plain loss
            net.tensor("others.own_share").fill_(own).masked_fill_(alone, 1.0)
        return data

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Attract partners; repel by the batch's and the others' correlation matrix."""
        h = net.views(batch.views, "encoder")  # 2 x (B, D)
        z = net.views(h, "projector")  # 2 x (B, d)
        own, others = net.tensor("others.own_share"), net.tensor("others.correlation")
        z1, z2 = map(self._clipped, z)
        total = correlation_contrast(z1, z2, others, own)
        return Loss(total, features=h, projections=z)

    def _clipped(self, z: Tensor) -> Tensor:
        return clip_length(z, math.sqrt(self.mu))


def correlation_contrast(z1: Tensor, z2: Tensor, others: Tensor, own_share: Tensor) -> Tensor:
    """Spectral contrast with the correlation matrices of a batch and of other clients.

    -2/B sum_i z1_i.z2_i + a |R|^2 + 2 (1 - a) tr(R O), with R = sum z z^T / 2B over both views. The
    factor 2 makes the mean of clients' gradients at a = 1/K that of the pooled loss.

    Source: Jing et al. 2024, https://arxiv.org/abs/2405.03949. In contrast to `spectral_contrast`,
    R includes each row's product with itself and with its partner.

    Args:
        z1: (B, d).
        z2: (B, d); row i belongs to row i of `z1`.
        others: mean correlation matrix O of the other clients, (d, d).
        own_share: a in [0, 1], scalar or (1,).

    Returns:
        Scalar.
    """
    rows = torch.cat([z1, z2])
    batch = rows.T @ rows / len(rows)  # (d, d)
    partners = (z1 * z2).sum(dim=1).mean()
    repulsion = own_share * batch.square().sum() + 2 * (1 - own_share) * (batch * others).sum()
    return -2 * partners + repulsion.sum()
