"""Masked images: the sheet's closed forms, what is hidden, and the size of the transformer."""

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from fedbench.bench.config import ModelConfig
from fedbench.bench.method import Batch, Client, DataSpec, Net
from fedbench.bench.nn import Backbone, ViT, patch_side, patches, sine_positions
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.system.seeding import generator
from fedbench.methods.mim import MaskedImages, PatchDecoder, patch_error

DATA = DataSpec((3, 32, 32), 10, 4)


def vit(width: int = 24) -> Backbone:
    return make_backbone(ModelConfig(backbone="vit-5", width=width), 3)


def of_one_seed(method: MaskedImages, backbone: Backbone) -> Net:
    return method.build(replace(backbone, seed=0), DATA)


def one_batch(x: torch.Tensor) -> Batch:
    return Batch((x,), torch.full((len(x),), -1))


def test_predicting_zero_costs_the_share_of_a_normalised_variance() -> None:
    """The squares of P normalised pixels add up to P - 1."""
    target = torch.randn(5, 7, 48, generator=torch.Generator().manual_seed(0))
    value = float(patch_error(torch.zeros_like(target), target, normalised=True))
    assert value == pytest.approx(47 / 48, abs=1e-5)
    constant = torch.full((1, 2, 48), 3.0)
    assert float(patch_error(torch.zeros_like(constant), constant, normalised=True)) == 0
    assert float(patch_error(torch.zeros_like(constant), constant, normalised=False)) == 9


@pytest.mark.parametrize(
    ("size", "side"), [((32, 32), 4), ((64, 64), 8), ((8, 8), 2), ((28, 28), 4), ((96, 64), 8)]
)
def test_patches_divide_images(size: tuple[int, int], side: int) -> None:
    """The divisor of both sides, at least 2, that is nearest to an eighth of the shorter one."""
    assert patch_side(size) == side


def test_patches_by_hand() -> None:
    image = torch.arange(2 * 4 * 4.0).view(1, 2, 4, 4)
    cut = patches(image, 2)
    assert cut.shape == (1, 4, 8)
    assert cut[0, 1].tolist() == [2, 3, 6, 7, 18, 19, 22, 23]  # the upper right, both channels
    assert cut[0, 2].tolist() == [8, 9, 12, 13, 24, 25, 28, 29]  # the lower left


def test_positions_by_hand() -> None:
    table = sine_positions(2, 3, 8)
    row, column = 1, 2
    expected = []
    for place in (row, column):
        angles = [place / 10_000 ** (k / 2) for k in range(2)]
        expected += [*map(math.sin, angles), *map(math.cos, angles)]
    torch.testing.assert_close(table[row * 3 + column], torch.tensor(expected))


def test_the_encoder_has_the_sheets_size() -> None:
    """Per layer 12 d^2 + 13 d; 48 pixels to a token; a last norm; positions are not learnt."""
    d = 192
    encoder = vit(d).make()
    assert (
        sum(p.numel() for p in encoder.parameters()) == 5 * (12 * d * d + 13 * d) + 49 * d + 2 * d
    )
    assert sum(t.numel() for t in encoder.state_dict().values()) * 4 == 8_936_448  # bytes sent


def test_an_image_with_all_patches_visible_is_a_whole_image() -> None:
    encoder = vit().make()
    assert isinstance(encoder, ViT)
    x = torch.randn(3, 3, 32, 32)
    order = torch.rand(3, 64).argsort(dim=1)
    cut = patches(x, 4)
    shown = cut.gather(1, order[:, :, None].expand(-1, -1, 48))
    visible = encoder.visible(shown, order).mean(dim=1)
    torch.testing.assert_close(visible, encoder(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backbone", ["vit-5", "resnet8"])
def test_hidden_patches_do_not_reach_the_encoder(backbone: str) -> None:
    """Features are the same for other pixels there, and the loss has no gradient from the rest."""
    method = MaskedImages()
    net = of_one_seed(method, make_backbone(ModelConfig(backbone=backbone, width=12), 3)).eval()
    x = torch.randn(2, 3, 32, 32)
    order = torch.rand(2, 64, generator=generator(0, "local", 0, 0)).argsort(dim=1)
    hidden = torch.zeros(2, 64).scatter(1, order[:, 16:], 1.0)  # (B, T)
    pixels = hidden.view(2, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)

    def out(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        client = Client(0, 0, generator(0, "local", 0, 0))
        loss = method.loss(net, one_batch(images), client)
        return loss.total, loss.features[0]

    total, features = out(x)
    other_total, other_features = out(x + pixels * torch.randn_like(x))
    assert torch.equal(features, other_features)
    assert not torch.equal(total, other_total)
    assert not torch.equal(out(x + (1 - pixels) * torch.randn_like(x))[1], features)


def test_only_hidden_patches_are_scored() -> None:
    method = MaskedImages(normalised=False)
    net = of_one_seed(method, vit())
    decoder = net["decoder"]
    assert isinstance(decoder, PatchDecoder)
    torch.nn.init.zeros_(decoder.pixels.weight)
    torch.nn.init.zeros_(decoder.pixels.bias)
    x = torch.randn(2, 3, 32, 32)
    order = torch.rand(2, 64, generator=generator(0, "local", 0, 0)).argsort(dim=1)
    hidden = [[patches(x, 4)[b, t] for t in order[b, 16:].tolist()] for b in range(2)]
    expected = torch.stack([torch.stack(rows) for rows in hidden]).square().mean()
    out = method.loss(net, one_batch(x), Client(0, 0, generator(0, "local", 0, 0)))
    torch.testing.assert_close(out.total, expected)


def test_refusals() -> None:
    with pytest.raises(ValidationError, match="decoder_dim"):
        MaskedImages(decoder_dim=6)
    for width in (18, 16):
        with pytest.raises(ConfigError, match=r"model.width"):
            vit(width)
    with pytest.raises(ConfigError, match="7x5"):
        patch_side((7, 5))
    with pytest.raises(DataError, match="32x32"):
        vit().make()(torch.zeros(1, 3, 16, 16))
