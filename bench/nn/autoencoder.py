"""Parts of autoencoders for small images: encoders with a latent width, and image decoders.

Source: Arora 2023, pFedAE, which names a ResNet-18 encoder and a convolutional decoder without
their sizes; the sizes here are ours.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.system.errors import ConfigError

_SMALLEST_SIDE = 4


def latent_encoder(backbone: Backbone, latent_dim: int | None = None) -> nn.Module:
    """Make an encoder (B, C, H, W) -> (B, latent_dim); None = the backbone's width."""
    encoder = backbone.make()
    if latent_dim is None or latent_dim == backbone.dim:
        return encoder
    return nn.Sequential(encoder, nn.Linear(backbone.dim, latent_dim))


def group_normed(backbone: Backbone) -> Backbone:
    """Return the backbone with group norm, whose output for one image ignores its batch.

    Its encoders draw weights of their own from the global generator and are trained as a whole,
    whatever those of `backbone` start from and freeze. Raises `ConfigError` if its width cannot be
    divided into `norm_groups` groups.
    """
    if backbone.width % backbone.norm_groups:
        raise ConfigError(
            f"model.norm_groups: must divide the width {backbone.width} (got"
            f" {backbone.norm_groups}), since the server's parts have group norm"
        )
    # With the run's seed an encoder of the server would begin as a copy of the clients'.
    return replace(backbone, norm_name="group", seed=None, start=None, prepare=None)


class ImageDecoder(nn.Module):
    """Latents to images: a linear layer, then transposed convolutions that double the sides.

    The first feature map is the image's size, halved while both sides are even and at least 8 (4x4
    for 32x32 images); its channels are `width`, doubled per halving, and `width` before the last
    layer. At 32x32x3, L = 512 and width 32 the decoder has 2,787,107 parameters. The backbone's
    norm follows every layer but the last; `latent_dim` is as in `latent_encoder`; a `bounded` one
    ends in a sigmoid, for images in [0, 1]. Raises `ConfigError` if the width cannot be divided
    into the groups of a group norm.
    """

    def __init__(
        self,
        backbone: Backbone,
        latent_dim: int | None,
        image_shape: tuple[int, int, int],
        width: int,
        *,
        bounded: bool = True,
    ) -> None:
        super().__init__()
        if not backbone.norm_is_batch and width % backbone.norm_groups:
            raise ConfigError(
                f"method.decoder_width: must be divisible by model.norm_groups"
                f" {backbone.norm_groups} (got {width})"
            )
        out_channels, rows, columns = image_shape
        doublings = 0
        while not (rows % 2 or columns % 2) and min(rows, columns) >= 2 * _SMALLEST_SIDE:
            rows, columns, doublings = rows // 2, columns // 2, doublings + 1
        channels = width << doublings
        self.first_map = (channels, rows, columns)
        latent_dim = latent_dim or backbone.dim
        self.expand = nn.Linear(latent_dim, channels * rows * columns, bias=False)
        layers: list[nn.Module] = [backbone.norm(channels), nn.ReLU()]
        for _ in range(doublings):
            channels //= 2
            layers += [
                nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1, bias=False),
                backbone.norm(channels),
                nn.ReLU(),
            ]
        layers.append(nn.Conv2d(channels, out_channels, 3, padding=1))
        self.layers = nn.Sequential(*layers)
        self.bounded = bounded

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents, (B, L) -> (B, C, H, W)."""
        images: Tensor = self.layers(self.expand(z).unflatten(1, self.first_map))
        return torch.sigmoid(images) if self.bounded else images


def latent_gap(z: Tensor, served: Tensor) -> Tensor:
    """Return the squared distance of latents relative to the first ones' square, no gradient."""
    gap: Tensor = F.mse_loss(served, z) / z.square().mean().clamp_min(torch.finfo(z.dtype).tiny)
    return gap.detach()
