"""The pooled, supervised reference: an autoencoder on all images, then fine-tuned on all labels."""

from collections.abc import Mapping
from dataclasses import replace

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    DataSpec,
    Labels,
    Loss,
    Needs,
    Net,
    RoundPlan,
    RunConfig,
    Sharing,
    Size,
    register,
)
from fedbench.bench.nn import Backbone, mlp
from fedbench.methods.autoencoder import Autoencoder


@register("central-ae")
class CentralAE(Autoencoder):
    """Autoencoder on pooled data, then classifier and encoder on pooled labels; not federated.

    The first `pretrain_rounds` rounds are added to the configured ones and reconstruct images. The
    configured rounds then train a classifier by SGD through the encoder, whose learning rate is
    lower. The encoder is evaluated, by the same probes as for every other method.

    Source: Arora 2023, pFedAE, reference "AE-CenS" (100 epochs each, SGD with 0.1 for the
    classifier). The encoder's learning rate is not stated; 0.01 is ours.
    """

    pretrain_rounds: int = Field(
        2, ge=0, le=1_000_000, description="rounds of reconstruction before the configured ones"
    )
    hidden_dim: Size = Field(512, description="hidden width of the classifier")
    classifier_lr: float = Field(0.1, gt=0, description="SGD on the labels: the classifier's rate")
    encoder_lr: float = Field(0.01, ge=0, description="SGD on the labels: the encoder's rate")

    def needs(self) -> Needs:
        """Ask for the image itself, in [0, 1], all images in one place, and their labels."""
        return Needs(
            views=("unit",),
            labels=Labels.ALL,
            pixels="unit",
            pooled=True,
            keep_optimizer=True,
            preparatory_rounds=self.pretrain_rounds,
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, decoder, and a classifier of two layers."""
        net = super().build(backbone, data)
        latent_dim = self.latent_dim or backbone.dim
        net["classifier"] = mlp(latent_dim, self.hidden_dim, data.num_classes)
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Send nothing: the one holder of the data trains."""
        return {"*": Sharing.PERSONAL}

    def plan_round(self, round_index: int, default: RoundPlan) -> RoundPlan:
        """Let the one holder take part; on labels it trains by SGD."""
        plan = replace(default, cohort="all")
        if round_index < self.pretrain_rounds:
            return plan
        return replace(plan, optimizer="sgd", lr=self.classifier_lr)

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Train on all images in the first rounds, then on the labelled ones."""
        if client.round < self.pretrain_rounds:
            return data
        return data.keep(data.labels >= 0)

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none, neither for images nor for labels."""
        return {"loss": "the entropy of the labels, which data decide"}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the error of reconstruction in the first rounds, then the cross entropy."""
        if client.round < self.pretrain_rounds:
            return super().loss(net, batch, client)
        (x,) = batch.views
        z = net(x, "encoder")  # (B, L)
        # Under SGD a gradient scaled by c is a learning rate scaled by c.
        slow = scale_gradient(z, self.encoder_lr / self.classifier_lr)
        return Loss(F.cross_entropy(net(slow, "classifier"), batch.labels), features=(z,))


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return the same values; their gradient is multiplied by `factor` on its way back."""
    return x.detach() + factor * (x - x.detach())
