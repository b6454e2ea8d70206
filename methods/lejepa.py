"""LeJEPA under FedAvg: views agree, and embeddings follow a normal distribution (SIGReg)."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

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
    Upload,
    register,
)
from fedbench.bench.nn import Backbone, keep_within_round, mlp

_SPACING, _KNOTS = 3 / 16, 17
_SUMS = ("cosines", "sines", "count")


@register("lejepa")
class LeJEPA(Method):
    """Views are pulled to their mean; random projections of embeddings shall be normal.

    Source: Balestriero & LeCun 2025, https://arxiv.org/abs/2511.08544, a centralised method, in the
    form of its released code: 17 knots from 0 to 3 and a test statistic times the batch's size. The
    federated forms are ours. `statistics="local"`: each client's batches alone shall be normal.
    `statistics="global"`: at the start of a round the cohort sends sums of cosines and sines along
    common directions, which add up to those of the pooled images. The statistic is that of a batch
    and all other clients' images together, times their number n + B: only the batch's share
    B / (n + B) of the means has a gradient, so that each of its images is pulled as hard as in the
    local form, with the same loss where n = 0. The others' sums are those of the round's start:
    many local steps at a high rate push beyond the goal, and the term rises
    (leaderboards/studies/log.md).

    Deviations: two views, both global, normed apart; a projector of two layers instead of three; no
    AdamW.
    """

    weight: float = Field(0.05, gt=0, lt=1, description="share of SIGReg in the loss")
    statistics: Literal["local", "global"] = Field("local", description="whose embeddings it tests")
    slices: Size = Field(256, description="random directions; 1,024 in the source")
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-m", description="how both views are made"
    )
    hidden_dim: Size = Field(2048, description="width of the projector's hidden layer")
    projection_dim: Size = Field(64, description="width of the projector's output")

    def needs(self) -> Needs:
        """Ask for two views; for global statistics, for their sums before each round."""
        views = (self.augmentation, self.augmentation)
        if self.statistics == "local":
            return Needs(views=views, min_batch=2, capturable=True)
        extras = {name: Extra(summed=True) for name in _SUMS}
        pre_round = tuple(f"pooled.{name}" for name in _SUMS)
        return Needs(views=views, min_batch=2, pre_round=pre_round, extras=extras, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and projector; for global statistics, common directions and sums."""
        encoder, dims = backbone.make(), (self.hidden_dim, self.projection_dim)
        head = mlp(backbone.dim, *dims, norm=backbone.head_norm)
        net = Net({"encoder": encoder, "projector": head})
        if self.statistics == "global":
            net.register_buffer("directions", _unit_columns(torch.randn(self._directions)))
            net["pooled"], net["others"] = self._sums(), self._sums()
            keep_within_round(net["others"])
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Send directions and sums down; average everything else."""
        if self.statistics == "local":
            return {"*": Sharing.AVERAGED}
        sent = dict.fromkeys(("directions", "pooled.*"), Sharing.BROADCAST)
        return {**sent, "*": Sharing.AVERAGED}

    def draws(self, batch_size: int, client: Client) -> Mapping[str, Tensor]:
        """Draw the directions of a step, unless they are common to all clients."""
        if self.statistics == "global":
            return {}
        return {"directions": _unit_columns(torch.randn(self._directions, generator=client.rng))}

    def pre_round(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Return sums of cosines and sines over the client's images."""
        directions = net.tensor("directions")
        cosines, sines = (torch.zeros_like(net.tensor(f"pooled.{n}")) for n in _SUMS[:2])
        for images in data.ordered(self.augmentation, client.rng):
            real, imaginary = waves(net(images, "encoder", "projector"), directions)
            cosines += real.sum(dim=0)
            sines += imaginary.sum(dim=0)
        return {"cosines": cosines, "sines": sines, "count": torch.tensor([float(len(data))])}

    def server_pre_round(self, net: Net, sums: Mapping[str, Tensor], server: Server) -> None:
        """Publish the sums."""
        for name in _SUMS:
            net.tensor(f"pooled.{name}").copy_(sums[name])

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Take the client's own part out of the sums."""
        if self.statistics == "global":
            with torch.no_grad():
                for name in _SUMS:
                    own = client.answers[name].to(net.tensor(f"pooled.{name}").device)
                    net.tensor(f"others.{name}").copy_(net.tensor(f"pooled.{name}") - own)
        return data

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return that of normal noise of the best scale, for local statistics.

        Noise N(0, s I) for each view has s / 2 as invariance. At a knot with weight w_t its
        empirical characteristic function of B examples is off that of N(0, I) by
        (1 - e^(-s t^2)) / B + (e^(-s t^2 / 2) - e^(-t^2 / 2))^2 in the mean square; SIGReg is B
        times their sum. s = 0 are equal outputs.
        """
        if self.statistics == "global":
            return dict.fromkeys(("loss", "sigreg"), "depends on the other clients' embeddings")
        knots, normal, weights = _quadrature(torch.device("cpu"))
        scale = torch.linspace(0, 2, 401)[:, None]  # (401, 1)
        off = ((-scale * knots.square() / 2).exp() - normal).square()  # (401, 17)
        spread = 1 - (-scale * knots.square()).exp()
        terms = (spread + config.client.batch_size * off) @ weights  # (401,)
        total = (1 - self.weight) * scale[:, 0] / 2 + self.weight * terms
        return {"loss": float(total.min()), "sigreg": "noise has its least value"}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute invariance plus the mean of both views' SIGReg."""
        h = net.views(batch.views, "encoder")  # 2 x (B, D)
        z = net.views(h, "projector")  # 2 x (B, d)
        apart = ((z[0] - z[1]) / 2).square().mean()  # each view's from the mean of both
        terms = [self._sigreg(net, rows, batch) for rows in z]
        out = Loss((1 - self.weight) * apart, features=h, projections=z)
        return out.plus("sigreg", self.weight * torch.stack(terms).mean())

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Draw the common directions of the next round."""
        if self.statistics == "global":
            drawn = _unit_columns(torch.randn(self._directions, generator=server.rng))
            with torch.no_grad():
                net.tensor("directions").copy_(drawn)

    @property
    def _directions(self) -> tuple[int, int]:
        return self.projection_dim, self.slices

    def _sums(self) -> nn.Module:
        module = nn.Module()
        for name in _SUMS[:2]:
            module.register_buffer(name, torch.zeros(self.slices, _KNOTS))
        module.register_buffer("count", torch.zeros(1))
        return module

    def _sigreg(self, net: Net, rows: Tensor, batch: Batch) -> Tensor:
        if self.statistics == "local":
            real, imaginary = waves(rows, batch.draws["directions"])
            return sigreg(real.mean(dim=0), imaginary.mean(dim=0), len(rows))
        real, imaginary = waves(rows, net.tensor("directions"))
        total = net.tensor("others.count") + len(rows)
        real = (net.tensor("others.cosines") + real.sum(dim=0)) / total
        imaginary = (net.tensor("others.sines") + imaginary.sum(dim=0)) / total
        return sigreg(real, imaginary, total.squeeze())


def waves(rows: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of projections at the knots t = 0, 3/16, ..., 3; in float32.

    Args:
        rows: (B, d).
        directions: columns of length 1, (d, M).

    Returns:
        Two tensors (B, M, 17).
    """
    angles = (rows.float() @ directions)[:, :, None] * _quadrature(rows.device)[0]
    return angles.cos(), angles.sin()


