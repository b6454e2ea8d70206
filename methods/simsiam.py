"""SimSiam on every client, weights averaged or updated with regard to divergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

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
    Server,
    Sharing,
    Upload,
    register,
)
from fedbench.bench.nn import (
    Backbone,
    classification,
    mlp,
    mutual_prediction,
    spread,
    sum_over_classes,
)
from fedbench.methods import divergence


@register("simsiam")
class SimSiam(Method):
    """Each view's prediction points to the other view's projection, which gets no gradient.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566; as a federated baseline in Lubana et
    al. 2022, https://arxiv.org/abs/2205.11506, and Louizos et al. 2024,
    https://arxiv.org/abs/2405.02081. Heads `o` are those of the first one's released
    code (no bottleneck in the predictor); heads `m` read the second one's "group norm before the
    hidden layer" as linear, norm, ReLU, linear, and `m-pre` as norm, linear, ReLU, linear.

    The first paper's cross-silo rows update the predictor with regard to divergence; the release
    ends up never updating it (`frozen-predictor`), so `fedu` here is FedU's own rule, which its
    authors use with BYOL. Without batch norm the method tends to collapse: see `spread`.

    With visible labels it is the second one's label-dependent variant (equation 12, algorithm 2),
    which adds a linear classifier. No term compares images, so taking each class by itself only
    lets every class, and the unlabelled part, weigh the same; kept as it is written.
    """

    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-o", description="how both views are made"
    )
    heads: Literal["o", "m", "m-pre"] = Field(
        "o", description="three normed layers; two layers and a norm; the norm in front of them"
    )
    hidden_dim: int = Field(256, ge=1, description="width of the projector's hidden layers")
    projection_dim: int = Field(512, ge=1, description="width of the projector's output")
    predictor_dim: int = Field(512, ge=1, description="width of the predictor's hidden layer")
    update: divergence.Update = Field(
        "average", description="what clients make of the server's tensors"
    )
    predictor_threshold: float = Field(
        0.4, ge=0, description="fedu: from this divergence on a client keeps its own predictor"
    )
    mixing_target: float = Field(
        0.7, gt=0, le=1, description="fedema: share of the own model at the first divergence"
    )

    def needs(self) -> Needs:
        """Two views of a kind; batch norm in the heads asks for batches of two by itself."""
        return Needs(views=(self.augmentation, self.augmentation), labels=Labels.OPTIONAL)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Encoder and heads, with labels a classifier; what divergence-aware clients remember."""
        predictor = self._head(backbone, self.projection_dim, self.predictor_dim)
        net = Net(
            {
                "encoder": backbone.make(),
                "projector": self._projector(backbone),
                "predictor": predictor,
            }
        )
        if data.labelled:
            net["classifier"] = nn.Linear(backbone.dim, data.num_classes)
        divergence.add_memory(net, self.update, record=False)
        return net

    def _projector(self, backbone: Backbone) -> nn.Module:
        hidden, out = self.hidden_dim, self.projection_dim
        if self.heads != "o":
            return self._head(backbone, backbone.dim, hidden)
        layers: list[nn.Module] = []
        for wide, narrow in ((backbone.dim, hidden), (hidden, hidden)):
            layers += [nn.Linear(wide, narrow, bias=False), backbone.head_norm(narrow), nn.ReLU()]
        last = nn.Linear(hidden, out, bias=False)
        return nn.Sequential(*layers, last, backbone.head_norm(out, affine=False))

    def _head(self, backbone: Backbone, in_dim: int, hidden: int) -> nn.Module:
        """One hidden layer and a norm: every predictor, and the projector of heads `m`."""
        out = self.projection_dim
        if self.heads == "o":
            return mlp(in_dim, hidden, out, norm=backbone.head_norm)
        # Group norm does not cancel a bias as batch norm does, so the layer in front keeps it.
        first, last = nn.Linear(in_dim, hidden), nn.Linear(hidden, out)
        if self.heads == "m":
            return nn.Sequential(first, backbone.head_norm(hidden), nn.ReLU(), last)
        return nn.Sequential(backbone.head_norm(in_dim), first, nn.ReLU(), last)

    def sharing(self) -> Mapping[str, Sharing]:
        """Online parts are averaged; what a client remembers stays with it."""
        return {**divergence.memory_rules(self.update, record=False), "*": Sharing.AVERAGED}

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Bring in what the client kept."""
        divergence.begin_round(net, self.update, client.round, self.predictor_threshold)
        return data

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Negative cosine of predictions and the other view's projections, by class if known."""
        h1, h2 = net.views(batch.views, "encoder")  # (B, D)
        z1, z2 = net.views((h1, h2), "projector")  # (B, projection_dim)
        p1, p2 = net.views((z1, z2), "predictor")  # (B, projection_dim)
        parts = {"spread": spread(z1)}
        if "classifier" not in net:
            return Loss(mutual_prediction((p1, p2), (z1, z2)), (h1, h2), parts)

        def of_group(own: Tensor) -> Tensor:
            return mutual_prediction((p1[own], p2[own]), (z1[own], z2[own]))

        total = sum_over_classes(of_group, batch.labels, min_size=1)
        y = classification(net.views((h1, h2), "classifier"), batch.labels)
        return Loss(total, (h1, h2), parts).plus("labels", y)

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Keep what the next round needs; nothing goes up besides the averaged tensors."""
        divergence.end_round(net, self.update, client.round, self.mixing_target)
        return {}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Under `frozen-predictor`, undo what was averaged of the predictor."""
        divergence.restore_frozen_predictor(net)
