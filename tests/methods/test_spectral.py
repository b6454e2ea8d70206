"""Spectral contrastive learning: loss, heads, traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.config import ModelConfig
from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, DataSpec, registry
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.nn.losses import clipped_spectral_contrast, spectral_contrast
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.layout import Layout
from fedbench.bench.training.ledger import Ledger
from fedbench.methods.spectral import Spectral

CLIENT = Client(0, 0, generator(0, "client"))
ENCODER = 11_168_832 + 9_600  # derived in tests/bench/nn/test_backbones.py; batch norm's statistics
GROUP_ENCODER = 11_168_832
M = {
    "norm": "clip",
    "augmentation": "simclr-m",
    "hidden_dim": 2048,
    "projection_dim": 128,
    "projector_norm": False,
    "num_outputs": None,
}


def traffic(spec: str, fields: dict[str, Any], norm: str) -> Ledger:
    config = ModelConfig.model_validate({"backbone": "resnet18", "norm": norm})
    method = registry.create(spec, fields)
    net = method.build(make_backbone(config, 3), DataSpec((3, 32, 32), 10, 100))
    net.drop_counters()
    return Ledger.of_client(Layout.of(net, method.sharing()))


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


def test_views_are_the_configured_ones() -> None:
    assert Spectral().needs().views == ("spec-o-1", "spec-o-2")
    assert Spectral(augmentation="simclr-m").needs().views == ("simclr-m", "simclr-m")
    assert Spectral().needs().min_batch == 2  # one image has no negatives


@pytest.mark.parametrize("outputs", [32, 256])
def test_traffic_in_orchestras_setting(outputs: int) -> None:
    # 512 x 512, norm (weight, bias), 512 x 512; statistics of two norms, the last without affine.
    projector = 512 * 512 + 2 * 512 + 512 * 512 + 2 * 2 * 512
    ledger = traffic("spectral", {"num_outputs": outputs}, "batch")
    assert 4 * (ENCODER + projector) == 46_823_168  # 46.82 MB
    assert ledger.bytes_up == ledger.bytes_down == 46_823_168 + 2_052 * outputs


def test_traffic_in_the_mutual_information_setting() -> None:
    projector = 512 * 2048 + 2048 + 2048 * 128 + 128
    ledger = traffic("spectral", M, "group")
    assert ledger.bytes_up == ledger.bytes_down == 4 * (GROUP_ENCODER + projector)
    assert f"{ledger.bytes_up / 1e6:.2f} MB" == "49.93 MB"
    uv = traffic("spectral+uv", M, "group")
    assert uv.bytes_down - ledger.bytes_down == 5_251_584 + 512 * 100  # 100 rows
    assert uv.bytes_up - ledger.bytes_up == 5_251_584 + 512


def test_the_loss_falls(tmp_path: Path) -> None:
    config = tiny_config("spectral", federation__num_rounds=8, model__norm="batch")
    losses = [record.loss for record in train(tiny_setup(config), tmp_path).history]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < losses[0] - 0.05
