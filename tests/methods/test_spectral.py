"""Spectral contrastive learning: loss, heads, traffic."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client
from fedbench.bench.nn.losses import clipped_spectral_contrast, spectral_contrast
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup

CLIENT = Client(0, 0, generator(0, "client"))


@pytest.mark.parametrize("norm", ["cos", "clip", "none"])
@pytest.mark.parametrize("outputs", [None, 7])
def test_the_loss_by_hand(norm: str, outputs: int | None) -> None:
    fields = {"method__norm": norm, "method__num_outputs": outputs, "method__mu": 0.5}
    setup = tiny_setup(tiny_config("spectral", **fields))
    net = setup.make_net()
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    out = setup.method.loss(net, Batch(views, torch.full((5,), -1)), CLIENT)
    h = [net["encoder"](view) for view in views]
    z = [net["projector"](features) for features in h]
    if outputs is not None:
        z = [net["output"](features / features.norm(dim=1, keepdim=True)) for features in z]
    if norm == "cos":
        expected = spectral_contrast(F.normalize(z[0], dim=1), F.normalize(z[1], dim=1))
    elif norm == "clip":
        expected = clipped_spectral_contrast(z[0], z[1], 0.5)
    else:
        expected = spectral_contrast(z[0], z[1])
    torch.testing.assert_close(out.total, expected)
    torch.testing.assert_close(out.features[1], h[1])
