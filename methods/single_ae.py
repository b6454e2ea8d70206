"""Autoencoders that clients train alone: what personalised federated ones have to beat."""

from __future__ import annotations

from collections.abc import Mapping

from fedbench.bench.method import Needs, Sharing, register
from fedbench.methods.autoencoder import Autoencoder


@register("single-ae")
class SingleAE(Autoencoder):
    """Autoencoder that each client trains on its own images alone; nothing is ever sent.

    Source: Arora 2023, pFedAE, equation 3.9 ("Single Client"). Clients keep their optimizer's state
    between rounds, so that rounds of E epochs are one long training.
    """

    def needs(self) -> Needs:
        """The image itself, in [0, 1]; every client's encoder is evaluated."""
        return Needs(views=("unit",), pixels="unit", evaluate_on="clients", keep_optimizer=True)

    def sharing(self) -> Mapping[str, Sharing]:
        """All of it stays with the client."""
        return {"*": Sharing.PERSONAL}
