"""Exact bytes against parameter counts derived from the papers' architectures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.config import ModelConfig
from fedbench.bench.method import DataSpec, Extra, registry
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.testing import train
from fedbench.bench.training.layout import VectorLayout
from fedbench.bench.training.ledger import Flow, Ledger
from tests.specs import setup_of

ENCODER = 11_168_832  # derived in tests/bench/nn/test_backbones.py
BATCH = ENCODER + 9_600  # with statistics
ROTATION = 4 * 512 + 4
# Heads with batch norms: without the bias that a norm cancels, a norm's weight and bias, the last
# norm without affine; then the statistics of each.
O_HEAD = 512 * 512 + 2 * 512 + 512 * 512 + 512 + 4 * 512
BIASLESS_HEAD = O_HEAD - 512
SWAV_HEAD = 512 * 512 + 2 * 512 + 512 * 128 + 128 + 2 * 512 + 2 * 128
BYOL_HEAD = 512 * 1024 + 2 * 1024 + 1024 * 512 + 2 * 1024
BYOL_PREDICTOR = BYOL_HEAD + 512  # its last layer has a bias
SIMSIAM_HEAD = 512 * 256 + 512 + 256 * 256 + 512 + 256 * 512 + 2 * 256 + 2 * 256 + 2 * 512
SIMSIAM_PREDICTOR = 512 * 512 + 1024 + 512 * 512 + 512 + 2 * 512
ALIGNED_HEAD = 512 * 2048 + 2 * 2048 + 2048 * 512 + 512 + 2 * 2048  # no norm at its end
DECODER = 512 * 4096 + 16 * (256 * 128 + 128 * 64 + 64 * 32) + 32 * 27 + 3
DECODER_NORMS = 2 * (256 + 128 + 64 + 32)
# Those of the setting of mutual information, with group norm in the encoder.
M_HEAD = 512 * 2048 + 2048 + 2048 * 128 + 128
M_PREDICTOR = 128 * 2048 + 2048 + 2 * 2048 + 2048 * 128 + 128
UV = M_HEAD + 128  # its projector, and the client's own row; the other 99 come down
MI = {"hidden_dim": 2048, "projection_dim": 128}
PLAIN = {**MI, "projector_norm": False}
SPECTRAL = {**PLAIN, "norm": "clip", "num_outputs": None}
SIMSIAM = {**MI, "heads": "m", "predictor_dim": 2048}
BYOL = BATCH + BYOL_HEAD + BYOL_PREDICTOR

TRAFFIC: list[tuple[str, dict[str, Any], str, int, int]] = [
    *((spec, {}, "batch", BATCH + 513 * 10, 0) for spec in ("supervised", "semifed")),
    *((spec, {}, "batch", BATCH + O_HEAD, 0) for spec in ("simclr", "featarc")),
    ("swav", {}, "batch", BATCH + SWAV_HEAD + 32 * 128, 0),  # 32 prototypes
    ("rotpred", {}, "batch", BATCH + O_HEAD + ROTATION, 0),
    ("aligned", {"hidden_dim": 2048}, "batch", BATCH + ALIGNED_HEAD, 0),
    *(
        ("spectral", {"num_outputs": n}, "batch", BATCH + BIASLESS_HEAD + 513 * n, 0)
        for n in (32, 256)
    ),
    *(
        ("simsiam", {"update": update}, "batch", BATCH + SIMSIAM_HEAD + SIMSIAM_PREDICTOR, 0)
        for update in ("average", "fedu", "fedema", "frozen-predictor")
    ),
    ("byol", {}, "batch", BYOL + BATCH + BYOL_HEAD, 0),
    ("byol", {"target": "reinit"}, "batch", BYOL, 0),
    *(
        ("byol", {"target": "personal", "update": update}, "batch", BYOL, 0)
        for update in ("average", "fedu", "fedema", "frozen-predictor")
    ),
    ("orchestra", {}, "batch", 2 * (BATCH + BIASLESS_HEAD) + ROTATION, 32 * 512),
    ("orchestra", {"target": False, "degeneracy": False}, "batch", BATCH + BIASLESS_HEAD, 32 * 512),
    ("fedavg-ae", {}, "batch", BATCH + DECODER + 2 * DECODER_NORMS, 0),
    ("pfedae", {}, "batch", 0, 0),
    ("pfedae", {"gradient": "ship"}, "batch", 0, ENCODER + DECODER + DECODER_NORMS),
    ("simclr", PLAIN, "group", ENCODER + M_HEAD, 0),
    ("simclr+uv", PLAIN, "group", ENCODER + M_HEAD + UV, 99 * 128),
    ("simclr+uv", {**PLAIN, "uv": {"rows": "mean"}}, "group", ENCODER + M_HEAD + UV, 99 * 128),
    ("spectral", SPECTRAL, "group", ENCODER + M_HEAD, 0),
    ("simsiam", SIMSIAM, "group", ENCODER + M_HEAD + 2 * 2048 + M_PREDICTOR, 0),
    (
        "simsiam",
        {**SIMSIAM, "heads": "m-pre"},
        "group",
        ENCODER + M_HEAD + 2 * 512 + M_PREDICTOR - 2 * 2048 + 2 * 128,
        0,
    ),
]


@pytest.mark.parametrize(("spec", "fields", "norm", "floats", "down_only"), TRAFFIC)
def test_a_client_of_100_exchanges_every_float_of_its_net(
    spec: str, fields: dict[str, Any], norm: str, floats: int, down_only: int
) -> None:
    config = ModelConfig.model_validate({"backbone": "resnet18", "norm": norm})
    method = registry.create(spec, fields)
    net = method.build(make_backbone(config, 3), DataSpec((3, 32, 32), 10, 100))
    net.drop_counters()
    ledger = Ledger.of_client(VectorLayout.of(net, method.sharing()))
    assert ledger.bytes_up == 4 * floats
    assert ledger.bytes_down == 4 * (floats + down_only)


VIT_HEAD = O_HEAD - (512 - 192) * 512  # on features of 192
# ViT-Tiny on four patches of 16x16x3 and a class token: two norms, attention and MLP in a layer.
VIT_LAYER = 4 * 192 + (192 + 1) * 576 + (192 + 1) * 192 + (192 + 1) * 768 + (768 + 1) * 192
VIT = (768 + 1) * 192 + 192 + 5 * 192 + 12 * VIT_LAYER + 2 * 192
LORA = 8 * (768 + 192 + 12 * (192 + 576 + 192 + 192 + 2 * (192 + 768)))  # rank x (in + out)


@pytest.mark.parametrize(
    ("spec", "trainable", "floats"),
    [
        ("simclr", "all", VIT + VIT_HEAD),
        ("simclr", "heads", VIT_HEAD),
        ("simclr", "last:1", VIT_LAYER + 2 * 192 + VIT_HEAD),
        ("simclr+lora", "all", LORA + VIT_HEAD),
    ],
)
def test_a_frozen_transformer_costs_nothing(spec: str, trainable: str, floats: int) -> None:
    pytest.importorskip("timm")
    values = {"backbone": "timm:vit_tiny_patch16_224", "norm": "batch", "trainable": trainable}
    backbone = make_backbone(ModelConfig.model_validate(values), 3)
    method = registry.create(spec, {})
    with torch.device("meta"):
        net = method.build(backbone, DataSpec((3, 32, 32), 10, 100))
    net.drop_counters()
    layout = VectorLayout.of(net, method.sharing())
    ledger = Ledger.of_client(layout)
    assert ledger.bytes_up == ledger.bytes_down == 4 * layout.upload_size == 4 * floats
    factors = LORA if "lora" in spec else 0
    assert sum(p.numel() for p in net.parameters()) == VIT + VIT_HEAD - 4 * 512 + factors


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
    layout = setup_of("simclr").bound().layout
    slot = layout.averaged[0]  # may hold single images as well
    ledger = Ledger.of_client(layout, {slot.name: Extra(per_sample=True)})
    revealing = [name for name, flow in ledger.flows["up"].items() if flow.revealing]
    assert (revealing, ledger.flows["up"][slot.part].smallest) == ([slot.part], 1)
    assert not any(flow.revealing for flow in ledger.flows["down"].values())


def test_every_message_of_every_round_is_recorded(tmp_path: Path) -> None:
    """4 clients train in 2 rounds; in round 0 none does, so no weights go up.

    In later rounds averaged parts go both ways; centroids are sent unchanged.
    """
    small = {"method__num_global_clusters": 6, "method__global_steps": 5}
    setup = setup_of("orchestra", method__num_local_clusters=3, **small)
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
