"""CBAFed: pseudo-labels under thresholds that follow how often each class is trained on."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    ConfigError,
    DataSpec,
    Extra,
    Labels,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    Server,
    Sharing,
    Upload,
    register,
)
from fedbench.bench.nn import Backbone, accept, balanced_thresholds


@register("cbafed")
class CBAFed(Method):
    """Pseudo-labels of a round, fixed at its start, under class-balanced adaptive thresholds.

    Every client sends the number of images of each class that it trained on, true and pseudo-labels
    together; the server sends each class's share of the sum, which sets the thresholds (4 bytes per
    class either way).

    Source: Li et al. 2023, "Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised
    Learning", and its release https://github.com/minglllli/CBAFed, without residual weights, as in
    Louizos et al. 2024, https://arxiv.org/abs/2405.02081. There clients have all labels or none and
    take part in every round. Deviations for clients with some labels that take part now and then:
    labelled and accepted images are one shuffled set; the server adds up the newest counts of every
    client seen so far; the first rounds use labels alone. Training draws new views. The release
    clips gradients and keeps momentum between rounds, its encoder is torchvision's ResNet-18 (He
    fan-out weights, stem for large images); here both are the configuration's.
    """

    relabels: ClassVar[bool] = True

    base_threshold: float = Field(0.84, ge=0, le=1, description="threshold before adaptation")
    max_threshold: float = Field(0.95, ge=0, le=1, description="highest threshold of a class")
    rare_share: float = Field(
        0.03, ge=0, le=1, description="below this share a class is taken as second guess too"
    )
    warmup_rounds: int = Field(
        1, ge=0, le=1_000_000, description="first rounds on labelled images alone"
    )
    augmentation: Literal["weak", "base", "simclr-m"] = Field(
        "weak", description="how views are made, to guess and to train"
    )
    num_views: int = Field(2, ge=1, le=2, description="views per image; losses are averaged")

    def needs(self) -> Needs:
        """Ask for weak views and some labels; counts go up."""
        views = (self.augmentation,) * self.num_views
        return Needs(
            views=views,
            labels=Labels.SOME,
            least_rounds=self.warmup_rounds + 1,
            extras={"class_counts": Extra()},
            capturable=True,
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and linear classifier, the server's counts, and the shares that it sends.

        Raises:
            ConfigError: for data of one class, whose share has no deviation.
        """
        if data.num_classes < 2:
            raise ConfigError(
                f"spec: {self.name} needs data of at least 2 classes (got {data.num_classes});"
                " its thresholds follow the deviation of their shares"
            )
        classifier = nn.Linear(backbone.dim, data.num_classes)
        net = Net({"encoder": backbone.make(), "classifier": classifier})
        net.register_buffer("class_counts", torch.zeros(data.num_clients, data.num_classes))
        net.register_buffer("class_share", torch.full((data.num_classes,), 0.1))
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Keep single clients' counts at the server; send shares down."""
        return {
            "class_counts": Sharing.SERVER_ONLY,
            "class_share": Sharing.BROADCAST,
            "*": Sharing.AVERAGED,
        }

    @torch.no_grad()
    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Keep labelled images, and those that the received model labels with enough confidence."""
        known = data.labels >= 0  # (N,)
        if client.round < self.warmup_rounds:
            return data.keep(known)
        net.eval()
        views = data.ordered(self.augmentation, client.rng)
        logits = torch.cat([net(view, "encoder", "classifier") for view in views])  # (N, C)
        net.train()
        share = net.tensor("class_share")  # (C,)
        thresholds = balanced_thresholds(share, self.base_threshold, self.max_threshold)
        guess, accepted = accept(logits.softmax(dim=1), thresholds, share < self.rare_share)
        return data.relabel(torch.where(known, data.labels, guess), keep=known | accepted)

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: a client's constant guess leaves the entropy of its labels."""
        return {
            "loss": "the entropy of each client's labels, which data decide",
            "trained-images": "no term of the loss",
        }

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the mean cross entropy over views and batch, pseudo-labels included."""
        h = net.views(batch.views, "encoder")  # per view, (B, D)
        terms = [F.cross_entropy(net(x, "classifier"), batch.labels) for x in h]
        return Loss(torch.stack(terms).mean(), features=h)

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Images of each class trained on, (C,), 4 bytes each."""
        counts = torch.bincount(data.labels, minlength=len(net.tensor("class_share")))
        return {"class_counts": counts.to(torch.int32)}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Renew the counts of those who took part; shares are scaled as if there were 10 classes.

        Source: the release; with 100 classes a share of 1 % counts as 0.1.
        """
        counts = net.tensor("class_counts")  # (K, C)
        for upload in uploads:
            counts[upload.client_id] = upload.extras["class_counts"].to(counts)
        total = counts.sum(dim=0)  # (C,)
        if bool(total.any()):
            net.tensor("class_share").copy_(total / total.sum() * len(total) / 10)
        server.log["trained-images"] = float(sum(upload.num_examples for upload in uploads))
