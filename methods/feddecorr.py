"""FedDecorr as an add-on: the dimensions of a local batch's features shall not be correlated."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbench.bench.method import AddOn, Batch, Client, ConfigError, Loss, Net, RunConfig, register

_LEAST_VARIANCE = 1e-8


@register("feddecorr")
class FedDecorr(AddOn):
    """Add the mean squared correlation between feature dimensions, over the views.

    Source: Shi et al. 2023, https://arxiv.org/abs/2210.00226, written for supervised learning; read
    in its released code (973e4af), whose term grows with the batch (`scale="batch"`).
    `scale="mean"` is the mean of squared correlations, which means the same for batches of any
    size. Which outputs the term sees is the source's choice (features) or that of later papers.
    """

    weight: float = Field(0.1, ge=0, description="factor of the term; 0.1 in the source")
    on: Literal["features", "projections"] = Field("features", description="outputs that it sees")
    scale: Literal["batch", "mean"] = Field(
        "batch", description="batch: times (B - 1)^2 / B, as released"
    )

    def without_effect(self, config: RunConfig) -> str:
        """Say so if the features are those of a frozen encoder."""
        if self.on != "features" or config.model.trainable != "heads":
            return super().without_effect(config)
        return (
            "feddecorr: its term sees the features alone (method.feddecorr.on), and the encoder is"
            " frozen (model.trainable); the result is that of the method without it"
        )

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Add none: equal outputs are not correlated."""
        return self.with_terms(config, decorrelation="equal outputs have its least value")

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Add the term to the base's loss."""
        out = self.base.loss(net, batch, client)
        seen = out.features if self.on == "features" else out.projections
        if not seen:
            raise ConfigError(
                f"method.feddecorr.on: {self.base.name} has no {self.on}; set the other, or leave"
                " feddecorr out"
            )
        terms = [squared_correlation(rows) for rows in seen]
        size = len(seen[0])
        factor = (size - 1) ** 2 / size if self.scale == "batch" else 1.0
        return out.plus("decorrelation", self.weight * factor * torch.stack(terms).mean())


def squared_correlation(rows: Tensor) -> Tensor:
    """Mean squared correlation between different columns of a batch.

    Columns without variance correlate with none.

    Args:
        rows: (B, d).

    Returns:
        Scalar in [0, 1]; 0 for a batch of one or a single column.
    """
    size, dim = rows.shape
    if size < 2 or dim < 2:
        return rows.sum() * 0.0
    rows = rows.float()
    centred = rows - rows.mean(dim=0)
    variance = centred.square().sum(dim=0) / (size - 1)  # (d,)
    unit = centred / (_LEAST_VARIANCE + variance).sqrt()
    correlation = unit.T @ unit / (size - 1)  # (d, d)
    others = correlation.square().sum() - correlation.diagonal().square().sum()
    return others / (dim * (dim - 1))
