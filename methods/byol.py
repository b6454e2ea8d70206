"""BYOL on every client, weights averaged or updated with regard to divergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
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
    Server,
    Sharing,
    Upload,
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
from fedbench.methods import divergence


@register("byol")
class BYOL(Method):
    """Each view's prediction points to what a slowly following target net makes of the other view.

    Source: Grill et al. 2020, https://arxiv.org/abs/2006.07733; as a federated baseline in Lubana
    et al. 2022, https://arxiv.org/abs/2205.11506, whose heads, views and loss scale (a quarter of
    the original) these are. Its cross-silo rows keep the target with the client and update the
    predictor with regard to divergence: `target: personal` and `update: fedu` (see
    `methods.divergence`).

    Deviation: the target keeps the share `ema_decay` of itself, as the papers say and the release
    does not: there it takes over that share of the online net. `ema_inverted` does as the release.
    The target moves after each optimizer step; the release moves it in front of each forward pass,
    which gives every step the same target except that a round's first step sees the received online
    net already. With `ema_inverted` that move is made too. The move after a round's last step, made
    here and not in the release, is then outweighed by the next round's first one.
    """

    augmentation: Literal["byol-o", "simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "byol-o", description="how views are made; byol-o makes the second in another way"
    )
    hidden_dim: int = Field(1024, ge=1, description="hidden width of projector and predictor")
    projection_dim: int = Field(512, ge=1, description="width of the projector's output")
    ema_decay: float = Field(0.99, ge=0, le=1, description="share of the old target that is kept")
    ema_inverted: bool = Field(
        False, description="keep the share 1 - ema_decay instead, as the released code does"
    )
    target: Literal["averaged", "personal", "reinit"] = Field(
        "averaged",
        description="sent and averaged; kept by each client; or the received net every round",
    )
    update: divergence.Update = Field(
        "average", description="what clients make of the server's tensors"
    )
    predictor_threshold: float = Field(
        0.4, ge=0, description="fedu: from this divergence on a client keeps its own predictor"
    )
    mixing_target: float = Field(
        0.7, gt=0, le=1, description="fedema: share of the own model at the first divergence"
    )

    @field_validator("update")
    @classmethod
    def _stateful(cls, update: divergence.Update, info: ValidationInfo) -> divergence.Update:
        if update in ("fedu", "fedema") and info.data.get("target") != "personal":
            raise PydanticCustomError(
                "target", "must be 'average' or 'frozen-predictor' unless target is 'personal'"
            )
        return update

    def needs(self) -> Needs:
        """Two views; an averaged target is evaluated beside the online encoder.

        Batch norm in the heads asks for batches of two by itself.
        """
        name = self.augmentation
        return Needs(
            views=("byol-o-1", "byol-o-2") if name == "byol-o" else (name, name),
            encoders=TARGET_ENCODER if self.target == "averaged" else {},
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Online encoder, projector and predictor; targets of the first two; a client's memory."""
        out, norm = self.projection_dim, backbone.head_norm
        projector = mlp(backbone.dim, self.hidden_dim, out, norm=norm, out_bias=False)
        predictor = mlp(out, self.hidden_dim, out, norm=norm)
        net = Net({"encoder": backbone.make(), "projector": projector, "predictor": predictor})
        add_targets(net, "encoder", "projector")
        if self.target == "reinit":
            keep_within_round(net["target_encoder"], net["target_projector"])
        divergence.add_memory(net, self.update, record=self.target == "personal")
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Online parts are averaged; targets are averaged, stay, or last for one round."""
        personal = self.target == "personal"
        targets = {"target_*": Sharing.PERSONAL} if personal else {}
        memory = divergence.memory_rules(self.update, record=personal)
        return {**targets, **memory, "*": Sharing.AVERAGED}

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Bring in what the client kept; a target that is not at hand becomes the received net."""
        afresh = divergence.begin_round(net, self.update, client.round, self.predictor_threshold)
        if self.target != "averaged" and afresh:
            copy_to_targets(net)
        if self.ema_inverted:
            ema_update(net, 1 - self.ema_decay)
        return data

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Negative cosine of predictions and the other view's target projections."""
        h1, h2 = net.views(batch.views, "encoder")  # (B, D)
        z1, z2 = net.views((h1, h2), "projector")  # (B, projection_dim)
        p1, p2 = net.views((z1, z2), "predictor")  # (B, projection_dim)
        with torch.no_grad():
            t1, t2 = net.views(batch.views, "target_encoder", "target_projector")
        total = mutual_prediction((p1, p2), (t1, t2))
        return Loss(total, features=(h1, h2), parts={"spread": spread(z1)})

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """The targets follow."""
        ema_update(net, 1 - self.ema_decay if self.ema_inverted else self.ema_decay)

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Keep what the next round needs; nothing goes up besides the averaged tensors."""
        divergence.end_round(net, self.update, client.round, self.mixing_target)
        return {}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Under `frozen-predictor`, undo what was averaged of the predictor."""
        divergence.restore_frozen_predictor(net)
