"""Methods on labels: supervised, SemiFed, CBAFed, and contrasts with some labels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Loss, Net, Server, Upload
from fedbench.bench.nn.losses import (
    client_cross_entropy,
    negative_cosine,
    nt_xent,
    spectral_contrast,
)
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import loss_of
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup
from tests.specs import batch_of, client, setup_of

CLIENT = client()


@pytest.mark.parametrize(
    ("spec", "fields"),
    [("supervised", {"method__num_views": 2}), ("cbafed", {"data__label_fraction": 0.25})],
)
def test_the_loss_is_the_mean_over_views(spec: str, fields: dict[str, Any]) -> None:
    setup = setup_of(spec, **fields)
    net = setup.make_net()
    views, labels = batch_of().views, torch.tensor([0, 9, 3, 3, 1])
    out = setup.method.loss(net, Batch(views, labels), CLIENT)
    logits = [net["classifier"](net["encoder"](view)) for view in views]
    expected = (F.cross_entropy(logits[0], labels) + F.cross_entropy(logits[1], labels)) / 2
    torch.testing.assert_close(out.total, expected)
    assert len(setup.needs.views) == 2


LABELS = torch.tensor([3, -1, -1, 8, -1])


def semifed(**values: Any) -> Setup:
    return setup_of("semifed", **{"data__label_fraction": 0.25, **values})


def computed(setup: Setup, labels: torch.Tensor = LABELS) -> tuple[Loss, dict[str, torch.Tensor]]:
    """Return the loss after a step away from the received model, and its logits by name."""
    net = setup.make_net()
    setup.method.before_local(net, setup.client_data(0, "cpu"), CLIENT)
    views = batch_of(views="abc").views
    received = net["classifier"](net["encoder"].eval()(views[2])).detach()
    net["encoder"].train()
    with torch.no_grad():
        net.tensor("classifier.weight").mul_(-2.0)
    weak, strong = (net["classifier"](net["encoder"](view)) for view in views[:2])
    out = setup.method.loss(net, Batch(views, labels), CLIENT)
    return out, {"weak": weak, "strong": strong, "received": received}


@pytest.mark.parametrize("threshold", [0.0, 0.11, 1.0])
def test_semifeds_loss_by_hand(threshold: float) -> None:
    values = {"method.consistency_weight": 0.5, "method.pseudo_weight": 2.0}
    out, logits = computed(semifed(**values, **{"method.threshold": threshold}))
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
    out, logits = computed(semifed(), labels)
    torch.testing.assert_close(out.total, F.cross_entropy(logits["weak"], labels))


@pytest.mark.parametrize("spec", ["semifed", "cbafed"])
def test_the_first_rounds_are_of_the_labelled_images(spec: str) -> None:
    setup = setup_of(spec, data__label_fraction=0.25, method__warmup_rounds=2)
    data = setup.client_data(0, "cpu")
    for index in (0, 1):
        chosen = setup.method.before_local(setup.make_net(), data, client(0, index))
        assert torch.equal(chosen.labels, data.labels[data.labels >= 0])
        assert len(chosen) == 5  # a quarter of 20
    later = setup.method.before_local(setup.make_net(), data, client(0, 2))
    assert spec == "cbafed" or len(later) == 20


SERVER = Server(0, generator(0, "server"), {})


def cbafed(**values: Any) -> Setup:
    return setup_of("cbafed", **{"data__label_fraction": 0.25, **values})


def certain_of(net: Net, label: int, probability: float) -> None:
    """Make the classifier give `label` this probability on every image, the next one the rest."""
    with torch.no_grad():
        net.tensor("classifier.weight").zero_()
        bias = net.tensor("classifier.bias")
        bias.fill_(-50.0)
        bias[label], bias[label + 1] = (torch.tensor([probability, 1 - probability])).log()


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
    setup = cbafed()
    net, data = setup.make_net(), setup.client_data(0, "cpu")
    certain_of(net, 2, probability)
    net.tensor("class_share").copy_(torch.tensor(shares))
    selected = setup.method.before_local(net, data, client(0, 1))
    assert net.training
    assert len(selected) == (20 if accepted else 5)
    known = data.labels >= 0
    if accepted:  # order is kept, true labels stay
        assert torch.equal(selected.labels[known], data.labels[known])
        assert (selected.labels[~known] == guess).all()
    counts = setup.method.after_local(net, selected, client(0, 1))["class_counts"]
    assert counts.sum() == len(selected)
    assert torch.equal(counts.long(), torch.bincount(selected.labels, minlength=10))


def test_the_server_adds_up_the_newest_counts_of_every_client() -> None:
    setup = cbafed()
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


def test_shares_come_down_and_counts_go_up() -> None:
    setup = cbafed()
    net = setup.make_net()
    weights = sum(p.numel() for p in net.parameters())
    ledger = Ledger.of_client(setup.layout(net))
    ledger.add_extras(setup.method.after_local(net, setup.client_data(0, "cpu").keep(
        torch.tensor([], dtype=torch.long)), client()))  # fmt: skip
    assert ledger.bytes_down == 4 * weights + 4 * 10
    assert ledger.bytes_up == 4 * weights + 4 * 10


CLIENT_1 = client(1)
# Three unlabelled, three of class 4, two of class 0, one of class 7.
MIXED = torch.tensor([4, -1, 0, 4, -1, 7, 0, -1, 4])
GROUPS = {-1: [1, 4, 7], 0: [2, 6], 4: [0, 3, 8], 7: [5]}
Contrast = Callable[[Net, list[Tensor]], Tensor]


def nt_xent_of(net: Net, h: list[Tensor]) -> Tensor:
    return nt_xent(net["projector"](h[0]), net["projector"](h[1]), 0.5)


def spectral_of(net: Net, h: list[Tensor]) -> Tensor:
    return spectral_contrast(*(F.normalize(net["projector"](view), dim=1) for view in h))


def simsiam_of(net: Net, h: list[Tensor]) -> Tensor:
    z = [net["projector"](view) for view in h]
    p = [net["predictor"](projection) for projection in z]
    return (negative_cosine(p[0], z[1]) + negative_cosine(p[1], z[0])) / 2


METHODS: list[tuple[str, dict[str, Any], Contrast, set[int]]] = [
    # A group of one has no negatives and adds nothing; SimSiam needs none.
    ("simclr", {"method__temperature": 0.5}, nt_xent_of, {-1, 0, 4}),
    ("spectral", {"method__num_outputs": None}, spectral_of, {-1, 0, 4}),
    ("simsiam", {"method__heads": "m"}, simsiam_of, {-1, 0, 4, 7}),
]


def made(spec: str, fields: dict[str, Any]) -> tuple[Setup, Net, Batch]:
    setup = setup_of(spec, data__label_fraction=0.5, **fields)
    return setup, setup.make_net(), Batch(batch_of(9).views, MIXED)


@pytest.mark.parametrize(("spec", "fields", "contrast", "groups"), METHODS)
def test_the_loss_is_summed_over_the_classes_and_the_unlabelled_part(
    spec: str, fields: dict[str, Any], contrast: Contrast, groups: set[int]
) -> None:
    setup, net, batch = made(spec, fields)
    out = setup.method.loss(net, batch, CLIENT_1)
    with torch.no_grad():
        h = [net["encoder"](view) for view in batch.views]
        of_groups = sum(
            float(contrast(net, [view[GROUPS[label]] for view in h])) for label in groups
        )
        named = [(i, c) for c, rows in GROUPS.items() if c >= 0 for i in rows]  # 6 of 9
        guesses = [torch.log_softmax(net["classifier"](view), dim=1) for view in h]
        truth = -sum(float(view[i, c]) for view in guesses for i, c in named) / len(named)
    assert out.parts["labels"].item() == pytest.approx(truth, rel=1e-4)
    assert out.total.item() == pytest.approx(of_groups + truth, rel=1e-4)


@pytest.mark.parametrize(("uv_on", "rows"), [("all", list(range(9))), ("unlabelled", [1, 4, 7])])
def test_user_verification_sees_all_images_or_the_unlabelled_ones(
    uv_on: str, rows: list[int]
) -> None:
    setup, net, batch = made("simclr+uv", {"method.uv.uv_on": uv_on})
    out = loss_of(setup.method, net, batch, CLIENT_1)
    codes = [net["uv_projector"](net["encoder"](view))[rows] for view in batch.views]
    terms = [client_cross_entropy(c, net.tensor("uv.weight"), 1, 1.0) for c in codes]
    torch.testing.assert_close(out.parts["uv"], (terms[0] + terms[1]).detach())
    labelled = Batch(batch.views, MIXED.clamp(min=0))
    assert ("uv" in loss_of(setup.method, net, labelled, CLIENT_1).parts) == (uv_on == "all")
