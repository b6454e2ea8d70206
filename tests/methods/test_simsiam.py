"""SimSiam: loss, heads, traffic, and stateful clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.config import ModelConfig
from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, DataSpec, Sharing, registry
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup, train
from fedbench.bench.training.layout import Layout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup

CLIENT = Client(0, 0, generator(0, "client"))
ENCODER = 11_168_832  # derived in tests/bench/nn/test_backbones.py
M = {"heads": "m", "hidden_dim": 2048, "projection_dim": 128, "predictor_dim": 2048}


def built(spec: str, fields: dict[str, Any], norm: str) -> tuple[dict[str, int], Ledger]:
    """Return trained numbers per part and a client's traffic, with a ResNet-18."""
    config = ModelConfig.model_validate({"backbone": "resnet18", "norm": norm})
    method = registry.create(spec, fields)
    net = method.build(make_backbone(config, 3), DataSpec((3, 32, 32), 10, 100))
    net.drop_counters()
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in net.items()}
    return sizes, Ledger.of_client(Layout.of(net, method.sharing()))


def setup_of(**fields: Any) -> Setup:
    return tiny_setup(tiny_config("simsiam", **fields))


@pytest.mark.parametrize("heads", ["o", "m", "m-pre"])
def test_the_loss_by_hand(heads: str) -> None:
    setup = setup_of(method__heads=heads)
    net = setup.make_net()
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    out = setup.method.loss(net, Batch(views, torch.full((5,), -1)), CLIENT)
    h = [net["encoder"](view) for view in views]
    z = [net["projector"](features) for features in h]
    p = [net["predictor"](features) for features in z]
    cosines = F.cosine_similarity(p[0], z[1]).mean() + F.cosine_similarity(p[1], z[0]).mean()
    torch.testing.assert_close(out.total, -cosines / 2)
    torch.testing.assert_close(out.features[0], h[0])
    assert 0 < out.parts["spread"].item() <= 1


def test_projections_get_their_gradient_through_the_predictor_only() -> None:
    setup = setup_of()
    net = setup.make_net()
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    with torch.no_grad():
        net.tensor(
            "predictor.3.weight"
        ).zero_()  # a constant prediction: nothing flows back through it
    setup.method.loss(net, Batch(views, torch.full((5,), -1)), CLIENT).total.backward()
    bias = net.tensor("predictor.3.bias").grad
    assert bias is not None
    assert bool(bias.any())
    gradients = [p.grad for part in ("encoder", "projector") for p in net[part].parameters()]
    assert not any(g is not None and bool(g.any()) for g in gradients)


def test_heads_and_traffic_in_orchestras_setting() -> None:
    sizes, ledger = built("simsiam", {}, "batch")
    # 512-256-256-512 without biases, a norm each, the last one without affine.
    assert sizes["projector"] == 512 * 256 + 512 + 256 * 256 + 512 + 256 * 512 == 328_704
    assert sizes["predictor"] == 512 * 512 + 1024 + 512 * 512 + 512 == 525_824
    floats = ENCODER + 9_600 + 328_704 + 2_048 + 525_824 + 1_024
    assert ledger.bytes_up == ledger.bytes_down == 4 * floats == 48_144_128
    assert f"{ledger.bytes_up / 1e6:.2f} MB" == "48.14 MB"


def test_heads_and_traffic_in_the_mutual_information_setting() -> None:
    sizes, ledger = built("simsiam", M, "group")
    assert sizes["projector"] == 512 * 2048 + 2048 + 2 * 2048 + 2048 * 128 + 128 == 1_316_992
    assert sizes["predictor"] == 128 * 2048 + 2048 + 2 * 2048 + 2048 * 128 + 128 == 530_560
    assert ledger.bytes_up == ledger.bytes_down == 4 * (ENCODER + 1_316_992 + 530_560)
    assert f"{ledger.bytes_up / 1e6:.2f} MB" == "52.07 MB"
    _, uv = built("simsiam+uv", M, "group")
    assert uv.bytes_down - ledger.bytes_down == 5_251_584 + 512 * 100  # 100 rows
    assert uv.bytes_up - ledger.bytes_up == 5_251_584 + 512
    sizes, _ = built("simsiam", {**M, "heads": "m-pre"}, "group")
    assert sizes["projector"] == 2 * 512 + 512 * 2048 + 2048 + 2048 * 128 + 128
    assert sizes["predictor"] == 2 * 128 + 128 * 2048 + 2048 + 2048 * 128 + 128


@pytest.mark.parametrize("update", ["average", "fedu", "fedema", "frozen-predictor"])
def test_what_clients_remember_costs_no_traffic(update: str) -> None:
    assert built("simsiam", {"update": update}, "batch")[1].bytes_up == 48_144_128
    assert built("simsiam", {"update": update}, "batch")[1].bytes_down == 48_144_128


def test_sharing() -> None:
    for update, personal in (("fedu", {"predictor", "record"}), ("average", set())):
        setup = setup_of(method__update=update)
        layout = setup.layout(setup.make_net())
        assert {slot.name.split(".")[0] for slot in layout.personal} == {
            f"own_{x}" for x in personal
        }
        assert {slot.rule for slot in layout.server} == {Sharing.AVERAGED}


def test_the_releases_predictor_never_moves(tmp_path: Path) -> None:
    setup = setup_of(method__update="frozen-predictor")
    trainer = train(setup, tmp_path)
    for slot in trainer.layout.server:
        same = torch.equal(
            trainer.vector[slot.start : slot.stop], trainer.initial[slot.start : slot.stop]
        )
        assert same == (slot.name.startswith(("predictor", "initial_predictor")))


def test_updates_differ_only_once_a_client_has_a_past(tmp_path: Path) -> None:
    rules: tuple[dict[str, Any], ...] = (
        {"method__update": "average"},
        {"method__update": "fedu", "method__predictor_threshold": 1e9},
        {"method__update": "fedu", "method__predictor_threshold": 0.0},
        {"method__update": "fedema"},
    )
    after = []
    for number, rule in enumerate(rules):
        trainer = train(setup_of(**rule), tmp_path / str(number), rounds=1)
        after.append([trainer.vector.clone()])
        trainer = train(setup_of(**rule), tmp_path / str(number))
        after[-1].append(trainer.vector.clone())
    for first, _ in after:
        assert torch.equal(first, after[0][0])
    average, never, always, fedema = (second for _, second in after)
    assert torch.equal(never, average)  # no divergence reaches the threshold
    assert not torch.equal(always, average)
    assert not torch.equal(fedema, average)
    assert not torch.equal(fedema, always)


class TestFedEMA(MethodContract):
    """Contract for the rule with the largest memory."""

    spec = "simsiam"
    fields: Mapping[str, Any] = MappingProxyType({"method__update": "fedema"})
