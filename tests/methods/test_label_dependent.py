"""SimCLR, Spectral and SimSiam with some labels, against loops written apart from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, Net
from fedbench.bench.nn.losses import client_cross_entropy
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import loss_of, tiny_config, tiny_setup
from fedbench.bench.training.setup import Setup

CLIENT = Client(1, 0, generator(0, "client"))
# Three unlabelled, three of class 4, two of class 0, one of class 7.
LABELS = torch.tensor([4, -1, 0, 4, -1, 7, 0, -1, 4])
GROUPS = {-1: [1, 4, 7], 0: [2, 6], 4: [0, 3, 8], 7: [5]}
Loop = Callable[[Net, list[Tensor], list[int]], float]


def unit(z: Tensor) -> list[float]:
    length = math.sqrt(sum(float(v) ** 2 for v in z))
    return [float(v) / length for v in z]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def simclr_loop(net: Net, h: list[Tensor], group: list[int]) -> float:
    """SimCLR's loss of one group at temperature 0.5; views pick their partner among all others."""
    z1, z2 = (net["projector"](view) for view in h)
    views = [unit(z1[i]) for i in group] + [unit(z2[i]) for i in group]
    size, total = len(group), 0.0
    for i, view in enumerate(views):
        scores = [math.exp(dot(view, other) / 0.5) for other in views]
        partner = (i + size) % (2 * size)
        total -= math.log(scores[partner] / (sum(scores) - scores[i]))
    return total / (2 * size)


def spectral_loop(net: Net, h: list[Tensor], group: list[int]) -> float:
    z1, z2 = (net["projector"](view) for view in h)
    near = sum(dot(unit(z1[i]), unit(z2[i])) for i in group) / len(group)
    far = [dot(unit(z1[i]), unit(z2[j])) ** 2 for i in group for j in group if i != j]
    return -2 * near + sum(far) / len(far)


def simsiam_loop(net: Net, h: list[Tensor], group: list[int]) -> float:
    z = [net["projector"](view) for view in h]
    p = [net["predictor"](projection) for projection in z]
    pairs = [(p[0][i], z[1][i]) for i in group] + [(p[1][i], z[0][i]) for i in group]
    return -sum(dot(unit(a), unit(b)) for a, b in pairs) / len(pairs)


METHODS: list[tuple[str, dict[str, Any], Loop, set[int]]] = [
    # A group of one has no negatives and adds nothing; SimSiam needs none.
    ("simclr", {"method__temperature": 0.5}, simclr_loop, {-1, 0, 4}),
    ("spectral", {"method__num_outputs": None}, spectral_loop, {-1, 0, 4}),
    ("simsiam", {"method__heads": "m"}, simsiam_loop, {-1, 0, 4, 7}),
]


def made(spec: str, fields: dict[str, Any]) -> tuple[Setup, Net, Batch]:
    setup = tiny_setup(tiny_config(spec, data__label_fraction=0.5, **fields))
    views = tuple(torch.randn(9, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    return setup, setup.make_net(), Batch(views, LABELS)


@pytest.mark.parametrize(("spec", "fields", "loop", "groups"), METHODS)
def test_the_loss_is_summed_over_the_classes_and_the_unlabelled_part(
    spec: str, fields: dict[str, Any], loop: Loop, groups: set[int]
) -> None:
    setup, net, batch = made(spec, fields)
    out = setup.method.loss(net, batch, CLIENT)
    with torch.no_grad():
        h = [net["encoder"](view) for view in batch.views]
        contrast = sum(loop(net, h, GROUPS[label]) for label in groups)
        named = [(i, c) for c, rows in GROUPS.items() if c >= 0 for i in rows]  # 6 of 9
        guesses = [torch.log_softmax(net["classifier"](view), dim=1) for view in h]
        truth = -sum(float(view[i, c]) for view in guesses for i, c in named) / len(named)
    assert out.parts["labels"].item() == pytest.approx(truth, rel=1e-4)
    assert out.total.item() == pytest.approx(contrast + truth, rel=1e-4)


@pytest.mark.parametrize(("spec", "fields", "loop", "groups"), METHODS)
def test_a_batch_without_labels_is_one_group(
    spec: str, fields: dict[str, Any], loop: Loop, groups: set[int]
) -> None:
    setup, net, batch = made(spec, fields)
    out = setup.method.loss(net, Batch(batch.views, torch.full((9,), -1)), CLIENT)
    with torch.no_grad():
        h = [net["encoder"](view) for view in batch.views]
        assert out.total.item() == pytest.approx(loop(net, h, list(range(9))), rel=1e-4)
    out.total.backward()
    gradient = net.tensor("classifier.weight").grad
    assert gradient is not None
    assert not gradient.any()


@pytest.mark.parametrize("spec", ["simclr", "spectral"])
def test_groups_that_are_all_too_small_leave_the_classifier(spec: str) -> None:
    setup, net, batch = made(spec, {})
    rows = [0, 1, 2]  # classes 4, hidden, 0
    views = tuple(view[rows] for view in batch.views)
    out = setup.method.loss(net, Batch(views, LABELS[rows]), CLIENT)
    torch.testing.assert_close(out.total.detach(), out.parts["labels"])
    hidden = setup.method.loss(net, Batch(views, torch.tensor([4, 7, 0])), CLIENT)
    assert torch.isfinite(hidden.total)


@pytest.mark.parametrize("spec", ["simclr", "spectral", "simsiam"])
def test_the_classifier_is_there_when_there_are_labels(spec: str) -> None:
    """Labels add a classifier of 16 x 10 weights and 10 biases."""
    sizes = []
    for fraction in (0.0, 0.1):
        setup = tiny_setup(tiny_config(spec, data__label_fraction=fraction))
        net = setup.make_net()
        sizes.append(sum(p.numel() for p in net.parameters()))
        assert isinstance(net["classifier"], nn.Linear) if fraction else "classifier" not in net
    assert sizes[1] - sizes[0] == 16 * 10 + 10


@pytest.mark.parametrize(("uv_on", "rows"), [("all", list(range(9))), ("unlabelled", [1, 4, 7])])
def test_user_verification_sees_all_images_or_the_unlabelled_ones(
    uv_on: str, rows: list[int]
) -> None:
    setup, net, batch = made("simclr+uv", {"method.uv.uv_on": uv_on})
    out = loss_of(setup.method, net, batch, CLIENT)
    codes = [net["uv_projector"](net["encoder"](view))[rows] for view in batch.views]
    terms = [client_cross_entropy(c, net.tensor("uv.weight"), 1, 1.0) for c in codes]
    torch.testing.assert_close(out.parts["uv"], (terms[0] + terms[1]).detach())
    labelled = Batch(batch.views, LABELS.clamp(min=0))
    assert ("uv" in loss_of(setup.method, net, labelled, CLIENT).parts) == (uv_on == "all")
