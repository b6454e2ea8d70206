"""Supervised FedAvg: cross entropy on the visible labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup

CLIENT = Client(0, 0, generator(0, "client"))


def test_the_loss_is_the_mean_over_views() -> None:
    setup = tiny_setup(tiny_config("supervised", method__num_views=2))
    net = setup.make_net()
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    labels = torch.tensor([0, 9, 3, 3, 1])
    out = setup.method.loss(net, Batch(views, labels), CLIENT)
    logits = [net["classifier"](net["encoder"](view)) for view in views]
    expected = (F.cross_entropy(logits[0], labels) + F.cross_entropy(logits[1], labels)) / 2
    torch.testing.assert_close(out.total, expected)
    assert len(setup.method.needs().views) == 2


def test_only_labelled_images_are_trained_on() -> None:
    setup = tiny_setup(tiny_config("supervised", data__label_fraction=0.3))
    visible = setup.client_data(1, "cpu")
    chosen = setup.partition.client(1)
    assert len(chosen) == 20
    assert len(visible) == 6  # 0.3 * 20
    shown = chosen[setup.labels[chosen] >= 0]
    assert torch.equal(visible.labels, torch.from_numpy(setup.dataset.train_labels[shown]))
    assert torch.equal(visible.images, torch.from_numpy(setup.images[shown]))
