"""FedX: relations by hand, the frozen received model, second batch and halves."""

from __future__ import annotations

import math

import pytest
import torch

from fedbench.bench.method import Batch, Client
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.methods.fedx import relation_gap

CLIENT = Client(0, 0, torch.Generator())


def test_relations_by_hand() -> None:
    """Relations (3/4, 1/4) and (1/4, 3/4) have the mean (1/2, 1/2), which is 0.1438 away."""
    anchors = torch.eye(2)
    # cos a - cos b = ln 3 at temperature 1 for a vector (x, y) with x - y = ln 3, x^2 + y^2 = 1.
    x = (math.log(3) + math.sqrt(2 - math.log(3) ** 2)) / 2
    y = x - math.log(3)
    first, second = torch.tensor([[x, y]]), torch.tensor([[y, x]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(relation_gap(first, second, anchors, 1.0, 1.0)) == pytest.approx(
        expected, abs=1e-5
    )


def test_equal_views_and_a_single_anchor_have_no_gap() -> None:
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    others = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    assert float(relation_gap(rows, rows, others, 0.1, 0.1)) == pytest.approx(0.0, abs=1e-6)
    assert float(relation_gap(rows, others, rows[:1], 0.1, 0.1)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("anchors", ["batch", "halves"])
def test_the_received_model_is_frozen(anchors: str) -> None:
    setup = tiny_setup(tiny_config("fedx", method__anchors=anchors))
    net = setup.make_net()
    data = setup.client_data(0, "cpu")
    setup.method.before_local(net, data, CLIENT)
    views = torch.rand(2, 6, *setup.spec.image_shape).unbind()
    others = (torch.rand(6, *setup.spec.image_shape),) if anchors == "batch" else ()
    batch = Batch(views, torch.full((6,), -1), torch.arange(6), second_batch=others)
    before = {name: value.clone() for name, value in net["target_encoder"].named_buffers()}
    out = setup.method.loss(net, batch, CLIENT)
    out.total.backward()
    assert set(out.parts) == {"received", "relations"}
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name
    for name, value in net["target_encoder"].named_buffers():
        assert torch.equal(value, before[name])


def test_two_images_in_halves_have_one_anchor_each() -> None:
    setup = tiny_setup(tiny_config("fedx", method__anchors="halves"))
    net = setup.make_net()
    setup.method.before_local(net, setup.client_data(0, "cpu"), CLIENT)
    views = torch.rand(2, 2, *setup.spec.image_shape).unbind()
    out = setup.method.loss(net, Batch(views, torch.tensor([-1, -1]), torch.arange(2)), CLIENT)
    assert float(out.parts["relations"]) == pytest.approx(0.0, abs=1e-6)
