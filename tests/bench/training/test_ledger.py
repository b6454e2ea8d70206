"""Exact bytes against parameter counts derived from the papers' architectures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.config import ModelConfig
from fedbench.bench.method import DataSpec, Extra, registry
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.layout import Layout
from fedbench.bench.training.ledger import Flow, Ledger

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


ORCHESTRA = ENCODER + ENCODER_BUFFERS


@pytest.mark.parametrize(
    ("spec", "fields", "norm", "floats", "megabytes"),
    [
        ("simclr", {}, "batch", ORCHESTRA + O_PROJECTOR + O_PROJECTOR_BUFFERS, "46.83"),
        ("supervised", {}, "batch", ORCHESTRA + CLASSIFIER, "44.73"),
        ("simclr", MI, "group", ENCODER + M_PROJECTOR, "49.93"),
    ],
)
def test_a_client_exchanges_every_float_of_its_net(
    spec: str, fields: dict[str, Any], norm: str, floats: int, megabytes: str
) -> None:
    ledger = traffic(spec, fields, norm)
    assert ledger.bytes_up == ledger.bytes_down == 4 * floats
    assert f"{ledger.bytes_up / 1e6:.2f}" == megabytes


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
    client = Ledger()
    client.add("up", "a", 1)
    client.add("down", "a", 2)
    client.add("down", "b", 3)
    total = Ledger()
    total.merge(client, times=4)
    total.add_extras({"centroids": torch.zeros(3, 5), "counts": torch.zeros(7, dtype=torch.int64)})
    assert total.up == {"a": 4 * 4, "centroids": 60, "counts": 56}
    assert total.down == {"a": 4 * 8, "b": 4 * 12}
    assert (total.bytes_up, total.bytes_down) == (132, 80)
    assert total.flows["up"]["a"] == Flow(messages=4, numbers=4, bytes=16)
    assert total.flows["up"]["counts"] == Flow(messages=1, numbers=7, bytes=56)
    assert Ledger.from_dict(json.loads(json.dumps(total.as_dict()))) == total


def test_the_ledger_says_which_messages_reveal_single_images() -> None:
    declared = {
        "latents": Extra(per_sample=True),
        "centroids": Extra(group_size="least"),
        "least": Extra(),
    }
    ledger = Ledger()
    for least in (5, 1, 3):
        sent = {"centroids": torch.zeros(2, 4), "least": torch.tensor([float(least)])}
        ledger.add_extras(sent, declared)
    assert (ledger.revealing, ledger.smallest) == (1, 1)  # the message in the middle
    centroids = ledger.flows["up"]["centroids"]
    assert (centroids.messages, centroids.revealing, centroids.smallest) == (3, 1, 1)
    assert ledger.flows["up"]["least"] == Flow(messages=3, numbers=3, bytes=12)
    ledger.add_extras({"latents": torch.zeros(6, 2)}, declared)
    assert ledger.flows["up"]["latents"] == Flow(1, 12, 48, revealing=1, smallest=1)


def test_every_message_of_every_round_is_recorded(tmp_path: Path) -> None:
    """4 clients train in 2 rounds; in round 0 none does, so no weights go up.

    In later rounds averaged parts go both ways; centroids are sent unchanged.
    """
    small = {"method__num_global_clusters": 6, "method__global_steps": 5}
    setup = tiny_setup(tiny_config("orchestra", method__num_local_clusters=3, **small))
    trainer = train(setup, tmp_path)
    dim, clients = 16, 4
    for record in trainer.history:
        up, down = record.traffic["up"], record.traffic["down"]
        trained = record.round_index > 0
        parts = ("encoder", "projector", "target_encoder", "target_projector", "rotation")
        assert set(up) == {"centroids", "min_cluster_size", *(parts if trained else ())}
        assert set(down) == {"centroids", *parts}
        for part in parts:
            numbers = sum(v.numel() for v in setup.make_net()[part].state_dict().values())
            assert down[part]["numbers"] == clients * numbers
            if not trained:
                continue
            assert up[part]["numbers"] == clients * numbers
            assert up[part]["bytes"] == 4 * clients * numbers
            assert (up[part]["messages"], up[part]["revealing"]) == (clients, 0)
        assert up["centroids"]["bytes"] == 4 * clients * 3 * dim
        assert down["centroids"]["bytes"] == 4 * clients * 6 * dim
        assert up["min_cluster_size"]["bytes"] == 4 * clients
        assert up["centroids"]["smallest"] == record.parts["min_cluster_size"]
        assert record.bytes_up == sum(flow["bytes"] for flow in up.values())
        assert record.bytes_down == sum(flow["bytes"] for flow in down.values())
    # In closed form: floats of the net down in 3 rounds and up in 2; G x d, L x d, 1.
    floats = sum(v.numel() for n, v in setup.make_net().state_dict().items() if n != "centroids")
    assert trainer.ledger.bytes_down == 4 * clients * 3 * (floats + 6 * dim)
    assert trainer.ledger.bytes_up == 4 * clients * (2 * floats + 3 * (3 * dim + 1))
    total = Ledger()
    for record in trainer.history:
        total.merge(Ledger.from_dict(record.traffic))
    assert total == trainer.ledger
