"""FedAvg on a plain autoencoder, the shared reference of the personalised ones."""

from fedbench.bench.method import Needs, register
from fedbench.methods.autoencoder import Autoencoder


@register("fedavg-ae")
class FedAvgAE(Autoencoder):
    """Autoencoder whose encoder and decoder are averaged; it reconstructs every image.

    Source: Arora 2023, pFedAE, baseline "FedAvg-AE"; McMahan et al. 2017,
    https://arxiv.org/abs/1602.05629.
    """

    def needs(self) -> Needs:
        """Ask for the image itself, in [0, 1]."""
        return Needs(views=("unit",), pixels="unit", capturable=True)