def sigreg(cosines: Tensor, sines: Tensor, size: int | Tensor) -> Tensor:
    """Distance of an empirical characteristic function from that of a standard normal.

    The mean over directions of a weighted squared distance, integrated over [-3, 3] by the
    trapezoid rule, times the number of examples; 1.05 on average for normal embeddings.

    Source: Balestriero & LeCun 2025, https://arxiv.org/abs/2511.08544, in its released form.

    Args:
        cosines: means over examples at the knots, (M, 17).
        sines: likewise.
        size: number of examples.

    Returns:
        Scalar >= 0.
    """
    _, normal, weights = _quadrature(cosines.device)
    squared = (cosines - normal).square() + sines.square()  # (M, 17)
    return size * (squared @ weights).mean()


@cache
def _quadrature(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Knots, the normal's characteristic function there, and weights, each (17,)."""
    knots = _SPACING * torch.arange(_KNOTS, dtype=torch.float32)
    normal = torch.exp(-knots.square() / 2)
    widths = torch.full_like(knots, 2 * _SPACING)  # the function is even
    widths[0] = widths[-1] = _SPACING
    return knots.to(device), normal.to(device), (widths * normal).to(device)


def _unit_columns(values: Tensor) -> Tensor:
    return F.normalize(values, dim=0)
