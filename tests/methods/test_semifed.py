"""SemiFed: three loss terms, the frozen received model, warm-up and traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, Loss, RoundPlan
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup

CLIENT = Client(0, 0, generator(0, "client"))
LABELS = torch.tensor([3, -1, -1, 8, -1])


def setup_of(**values: Any) -> Setup:
    return tiny_setup(tiny_config("semifed", **{"data__label_fraction": 0.25, **values}))


def computed(setup: Setup, labels: torch.Tensor = LABELS) -> tuple[Loss, dict[str, torch.Tensor]]:
    """Return the loss after a step away from the received model, and its logits by name."""
    net = setup.make_net()
    setup.method.before_local(net, setup.client_data(0, "cpu"), CLIENT)
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b", "c"))
    received = net["classifier"](net["encoder"].eval()(views[2])).detach()
    net["encoder"].train()
    with torch.no_grad():
        net.tensor("classifier.weight").mul_(-2.0)
    weak, strong = (net["classifier"](net["encoder"](view)) for view in views[:2])
    out = setup.method.loss(net, Batch(views, labels), CLIENT)
    return out, {"weak": weak, "strong": strong, "received": received}


@pytest.mark.parametrize("threshold", [0.0, 0.11, 1.0])
def test_the_loss_by_hand(threshold: float) -> None:
    values = {"method.consistency_weight": 0.5, "method.pseudo_weight": 2.0}
    out, logits = computed(setup_of(**values, **{"method.threshold": threshold}))
    supervised = F.cross_entropy(logits["weak"][[0, 3]], LABELS[[0, 3]])
    hidden = [1, 2, 4]
    p, q = logits["weak"][hidden].softmax(1), logits["strong"][hidden].softmax(1)
    divergence = (p * (p.log() - q.log())).sum() / 3
    pseudo = torch.zeros(())
    for i in hidden:
        guess = logits["received"][i].softmax(0)
        if guess.max() >= threshold:
            pseudo = pseudo - logits["strong"][i].log_softmax(0)[guess.argmax()] / 3
    torch.testing.assert_close(out.total, supervised + 0.5 * divergence + 2.0 * pseudo)
    torch.testing.assert_close(out.parts["pseudo-labels"], 2.0 * pseudo.detach())
    assert bool(pseudo > 0) == (threshold < 1)
    assert len(out.features) == 2


def test_a_labelled_batch_is_cross_entropy_of_the_weak_view() -> None:
    labels = torch.tensor([3, 1, 1, 8, 0])
    out, logits = computed(setup_of(), labels)
    torch.testing.assert_close(out.total, F.cross_entropy(logits["weak"], labels))


def test_the_first_rounds_can_be_without_guesses() -> None:
    setup = setup_of(method__warmup_rounds=2)
    data = setup.client_data(0, "cpu")
    for index, expected in ((0, 5), (1, 5), (2, 20)):  # a quarter of 20 images are labelled
        client = Client(0, index, generator(0, "client"))
        assert len(setup.method.before_local(setup.make_net(), data, client)) == expected


def test_the_received_model_costs_no_traffic_and_leaves_no_trace(tmp_path: Path) -> None:
    setup = setup_of()
    net = setup.make_net()
    assert not [name for name in net.state_dict() if name.startswith("target")]
    sizes = sum(p.numel() for part in ("encoder", "classifier") for p in net[part].parameters())
    ledger = Ledger.of_client(setup.layout(net))
    assert (ledger.bytes_up, ledger.bytes_down) == (4 * sizes, 4 * sizes)
    runner = ClientRunner(setup, torch.device("cpu"), tmp_path)
    vector = runner.binding.server.data.clone()
    uploads = torch.empty(2, runner.layout.upload_size)
    runner.run(Task(0, 0, RoundPlan(1)), vector, uploads[0])
    runner.run(Task(1, 0, RoundPlan(1)), vector, torch.empty_like(uploads[0]))
    runner.run(Task(0, 0, RoundPlan(1)), vector, uploads[1])  # earlier clients change nothing
    assert torch.equal(uploads[0], uploads[1])
