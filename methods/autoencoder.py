"""Parts of autoencoders for small images: encoders with a latent width, and image decoders.

Source: Arora 2023, pFedAE, names a ResNet-18 encoder and a convolutional decoder without their
sizes; the sizes here are ours.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field

from fedbench.bench.method import Batch, Client, DataSpec, Loss, Method, Net
from fedbench.bench.nn import Backbone, image_decoder, latent_encoder


class Autoencoder(Method):
    """Base of methods whose clients hold a whole autoencoder: parts `encoder` and `decoder`.

    Source: Arora 2023, pFedAE, its baselines. Deviation: the mean squared error over pixels in
    place of half the sum, which Adam does not feel.
    """

    latent_dim: int | None = Field(None, ge=1, description="width of z; null = the encoder's own")
    decoder_width: int = Field(
        32, ge=1, description="channels before the image, doubled per halving of its sides"
    )

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
