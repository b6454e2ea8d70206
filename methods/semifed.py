"""SemiFed with pseudo-labels from the server's model alone."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    DataSpec,
    Labels,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    register,
)
from fedbench.bench.nn import (
    Backbone,
    add_targets,
    classification,
    confident_cross_entropy,
    consistency,
    copy_to_targets,
    keep_within_round,
)


@register("semifed")
class SemiFed(Method):
    """Cross entropy on some labels, consistency and the received model's pseudo-labels on the rest.

    Source: Lin et al. 2021, https://arxiv.org/abs/2108.09412, which accepts a pseudo-label when the
    models of several clients agree; here the received server model alone decides, as in Louizos et
    al. 2024, https://arxiv.org/abs/2405.02081. Threshold, weights and views are ours, after the
    conventions of FixMatch and UDA. The received model judges the image itself, in eval mode, and
    stays fixed for the round: a copy lives in the client for that long and costs no traffic.
    """

    threshold: float = Field(0.95, ge=0, le=1, description="least confidence of a pseudo-label")
    consistency_weight: float = Field(1.0, ge=0, description="factor of the divergence of views")
    pseudo_weight: float = Field(1.0, ge=0, description="factor of the pseudo-labels' loss")
    warmup_rounds: int = Field(
        0, ge=0, le=1_000_000, description="first rounds on labelled images alone"
    )
    augmentation: Literal["weak", "base", "simclr-m"] = Field(
        "weak", description="how the first view is made; the second one is always strong"
    )

    def needs(self) -> Needs:
        """Ask for a weak and a strong view, and the image itself for the received model."""
        return Needs(
            views=(self.augmentation, "strong", "plain"),
            labels=Labels.SOME,
            least_rounds=self.warmup_rounds + 1,
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and classifier, and a frozen copy of both that is filled every round."""
        classifier = nn.Linear(backbone.dim, data.num_classes)
        net = Net({"encoder": backbone.make(), "classifier": classifier})
        add_targets(net, "encoder", "classifier")
        keep_within_round(net["target_encoder"], net["target_classifier"])
        return net

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Freeze the received model, in eval mode."""
        copy_to_targets(net)
        net["target_encoder"].eval()
        net["target_classifier"].eval()
        return data.keep(data.labels >= 0) if client.round < self.warmup_rounds else data

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: a client's constant guess leaves the entropy of its labels."""
        labels = "the entropy of each client's labels, which data decide"
        return dict.fromkeys(("loss", "consistency", "pseudo-labels"), labels)

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the loss of weak views with labels, and of both views and the guess without."""
        h = net.views(batch.views[:2], "encoder")  # 2 x (B, D)
        weak, strong = net.views(h, "classifier")  # (B, C)
        out = Loss(classification((weak,), batch.labels), features=h)
        hidden = batch.labels < 0
        if not bool(hidden.any()):
            return out
        with torch.no_grad():
            logits = net(batch.views[2][hidden], "target_encoder", "target_classifier")
            guesses = logits.softmax(dim=1)  # (U, C)
        weak, strong = weak[hidden], strong[hidden]  # (U, C)
        pseudo = confident_cross_entropy(guesses, strong, self.threshold)
        out = out.plus("consistency", self.consistency_weight * consistency(weak, strong))
        return out.plus("pseudo-labels", self.pseudo_weight * pseudo)
