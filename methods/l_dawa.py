"""L-DAWA as an add-on: a client's layer counts as far as it points where the server's did."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbench.bench.method import (
    AddOn,
    ConfigError,
    DataSpec,
    Net,
    RunConfig,
    averaged_parameters,
    nothing_averaged,
    register,
)
from fedbench.bench.nn import Backbone

_STATISTICS = ("running_mean", "running_var")


@register("l-dawa")
class LDAWA(AddOn):
    """Scale each client's tensors by their cosine with those that it received.

    Source: Rehman et al. 2023, https://arxiv.org/abs/2307.07393, read in its released code
    (123438d): every tensor is scaled by itself, the mean over clients is not divided by the
    cosines, and the first three rounds are plain averages. Clients weigh as `server.weighting`
    says; in the release by examples during the warm-up and alike afterwards. Deviations: batch
    norm's statistics are averaged as they are (`buffers="scaled"` is the release), and a tensor of
    zeros has factor 1.

    One cosine over the whole model (`unit="model"`) is what tables that descend from the code of
    FedU2 call L-DAWA: another method.

    Since factors are below 1, the server's tensors become shorter than those of its clients.
    """

    warmup_rounds: int = Field(
        3, ge=0, description="first rounds, preparatory ones included, which average plainly"
    )
    unit: Literal["tensor", "module", "model"] = Field(
        "tensor", description="the tensors that share a cosine"
    )
    buffers: Literal["plain", "scaled"] = Field(
        "plain", description="what happens to the running statistics of batch norm"
    )
    floor: float = Field(-1.0, ge=-1, le=1, description="smallest factor; -1 in the source")

    def without_effect(self, config: RunConfig) -> str:
        """Say so if all rounds are those of the warm-up."""
        rounds = config.federation.num_rounds + self.base.needs().preparatory_rounds
        if rounds > self.warmup_rounds:
            return super().without_effect(config)
        return (
            f"l-dawa: its first {self.warmup_rounds} rounds average plainly"
            f" (method.l-dawa.warmup_rounds), and the run has {rounds}; the result is that of the"
            " method without it"
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make the base's net, unless none of it is averaged."""
        net = self.base.build(backbone, data)
        if not any(True for _ in averaged_parameters(net, self.base.sharing(), before="")):
            raise ConfigError(nothing_averaged(self.base.name, self.name))
        return net

    def weigh(
        self, sent: Mapping[str, Tensor], held: Mapping[str, Tensor], round_index: int
    ) -> Mapping[str, float]:
        """Return the cosines of the sent tensors with the held ones."""
        if round_index < self.warmup_rounds:
            return {}
        groups: dict[str, list[str]] = {}
        for name in sent:
            if self.buffers == "scaled" or not name.endswith(_STATISTICS):
                module = name.rpartition(".")[0]
                key = {"tensor": name, "module": module, "model": ""}[self.unit]
                groups.setdefault(key, []).append(name)
        factors: dict[str, float] = {}
        for names in groups.values():
            cosine = cosine_of([sent[n] for n in names], [held[n] for n in names])
            factors |= dict.fromkeys(names, max(self.floor, cosine))
        return factors


def cosine_of(sent: list[Tensor], held: list[Tensor]) -> float:
    """Cosine between tensors that are taken together as one vector; 1 if either is all zeros.

    Args:
        sent: of any shapes.
        held: of the same shapes.

    Returns:
        A number in [-1, 1].
    """
    a, b = (torch.cat([part.flatten() for part in parts]).double() for parts in (sent, held))
    lengths = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return min(1.0, max(-1.0, float(a @ b) / lengths)) if lengths else 1.0
