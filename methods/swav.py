"""SwAV on every client: views predict each other's assignment to prototypes."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    DataSpec,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    Server,
    Size,
    Upload,
    register,
)
from fedbench.bench.nn import Backbone, projector

_PROTOTYPES = "prototypes"


@register("swav")
class SwAV(Method):
    """Each view predicts the cluster of the other; a batch fills all clusters equally.

    Source: Caron et al. 2020, https://arxiv.org/abs/2006.09882, equations 1 to 5, with the
    constants of its release; Lubana et al. 2022, https://arxiv.org/abs/2205.11506, appendix E.1,
    train it locally, where it collapses: the batch of a client with one class is spread over all
    clusters as well. Deviations: two views without smaller crops, no queue of earlier projections,
    and prototypes that learn from the first step on; they are brought to unit length after each
    step and on the server, not before each step, which is the same.
    """

    num_prototypes: int = Field(
        32, ge=2, le=16_384, description="K; here as many as Orchestra has global clusters"
    )
    temperature: float = Field(0.1, gt=0, description="divisor of similarities in predictions")
    epsilon: float = Field(0.05, ge=0.025, description="divisor of similarities in assignments")
    iterations: int = Field(3, ge=1, description="pairs of scalings of an assignment")
    augmentation: Literal["simclr-o", "simclr-m", "simclr-m-pad4"] = Field(
        "simclr-o", description="how both views are made"
    )
    hidden_dim: Size = Field(512, description="width of the projector's hidden layer")
    projection_dim: Size = Field(128, description="width of projections and prototypes")

    def needs(self) -> Needs:
        """Ask for two views of one kind; one image alone fills no two clusters."""
        return Needs(views=(self.augmentation,) * 2, min_batch=2, capturable=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder, projector, and prototypes at unit length."""
        head = projector(backbone, self.hidden_dim, self.projection_dim, normed=True)
        prototypes = nn.Linear(self.projection_dim, self.num_prototypes, bias=False)
        net = Net({"encoder": backbone.make(), "projector": head, _PROTOTYPES: prototypes})
        _to_unit_length(net)
        return net

    def centroids(self, net: Net) -> Tensor:
        """Return the prototypes (K, d)."""
        return net[_PROTOTYPES].get_parameter("weight").detach()

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return ln K: assignments fill the clusters evenly, as in `methods.orchestra`."""
        return {"loss": math.log(self.num_prototypes)}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the mean cross entropy of each view's prediction from the other's assignment."""
        h = net.views(batch.views, "encoder")  # 2 x (B, D)
        z = net.views(h, "projector")  # 2 x (B, d)
        scores = net.views(tuple(F.normalize(each, dim=1) for each in z), _PROTOTYPES)  # (B, K)
        first, second = (assignments(s.detach(), self.epsilon, self.iterations) for s in scores)
        of_second = F.cross_entropy(scores[1] / self.temperature, first)
        of_first = F.cross_entropy(scores[0] / self.temperature, second)
        return Loss((of_first + of_second) / 2, features=h, projections=z)

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """Bring the prototypes to unit length."""
        _to_unit_length(net)

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Bring the prototypes, a mean of the clients', to unit length."""
        _to_unit_length(net)


def assignments(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Return soft assignments (B, K) that give all clusters of a batch the same mass.

    Sinkhorn's iterations on exp(scores / epsilon): columns to B / K, then rows to 1; the rows come
    last and are exact. Equation 5 of the paper, as its release computes it.
    """
    batch_size, num_clusters = scores.shape
    codes = (scores / epsilon).flatten().softmax(dim=0).view_as(scores)  # the sum is 1
    for _ in range(iterations):
        codes = codes / codes.sum(dim=0, keepdim=True) / num_clusters
        codes = codes / codes.sum(dim=1, keepdim=True) / batch_size
    return codes * batch_size


@torch.no_grad()
def _to_unit_length(net: Net) -> None:
    weight = net[_PROTOTYPES].get_parameter("weight")
    weight.copy_(F.normalize(weight, dim=1))
