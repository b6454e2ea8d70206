"""CBAFed: selected images, counts, traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, ConfigError, DataSpec, Net, Server, Upload
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup

SERVER = Server(0, generator(0, "server"), {})


def setup_of(**values: Any) -> Setup:
    return tiny_setup(tiny_config("cbafed", **{"data__label_fraction": 0.25, **values}))


def client(index: int) -> Client:
    return Client(0, index, generator(0, "client"))


def certain_of(net: Net, label: int, probability: float) -> None:
    """Make the classifier give `label` this probability on every image, the next one the rest."""
    with torch.no_grad():
        net.tensor("classifier.weight").zero_()
        bias = net.tensor("classifier.bias")
        bias.fill_(-50.0)
        bias[label], bias[label + 1] = (torch.tensor([probability, 1 - probability])).log()


def test_warm_up_keeps_the_labelled_images() -> None:
    setup = setup_of(method__warmup_rounds=3)
    data = setup.client_data(0, "cpu")
    selected = setup.method.before_local(setup.make_net(), data, client(2))
    assert len(selected) == 5  # a quarter of 20
    assert torch.equal(selected.labels, data.labels[data.labels >= 0])


@pytest.mark.parametrize(
    ("probability", "shares", "accepted", "guess"),
    [
        # Shares of 0.1 have deviation 0, so every threshold is 0.1 + 0.84 = 0.94.
        (0.95, [0.1] * 10, True, 2),
        (0.93, [0.1] * 10, False, 2),
        # Deviation sqrt(2 * 0.08^2 / 9) = 0.0377, so class 2 needs 0.9023 (0.9042 if divided by
        # 10); class 3 is rare, below 0.03: otherwise the second guess is taken.
        (0.903, [0.1, 0.1, 0.1, 0.02, 0.1, 0.1, 0.1, 0.1, 0.1, 0.18], True, 2),
        (0.902, [0.1, 0.1, 0.1, 0.02, 0.1, 0.1, 0.1, 0.1, 0.1, 0.18], True, 3),
        # Class 2 has share 1, deviation 0.315: 1 + 0.84 - 0.315 is capped at 0.95.
        (0.951, [0.0, 0.0, 1.0, 0.03, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], True, 2),
        (0.949, [0.0, 0.0, 1.0, 0.03, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], False, 2),
        # Class 2 has share 0 and needs 0.84 - 0.3153 = 0.5247 (0.5409 if divided by 10).
        (0.53, [0.0, 0.0, 0.0, 0.03, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], True, 2),
    ],
)
def test_pseudo_labels_follow_the_thresholds(
    probability: float, shares: list[float], accepted: bool, guess: int
) -> None:
    setup = setup_of()
    net, data = setup.make_net(), setup.client_data(0, "cpu")
    certain_of(net, 2, probability)
    net.tensor("class_share").copy_(torch.tensor(shares))
    selected = setup.method.before_local(net, data, client(1))
    assert net.training
    assert len(selected) == (20 if accepted else 5)
    known = data.labels >= 0
    if accepted:  # order is kept, true labels stay
        assert torch.equal(selected.labels[known], data.labels[known])
        assert (selected.labels[~known] == guess).all()
    counts = setup.method.after_local(net, selected, client(1))["class_counts"]
    assert counts.sum() == len(selected)
    assert torch.equal(counts.long(), torch.bincount(selected.labels, minlength=10))


def test_one_class_is_refused() -> None:
    setup = setup_of()
    spec = DataSpec((1, 8, 8), 1, 4, labelled=True)
    with pytest.raises(ConfigError, match="2 classes"):
        setup.method.build(setup.backbone, spec)


def test_the_server_adds_up_the_newest_counts_of_every_client() -> None:
    setup = setup_of()
    net = setup.make_net()

    def send(client_id: int, **counts: int) -> None:
        sent = torch.zeros(10, dtype=torch.int32)
        for name, number in counts.items():
            sent[int(name[1:])] = number
        uploads = [Upload(client_id, int(sent.sum()), 1, {"class_counts": sent})]
        setup.method.server_step(net, uploads, SERVER)

    send(0, c3=30, c4=10)
    send(2, c4=20)
    expected = torch.zeros(10)
    expected[3], expected[4] = 0.5, 0.5
    torch.testing.assert_close(net.tensor("class_share"), expected)
    send(0, c3=60)  # replaces client 0's: 60 of class 3, 20 of class 4
    expected[3], expected[4] = 0.75, 0.25
    torch.testing.assert_close(net.tensor("class_share"), expected)
    assert SERVER.log["trained-images"] == 60


def test_the_loss_is_the_mean_over_views() -> None:
    setup = setup_of()
    net = setup.make_net()
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    labels = torch.tensor([0, 9, 3, 3, 1])
    out = setup.method.loss(net, Batch(views, labels), client(1))
    terms = [F.cross_entropy(net["classifier"](net["encoder"](v)), labels) for v in views]
    torch.testing.assert_close(out.total, (terms[0] + terms[1]) / 2)


def test_shares_come_down_and_counts_go_up() -> None:
    setup = setup_of()
    net = setup.make_net()
    weights = sum(p.numel() for p in net.parameters())
    ledger = Ledger.of_client(setup.layout(net))
    ledger.add_extras(setup.method.after_local(net, setup.client_data(0, "cpu").keep(
        torch.tensor([], dtype=torch.long)), client(0)))  # fmt: skip
    assert ledger.bytes_down == 4 * weights + 4 * 10
    assert ledger.bytes_up == 4 * weights + 4 * 10


def test_it_learns_and_labels_more_and_more(tmp_path: Path) -> None:
    setup = setup_of(
        client__lr=0.2,
        client__local_epochs=3,
        federation__num_rounds=10,
        method__augmentation="base",
        method__base_threshold=0.2,
        seed=2,
    )
    history = train(setup, tmp_path).history
    assert history[0].parts["trained-images"] == 20  # labelled: a quarter of 80
    assert history[-1].parts["trained-images"] > 20
