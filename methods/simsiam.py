"""SimSiam on every client; weights are averaged, or updated by divergence."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    DataSpec,
    Labels,
    Loss,
    Needs,
    Net,
    RunConfig,
    Size,
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
from fedbench.methods.divergence import DivergenceAware


@register("simsiam")
class SimSiam(DivergenceAware):
    """Each view's prediction points to the other view's projection, which gets no gradient.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566; as a federated baseline in Lubana et
    al. 2022, https://arxiv.org/abs/2205.11506, and Louizos et al. 2024,
    https://arxiv.org/abs/2405.02081. Heads `o` are those of Lubana et al.'s released code (no
    bottleneck in the predictor); heads `m` read Louizos et al.'s "group norm before the hidden
    layer" as linear, norm, ReLU, linear, and `m-pre` as norm, linear, ReLU, linear.

    Lubana et al.'s cross-silo rows update the predictor by divergence; their release ends up never
    updating it (`frozen-predictor`), so `fedu` here is the rule of FedU, whose authors use it with
    BYOL. Without batch norm the method tends to collapse: see `spread`.

    With visible labels it is Louizos et al.'s label-dependent variant (equation 12, algorithm 2),
    which adds a linear classifier. No term compares images, so taking each class by itself only
    gives every class, and the unlabelled part, the same weight; kept as it is written.
    """

    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-o", description="how both views are made"
    )
    heads: Literal["o", "m", "m-pre"] = Field(
        "o", description="three normed layers; two layers and a norm; the norm in front of them"
    )
    hidden_dim: Size = Field(256, description="width of the projector's hidden layers")
    projection_dim: Size = Field(512, description="width of the projector's output")
    predictor_dim: Size = Field(512, description="width of the predictor's hidden layer")

    def needs(self) -> Needs:
        """Ask for two views of a kind; batch norm in the heads asks for two images by itself."""
        views = (self.augmentation, self.augmentation)
        return Needs(views=views, labels=Labels.OPTIONAL, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and heads, with labels a classifier, and a client's memory."""
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
        self.add_memory(net)
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
        """Make a head of one hidden layer and a norm: a predictor, or the projector of `m`."""
        out = self.projection_dim
        if self.heads == "o":
            return mlp(in_dim, hidden, out, norm=backbone.head_norm)
        # Group norm does not cancel a bias as batch norm does, so the layer in front keeps it.
        first, last = nn.Linear(in_dim, hidden), nn.Linear(hidden, out)
        if self.heads == "m":
            return nn.Sequential(first, backbone.head_norm(hidden), nn.ReLU(), last)
        return nn.Sequential(backbone.head_norm(in_dim), first, nn.ReLU(), last)

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: a net that has collapsed to one output has the least loss, -1."""
        found = {"loss": "equal outputs have its least value", "spread": "no term of the loss"}
        if config.data.label_fraction:
            found["labels"] = "the entropy of each client's labels, which data decide"
        return found

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the negative cosine of predictions and projections, by class if known."""
        h1, h2 = net.views(batch.views, "encoder")  # (B, D)
        z1, z2 = net.views((h1, h2), "projector")  # (B, projection_dim)
        p1, p2 = net.views((z1, z2), "predictor")  # (B, projection_dim)
        parts = {"spread": spread(z1)}
        if "classifier" not in net:
            total = mutual_prediction((p1, p2), (z1, z2))
            return Loss(total, (h1, h2), parts, projections=(z1, z2))

        def loss_of(group: Tensor) -> Tensor:
            return mutual_prediction((p1[group], p2[group]), (z1[group], z2[group]))

        total = sum_over_classes(loss_of, batch.labels, min_size=1)
        y = classification(net.views((h1, h2), "classifier"), batch.labels)
        return Loss(total, (h1, h2), parts, projections=(z1, z2)).plus("labels", y)
