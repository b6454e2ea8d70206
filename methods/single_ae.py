"""Autoencoders that clients train alone: what personalised federated ones have to beat."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from pydantic import Field

from fedbench.bench.method import Batch, Client, DataSpec, Loss, Method, Needs
from fedbench.bench.net import Net
from fedbench.bench.nn.autoencoder import image_decoder, latent_encoder
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.registry import register
from fedbench.bench.sharing import Sharing


@register("single-ae")
class SingleAE(Method):
    """Autoencoder that each client trains on its own images alone; nothing is ever sent.

    Source: Arora 2023, pFedAE, equation 3.9 ("Single Client"). Clients keep their optimizer's state
    between rounds, so that rounds of E epochs are one long training.
    """

    latent_dim: int | None = Field(None, ge=1, description="width of z; null = the encoder's own")
    decoder_width: int = Field(
        32, ge=1, description="channels before the image, doubled per halving of its sides"
    )

    def needs(self) -> Needs:
        """The image itself, in [0, 1]; every client's encoder is evaluated."""
        return Needs(views=("unit",), pixels="unit", evaluate_on="clients", keep_optimizer=True)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Encoder and decoder."""
        shape, width = data.image_shape, self.decoder_width
        return Net(
            {
                "encoder": latent_encoder(backbone, self.latent_dim),
                "decoder": image_decoder(backbone, self.latent_dim, shape, width),
            }
        )

    def sharing(self) -> Mapping[str, Sharing]:
        """All of it stays with the client."""
        return {"*": Sharing.PERSONAL}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Mean squared error of the reconstruction."""
        (x,) = batch.views
        z = net(x, "encoder")  # (B, L)
        return Loss(F.mse_loss(net(z, "decoder"), x), features=(z,))
