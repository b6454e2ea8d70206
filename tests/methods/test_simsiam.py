"""SimSiam: loss, heads, traffic, and stateful clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup, train
from fedbench.bench.training.setup import Setup

CLIENT = Client(0, 0, generator(0, "client"))


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
