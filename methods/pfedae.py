"""pFedAE: personal encoders around a decoder and an encoder that live on the server."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedbench.bench.method import (
    ACTIVATIONS,
    Batch,
    Client,
    ClientData,
    DataSpec,
    Extra,
    Loss,
    Method,
    Needs,
    Net,
    RunConfig,
    Server,
    Sharing,
    Size,
    Upload,
    register,
)
from fedbench.bench.nn import Adam, Backbone, ImageDecoder, group_normed, latent_encoder, latent_gap

SERVED = ("decoder", "surrogate_encoder")


@register("pfedae")
class PFedAE(Method):
    """Autoencoder whose encoders stay with their clients: latents travel, weights do not.

    A client computes z = encoder(x), the server z' = surrogate_encoder(decoder(z)), the client
    surrogate_decoder(z') and its squared distance to x, which trains the client's two parts. Once a
    round the server trains its two parts on |z - z'|^2 over the latents that it was sent.

    Source: Arora 2023, pFedAE, equations 3.8 and 3.13 and algorithm 1. Deviation: means of squares
    in place of sums, as in `Autoencoder`. Equation 3.8's weight between the two errors has no
    effect, since each is minimised over other parts; where algorithm 1 names two of the clients'
    symbols in the server's step, the server's are meant. The thesis leaves open how the gradient
    gets through the server's parts, so there are three readings (`gradient`):

    * `split`: exact. Per batch z, z', and the gradients of both cross the wire.
    * `ste`: the gradient of z' is taken for that of z, and only z and z' cross.
    * `ship`: the server's parts are sent to every client each round, and latents come back once.
      Contradicts the traffic that the thesis claims; it is the test of `split`.

    Ours, where the thesis is silent: the server's parts have group norm (a batch's statistics would
    depend on the client being served); a round ends in one epoch over the latents of the last local
    epoch (`server_steps: single` is the literal one step); optimizer states last from round to
    round.
    """

    gradient: Literal["split", "ste", "ship"] = Field(
        "split", description="how the encoder's gradient gets through the server's parts"
    )
    latent_dim: Size | None = Field(None, description="width of z; null = the encoder's own")
    decoder_width: Size = Field(
        32, description="channels before the image, doubled per halving of its sides"
    )
    server_steps: Literal["epoch", "single"] = Field(
        "epoch", description="an epoch over the round's latents, or one step on all of them"
    )
    server_lr: float = Field(0.01, gt=0, description="Adam on the server")
    server_batch_size: int = Field(256, ge=1, description="latents per step of an epoch")

    def needs(self) -> Needs:
        """Ask for the image itself, in [0, 1]; evaluate each client's encoder; latents go up."""
        return Needs(
            views=("unit",),
            pixels="unit",
            evaluate_on="clients",
            keep_optimizer=True,
            extras={ACTIVATIONS: Extra(per_sample=True)},
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make the client's encoder and surrogate decoder, and the server's two counterparts."""
        shape, width, latent_dim = data.image_shape, self.decoder_width, self.latent_dim
        served = group_normed(backbone)
        return Net(
            {
                "encoder": latent_encoder(backbone, latent_dim),
                "surrogate_decoder": ImageDecoder(backbone, latent_dim, shape, width),
                "decoder": ImageDecoder(served, latent_dim, shape, width, bounded=False),
                "surrogate_encoder": latent_encoder(served, latent_dim),
            }
        )

    def sharing(self) -> Mapping[str, Sharing]:
        """Keep the client's parts with it, and the server's unless they are shipped."""
        served = Sharing.BROADCAST if self.gradient == "ship" else Sharing.SERVER_ONLY
        return {"encoder.*": Sharing.PERSONAL, "surrogate_decoder.*": Sharing.PERSONAL, "*": served}

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return none: the best constant image leaves the variance of the pixels."""
        return {
            "loss": "the variance of the pixels, which data decide",
            **dict.fromkeys(("latent_gap", "server_loss"), "no term of the loss"),
        }

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the squared error of the reconstruction through the server's frozen parts."""
        (x,) = batch.views
        z = net(x, "encoder")  # (B, L)
        if self.gradient == "ste":
            with torch.no_grad():
                served = net(z, *SERVED)
            returned = served + (z - z.detach())  # the value of z', the gradient of z
        else:
            returned = served = net(z, *SERVED)
        loss = F.mse_loss(net(returned, "surrogate_decoder"), x)
        parts = {"latent_gap": latent_gap(z, served)}
        return Loss(loss, features=(z,), parts=parts, keep={"z": z.detach()})

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """Remember the latents to send if they do not cross the wire in the loss."""
        if self.gradient == "ship":
            net.wire.received.append(out.keep["z"])

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Send the latents of the last local epoch, unless the server has them already."""
        if self.gradient != "ship" or not net.wire.received:
            return {}
        return {ACTIVATIONS: torch.cat(net.wire.received)}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Train the server's two parts to reproduce the latents that they are given."""
        sent = [u.extras[ACTIVATIONS] for u in uploads if ACTIVATIONS in u.extras]
        if not sent:
            return
        latents = torch.cat(sent)  # (N, L)
        trained = [p for part in SERVED for p in net[part].requires_grad_(True).parameters()]
        adam = server.optimizer("pair", lambda: Adam(trained, lr=self.server_lr))
        error = 0.0
        size = len(latents) if self.server_steps == "single" else self.server_batch_size
        for step in torch.randperm(len(latents), generator=server.rng).split(size):
            adam.zero_grad()
            for rows in step.split(self.server_batch_size):
                z = latents[rows].to(trained[0].device)
                loss = F.mse_loss(net[SERVED[1]](net[SERVED[0]](z)), z) * (len(rows) / len(step))
                loss.backward()
                error += float(loss.detach()) * len(step)
            adam.step()
        server.log["server_loss"] = error / len(latents)
