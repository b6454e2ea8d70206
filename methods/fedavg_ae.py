"""FedAvg on a plain autoencoder: the shared reference of the personalised ones."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field

from fedbench.bench.method import Batch, Client, DataSpec, Loss, Method, Needs
from fedbench.bench.net import Net
from fedbench.bench.nn.autoencoder import image_decoder, latent_encoder
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.registry import register


@register("fedavg-ae")
class FedAvgAE(Method):
    """Autoencoder whose encoder and decoder are averaged; it reconstructs every image.

    Source: Arora 2023, pFedAE, baseline "FedAvg-AE"; McMahan et al. 2017,
    https://arxiv.org/abs/1602.05629. Deviation: the mean squared error over pixels in place of half
    the sum, which Adam does not feel.
    """

    latent_dim: int | None = Field(None, ge=1, description="width of z; null = the encoder's own")
    decoder_width: int = Field(
        32, ge=1, description="channels before the image, doubled per halving of its sides"
    )

    def needs(self) -> Needs:
        """The image itself, in [0, 1]."""
        return Needs(views=("unit",), pixels="unit")

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Encoder and decoder."""
        shape, width = data.image_shape, self.decoder_width
        return Net(
            {
                "encoder": latent_encoder(backbone, self.latent_dim),
                "decoder": image_decoder(backbone, self.latent_dim, shape, width),
            }
        )

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Mean squared error of the reconstruction."""
        (x,) = batch.views
        z = net(x, "encoder")  # (B, L)
        return Loss(F.mse_loss(net(z, "decoder"), x), features=(z,))
