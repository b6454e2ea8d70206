"""BYOL on every client; weights are averaged, or updated by divergence."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    DataSpec,
    Loss,
    Needs,
    Net,
    RunConfig,
    Sharing,
    Size,
    register,
)
from fedbench.bench.nn import (
    TARGET_ENCODER,
    Backbone,
    add_targets,
    copy_to_targets,
    ema_update,
    keep_within_round,
    mlp,
    mutual_prediction,
    spread,
)
from fedbench.methods.divergence import DivergenceAware


@register("byol")
class BYOL(DivergenceAware):
    """Each view's prediction points to the projection of the other view by a slowly moving target.

    Source: Grill et al. 2020, https://arxiv.org/abs/2006.07733; as a federated baseline in Lubana
    et al. 2022, https://arxiv.org/abs/2205.11506, whose heads, views and loss scale (a quarter of
    the original) these are. Its cross-silo rows keep the target with the client and update the
    predictor by divergence: `target: personal` and `update: fedu` (see `methods.divergence`).

    Deviation: the target keeps the share `ema_decay` of itself, as in the papers; in the release it
    takes over that share of the online net, and so it does with `ema_inverted`. The target moves
    after each optimizer step; the release moves it before each forward pass, which gives every step
    the same target, except that a round's first step has already moved to the received online net.
    With `ema_inverted` that move is made too. The move after a round's last step, made here and not
    in the release, is then outweighed by the next round's first one.
    """

    augmentation: Literal["byol-o", "simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "byol-o", description="how views are made; byol-o makes the second in another way"
    )
    hidden_dim: Size = Field(1024, description="hidden width of projector and predictor")
    projection_dim: Size = Field(512, description="width of the projector's output")
    ema_decay: float = Field(0.99, ge=0, le=1, description="share of the old target that is kept")
    ema_inverted: bool = Field(
        False, description="keep the share 1 - ema_decay instead, as the released code does"
    )
    target: Literal["averaged", "personal", "reinit"] = Field(
        "averaged",
        description="sent and averaged; kept by each client; or the received net every round",
    )

    @field_validator("target")
    @classmethod
    def _personal_with_a_stored_model(cls, target: str, info: ValidationInfo) -> str:
        update = info.data.get("update")
        if update in ("fedu", "fedema") and target != "personal":
            message = "must be 'personal' for update '{update}'"
            raise PydanticCustomError("target", message, {"update": update})
        return target

    @property
    def keeps_record(self) -> bool:
        """True for a personal target, too: a client's first round has to be known."""
        return self.target == "personal" or super().keeps_record

    def needs(self) -> Needs:
        """Ask for two views; evaluate an averaged target beside the online encoder.

        No smallest batch is needed here: batch norm in the heads asks for two images by itself.
        """
        name = self.augmentation
        return Needs(
            views=("byol-o-1", "byol-o-2") if name == "byol-o" else (name, name),
            encoders=TARGET_ENCODER if self.target == "averaged" else {},
            capturable=True,
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, projector and predictor, targets of the first two, a client's memory."""
        out, norm = self.projection_dim, backbone.head_norm
        projector = mlp(backbone.dim, self.hidden_dim, out, norm=norm, out_bias=False)
        predictor = mlp(out, self.hidden_dim, out, norm=norm)
        net = Net({"encoder": backbone.make(), "projector": projector, "predictor": predictor})
        add_targets(net, "encoder", "projector")
        if self.target == "reinit":
            keep_within_round(net["target_encoder"], net["target_projector"])
        self.add_memory(net)
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Average online parts; targets are averaged, personal, or hidden (`reinit`)."""
        targets = {"target_*": Sharing.PERSONAL} if self.target == "personal" else {}
        return {**targets, **super().sharing()}

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Bring the client's stored parts in; without a stored target, copy the received net."""
        from_server = self.begin_round(net, client)
        if self.target != "averaged" and from_server:
            copy_to_targets(net)
        if self.ema_inverted:
            ema_update(net, 1 - self.ema_decay)
        return data

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: a net that has collapsed to one output has the least loss, -1."""
        return {"loss": "equal outputs have its least value", "spread": "no term of the loss"}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the negative cosine of predictions and the other view's target projections."""
        h1, h2 = net.views(batch.views, "encoder")  # (B, D)
        z1, z2 = net.views((h1, h2), "projector")  # (B, projection_dim)
        p1, p2 = net.views((z1, z2), "predictor")  # (B, projection_dim)
        with torch.no_grad():
            t1, t2 = net.views(batch.views, "target_encoder", "target_projector")
        total = mutual_prediction((p1, p2), (t1, t2))
        parts = {"spread": spread(z1)}
        return Loss(total, features=(h1, h2), parts=parts, projections=(z1, z2))

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """Move the targets towards the online parts."""
        ema_update(net, 1 - self.ema_decay if self.ema_inverted else self.ema_decay)
