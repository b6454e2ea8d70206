"""Bytes, to the byte, against parameter counts derived from the papers' architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.bench import registry
from fedbench.bench.config import ModelConfig
from fedbench.bench.layout import Layout
from fedbench.bench.ledger import Ledger
from fedbench.bench.method import DataSpec
from fedbench.bench.nn.backbones import make_backbone

ENCODER = 11_168_832  # derived in tests/bench/nn/test_backbones.py
ENCODER_BUFFERS = 9_600
O_PROJECTOR = 512 * 512 + 2 * 512 + 512 * 512 + 512  # no bias, norm, bias; last norm has no affine
O_PROJECTOR_BUFFERS = 4 * 512
M_PROJECTOR = 512 * 2048 + 2048 + 2048 * 128 + 128
CLASSIFIER = 513 * 10
MI = {"hidden_dim": 2048, "projection_dim": 128, "projector_norm": False}


def traffic(spec: str, fields: dict[str, Any], norm: str, num_clients: int = 100) -> Ledger:
    config = ModelConfig.model_validate({"backbone": "resnet18", "norm": norm})
    method = registry.create(spec, fields)
    net = method.build(make_backbone(config, 3), DataSpec((3, 32, 32), 10, num_clients))
    net.drop_counters()
    return Ledger.of_client(Layout.of(net, method.sharing()))


def test_simclr_of_orchestra() -> None:
    floats = ENCODER + ENCODER_BUFFERS + O_PROJECTOR + O_PROJECTOR_BUFFERS
    ledger = traffic("simclr", {}, "batch")
    assert ledger.bytes_up == ledger.bytes_down == 4 * floats == 46_825_216
    assert f"{ledger.bytes_up / 1e6:.2f} MB" == "46.83 MB"
    assert ledger.up["projector"] == 4 * (525_824 + 2_048)


def test_supervised_of_orchestra() -> None:
    ledger = traffic("supervised", {}, "batch")
    assert ledger.bytes_up == ledger.bytes_down == 4 * (ENCODER + ENCODER_BUFFERS + CLASSIFIER)
    assert f"{ledger.bytes_up / 1e6:.2f} MB" == "44.73 MB"


def test_local_simclr_of_the_mutual_information_paper() -> None:
    ledger = traffic("simclr", MI, "group")
    assert ledger.bytes_up == ledger.bytes_down == 4 * (ENCODER + M_PROJECTOR)
    assert f"{ledger.bytes_up / 1e6:.2f} MB" == "49.93 MB"


@pytest.mark.parametrize("rows", ["own", "mean"])
@pytest.mark.parametrize("num_clients", [100, 500])
def test_user_verification_adds_its_projector_all_rows_down_and_one_up(
    num_clients: int, rows: str
) -> None:
    base = traffic("simclr", MI, "group", num_clients)
    uv = traffic("simclr+uv", {**MI, "uv": {"rows": rows}}, "group", num_clients)
    assert 4 * M_PROJECTOR == 5_251_584  # 5.25 MB
    assert uv.bytes_down - base.bytes_down == 5_251_584 + 512 * num_clients
    assert uv.bytes_up - base.bytes_up == 5_251_584 + 512
    assert uv.up["uv"] == 512


def test_ledgers_add_up() -> None:
    total = Ledger()
    total.merge(Ledger({"a": 1}, {"a": 2, "b": 3}), times=4)
    total.add_extras({"centroids": torch.zeros(3, 5), "counts": torch.zeros(7, dtype=torch.int64)})
    assert total.as_dict() == {
        "up": {"a": 4, "centroids": 60, "counts": 56},
        "down": {"a": 8, "b": 12},
    }
    assert (total.bytes_up, total.bytes_down) == (120, 20)
    assert Ledger(**total.as_dict()) == total
