"""Base of methods whose clients hold a whole autoencoder."""

from collections.abc import Mapping

import torch.nn.functional as F
from pydantic import Field

from fedbench.bench.method import Batch, Client, DataSpec, Loss, Method, Net, RunConfig, Size
from fedbench.bench.nn import Backbone, ImageDecoder, latent_encoder


class Autoencoder(Method):
    """Autoencoder with the parts `encoder` and `decoder`, trained to reconstruct images.

    Source: Arora 2023, pFedAE, its baselines. Deviation: the mean squared error over pixels in
    place of half the sum; but for its epsilon, Adam's steps are the same for both.
    """

    latent_dim: Size | None = Field(None, description="width of z; null = the encoder's own")
    decoder_width: Size = Field(
        32, description="channels before the image, doubled per halving of its sides"
    )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make encoder and decoder."""
        encoder = latent_encoder(backbone, self.latent_dim)
        decoder = ImageDecoder(backbone, self.latent_dim, data.image_shape, self.decoder_width)
        return Net({"encoder": encoder, "decoder": decoder})

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: the best constant image leaves the variance of the pixels."""
        return {"loss": "the variance of the pixels, which data decide"}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the mean squared error of the reconstruction."""
        (x,) = batch.views
        z = net(x, "encoder")  # (B, L)
        return Loss(F.mse_loss(net(z, "decoder"), x), features=(z,))
