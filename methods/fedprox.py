"""FedProx as an add-on: local training is held near the received model."""

from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    AddOn,
    Batch,
    Client,
    ClientData,
    ConfigError,
    DataSpec,
    Loss,
    Net,
    RunConfig,
    averaged_parameters,
    nothing_averaged,
    register,
)
from fedbench.bench.nn import Backbone, keep_within_round


@register("fedprox")
class FedProx(AddOn):
    """Add mu / 2 times the squared distance of the trained shared tensors from the received ones.

    Source: Li et al. 2020, https://arxiv.org/abs/1812.06127. Buffers, rows and personal tensors
    stay free; with `model.norm=batch-local` norms are held near their values at the round's start.
    SGD with `client.lr` times mu above 2 diverges.
    """

    mu: float = Field(0.001, ge=0, description="strength; 0.001 to 1 in the source")

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Add a copy of the trained shared tensors that is filled every round and never travels."""
        net = self.base.build(backbone, data)
        if not any(True for _ in self._shared(net)):
            raise ConfigError(nothing_averaged(self.base.name, self.name))
        net["received"] = nn.ParameterList(
            nn.Parameter(value.detach().clone(), requires_grad=False) for value in self._shared(net)
        )
        keep_within_round(net["received"])
        return net

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Keep the received tensors."""
        with torch.no_grad():
            for kept, value in zip(net["received"].parameters(), self._shared(net), strict=True):
                kept.copy_(value)
        return self.base.before_local(net, data, client)

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Add none: the term sees no image."""
        return self.with_terms(config, proximity="it sees no image")

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Add the distance to the base's loss."""
        out = self.base.loss(net, batch, client)
        pairs = zip(self._shared(net), net["received"].parameters(), strict=True)
        distance = torch.stack([(new - old).square().sum() for new, old in pairs]).sum()
        return out.plus("proximity", self.mu / 2 * distance)

    def _shared(self, net: Net) -> Iterator[Tensor]:
        return averaged_parameters(net, self.base.sharing(), before="received")
