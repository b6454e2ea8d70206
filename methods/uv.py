"""User verification as an add-on: recognise the client by its features."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedbench.bench.method import (
    AddOn,
    Batch,
    Client,
    DataSpec,
    Loss,
    Needs,
    Net,
    RunConfig,
    Server,
    Sharing,
    Size,
    Upload,
    register,
)
from fedbench.bench.nn import Backbone, client_cross_entropy, mlp


@register("uv", bases=("simclr", "spectral", "simsiam", "semifed", "cbafed"))
class UV(AddOn):
    """Add client classification, which turns a local mutual-information bound into a global one.

    Row k of `uv.weight` stands for client k; a client trains and sends its own row only. Features
    go through a separate projector, parallel to the method's.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equation 6 and
    algorithm 1. Both unit-norm constraints are met by normalising in the forward pass, and the
    server brings rows back to norm 1 after its step, since norms would otherwise only grow and
    shrink the effective step. The source averages every row's change over the cohort
    (`rows="mean"`, for adaptive server optimizers); with plain averaging that divides a client's
    change by the cohort's size, so `rows="own"`, the default, takes the client's row as it is. With
    some labels the source's equations have the term on all images and its algorithm 2 on the
    unlabelled ones; `uv_on` chooses.
    """

    weight: float = Field(1.0, ge=0, description="factor of the term; 1 in the source")
    temperature: float = Field(1.0, gt=0, description="softmax divisor; the source has none")
    rows: Literal["own", "mean"] = Field("own", description="how the server treats the rows")
    uv_on: Literal["all", "unlabelled"] = Field(
        "all", description="images that the term sees; pseudo-labelled ones count as labelled"
    )
    hidden_dim: Size = Field(2048, description="width of the client-ID projector's hidden layer")
    code_dim: Size = Field(128, description="width of its output and of a client's row")

    @model_validator(mode="after")
    def _sees_unlabelled(self) -> Self:
        base = self.base
        while isinstance(base, AddOn):
            base = base.base
        if self.uv_on == "unlabelled" and base.relabels:
            raise ValueError(f"{base.name} leaves no image unlabelled; uv_on must be all")
        return self

    def needs(self) -> Needs:
        """Ask for what the base needs; a choice of unlabelled images depends on the batch."""
        needs = self.base.needs()
        return replace(needs, capturable=needs.capturable and self.uv_on == "all")

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Add the client-ID projector and one unit row per client to the base's net."""
        net = self.base.build(backbone, data)
        net["uv_projector"] = mlp(backbone.dim, self.hidden_dim, self.code_dim)
        rows = nn.Linear(self.code_dim, data.num_clients, bias=False)
        rows.weight.data = F.normalize(torch.randn_like(rows.weight), dim=1)
        net["uv"] = rows
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Share rows one by one, and everything else by the base's table."""
        rule = Sharing.OWN_ROW if self.rows == "own" else Sharing.MEAN_ROW
        return {"uv.weight": rule, **self.base.sharing()}

    def draws(self, batch_size: int, client: Client) -> Mapping[str, Tensor]:
        """Return the client's number for each image, beside the base's values."""
        return {
            **self.base.draws(batch_size, client),
            "uv_client": torch.full((batch_size,), client.id),
        }

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Add none: outputs that are equal at each client tell clients apart."""
        return self.with_terms(
            config, uv="outputs that are equal at each client have less than ln K"
        )

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Add the client's cross entropy, summed over views, to the base's loss."""
        out = self.base.loss(net, batch, client)
        rows = net.tensor("uv.weight")  # (K, code_dim)
        features = out.features  # per view, (B, D)
        if self.uv_on == "unlabelled":
            hidden = batch.labels < 0
            if not bool(hidden.any()):
                return out
            features = tuple(h[hidden] for h in features)
        codes = net.views(features, "uv_projector")  # per view, (B, code_dim)
        target = batch.draws["uv_client"][: len(codes[0])]  # (B,)
        terms = [client_cross_entropy(c, rows, target, self.temperature) for c in codes]
        return out.plus("uv", self.weight * torch.stack(terms).sum())

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Run the base's step, then bring rows back to norm 1."""
        self.base.server_step(net, uploads, server)
        rows = net.tensor("uv.weight")
        rows.data.copy_(F.normalize(rows.data, dim=1))
