"""FLOP are those of torch's own counter, and on every device the same."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedbench.bench.nn.backbones import BACKBONES
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.flop import counted


@pytest.mark.parametrize("backbone", BACKBONES)
def test_flop_of_an_encoder_and_its_gradients_are_torchs(backbone: str) -> None:
    width = {"model__width": 12} if backbone.startswith(("vit", "cct")) else {"model__width": 4}
    setup = tiny_setup(tiny_config("simclr", model__backbone=backbone, **width))
    net, images = setup.make_net(), torch.zeros(2, *setup.spec.image_shape)
    with counted() as counter:
        net(images, "encoder").sum().backward()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as theirs:
        net(images, "encoder").sum().backward()
    assert counter.flop == theirs.get_total_flops() > 0


def test_flop_by_hand() -> None:
    """3 x 4 times 4 x 5; a 3 x 3 kernel in 2 groups at 6 x 6 places; 2 products of 7 x 7 x 8."""
    with counted() as counter:
        nn.Linear(4, 5, bias=False)(torch.zeros(3, 4))
        assert counter.flop == 2 * 3 * 4 * 5
        nn.Conv2d(4, 6, 3, groups=2)(torch.zeros(1, 4, 8, 8))
        assert counter.flop == 120 + 2 * 6 * 36 * 2 * 9
        before, x = counter.flop, torch.zeros(1, 1, 7, 8)
        nn.functional.scaled_dot_product_attention(x, x, x)
        assert counter.flop - before == 2 * (2 * 7 * 7 * 8)
