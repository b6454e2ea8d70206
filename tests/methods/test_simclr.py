"""SimCLR: its loss, and training that improves the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, DataSpec
from fedbench.bench.nn.losses import info_nce, nt_xent
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.methods.simclr import SimCLR

CLIENT = Client(0, 0, generator(0, "client"))


@pytest.mark.parametrize("variant", ["nt-xent", "info-nce"])
def test_the_loss_compares_projections_of_two_views(
    variant: Literal["nt-xent", "info-nce"],
) -> None:
    setup = tiny_setup(tiny_config("simclr", method__variant=variant, method__temperature=0.3))
    net = setup.make_net()
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    out = setup.method.loss(net, Batch(views, torch.full((5,), -1)), CLIENT)
    h = [net["encoder"](view) for view in views]
    contrast = nt_xent if variant == "nt-xent" else info_nce
    expected = contrast(net["projector"](h[0]), net["projector"](h[1]), 0.3)
    torch.testing.assert_close(out.total, expected)
    torch.testing.assert_close(out.features[1], h[1])


def test_the_two_papers_projectors() -> None:
    spec = DataSpec((1, 8, 8), 10, 4)
    backbone = tiny_setup(tiny_config("simclr", model__norm="batch")).backbone
    o = SimCLR(hidden_dim=8, projection_dim=6).build(backbone, spec)["projector"]
    shapes = {name: list(p.shape) for name, p in o.named_parameters()}
    assert shapes == {
        "0.weight": [8, 16], "1.weight": [8], "1.bias": [8], "3.weight": [6, 8], "3.bias": [6]
    }  # fmt: skip
    m = SimCLR(hidden_dim=8, projection_dim=6, projector_norm=False).build(backbone, spec)
    assert sum(p.numel() for p in m["projector"].parameters()) == 16 * 8 + 8 + 8 * 6 + 6


def test_the_loss_falls(tmp_path: Path) -> None:
    """Between the first and the last six rounds, since clients of few images differ in theirs."""
    config = tiny_config("simclr", federation__num_rounds=24, model__norm="batch")
    losses = [record.loss or 0.0 for record in train(tiny_setup(config), tmp_path).history]
    assert all(losses)
    assert sum(losses[-6:]) / 6 < sum(losses[:6]) / 6 - 0.5  # by 1.4 to 1.9, seeds 0 to 3
