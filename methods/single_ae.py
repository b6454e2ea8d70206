"""Autoencoders that clients train alone, the reference for personalised federated ones."""

from collections.abc import Mapping

from fedbench.bench.method import Needs, Sharing, register
from fedbench.methods.autoencoder import Autoencoder


@register("single-ae")
class SingleAE(Autoencoder):
    """Autoencoder that each client trains on its own images alone; nothing is sent.

    Source: Arora 2023, pFedAE, equation 3.9 ("Single Client"). Clients keep their optimizer's state
    between rounds, so that rounds of E epochs are one long training.
    """

    def needs(self) -> Needs:
        """Ask for the image itself, in [0, 1]; evaluate every client's encoder."""
        return Needs(views=("unit",), pixels="unit", evaluate_on="clients", keep_optimizer=True)

    def sharing(self) -> Mapping[str, Sharing]:
        """Keep every tensor with its client."""
        return {"*": Sharing.PERSONAL}
