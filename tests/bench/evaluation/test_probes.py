"""The MLP probe, shares of labels, and accuracies on clients' own test images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.partition import make_test_partition
from fedbench.bench.evaluation.probes import Splits, fit_logistic, mlp_predictions, probe_accuracies
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.nn.heads import mlp
from fedbench.bench.system import seeding
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.setup import Setup

CPU = torch.device("cpu")


def cloud(num: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Two classes that no line separates: the inside and the outside of a circle."""
    rng = seeding.numpy_generator(seed, "cloud")
    points = rng.normal(size=(num, 2))
    return torch.from_numpy(points).float(), (np.hypot(*points.T) > 1.2).astype(np.int64)


def test_it_bends_where_a_line_cannot() -> None:
    (train, y), (test, truth) = cloud(600, 0), cloud(400, 1)
    predicted = mlp_predictions(train, y, test, num_classes=2, seed=0)
    assert (predicted.numpy() == truth).mean() > 0.95
    linear = fit_logistic(train, y, num_classes=2).predict(test)
    assert (linear.numpy() == truth).mean() < 0.65


def test_the_training_by_hand() -> None:
    """The expected result comes from two epochs of plain SGD on standardised features."""
    (train, y), (test, _) = cloud(50, 0), cloud(40, 1)
    predicted = mlp_predictions(
        train, y, test, num_classes=2, seed=3, hidden_dim=8, epochs=2, batch_size=20, lr=0.5
    )
    x, z = (((a - train.mean(0)) / train.std(0, correction=0)) for a in (train, test))
    with seeding.scope(3, "mlp-probe-init"):
        net = mlp(2, 8, 2)
    order = seeding.generator(3, "mlp-probe-order")
    for _ in range(2):
        for rows in torch.randperm(50, generator=order).split(20):
            loss = F.cross_entropy(net(x[rows]), torch.from_numpy(y)[rows])
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for value, gradient in zip(net.parameters(), gradients, strict=True):
                    value.sub_(gradient, alpha=0.5)
    assert torch.equal(predicted, net(z).argmax(1))


def easy(setup: Setup) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    """Features that separate classes 0-7 and confuse 8 with 9."""
    code = torch.eye(10)
    code[9] = code[8]
    labels = setup.dataset.train_labels
    return code[torch.from_numpy(labels.copy())], labels, code[setup.dataset.test_labels.copy()]


def accuracies(
    setup: Setup, train: Any, test: Any, protocols: Sequence[str], k: int | None = None
) -> dict[str, float]:
    """Accuracies of an encoder with the given features, of client `k` or of all."""
    encoded: Any = SimpleNamespace(
        setup=setup,
        splits=Splits.of(setup, CPU),
        train=train,
        test=test,
        device=CPU,
        client_id=k,
    )
    return probe_accuracies(encoded, protocols)


def test_local_accuracy_follows_each_clients_classes() -> None:
    """Client k holds classes k and k + 1: only those with 8 or 9 among them see a mistake."""
    values = {"data__partition": "pathological", "data__num_clients": 10, "data__train_subset": 400}
    config = tiny_config("simclr", evaluation__mlp_epochs=2, data__test_subset=200, **values)
    setup = tiny_setup(config)
    train, labels, test = easy(setup)
    both = ("linear", "mlp", "local")
    alone = [accuracies(setup, train, test, both, k) for k in range(10)]
    local = [metrics["linear_local_acc"] for metrics in alone]
    assert local[:7] == [1.0] * 7
    predicted = fit_logistic(train, labels, num_classes=10, l2=1e-4).predict(test).numpy()
    hits = predicted == setup.dataset.test_labels
    shares = make_test_partition(
        setup.dataset.test_labels, setup.client_partition, setup.dataset.train_labels, 0
    )
    for k in range(10):
        client_hits = hits[[i for i in range(200) if i in set(shares.client(k).tolist())]]
        assert local[k] == pytest.approx(sum(client_hits) / len(client_hits))
    assert min(local[7:]) < 1
    shared = accuracies(setup, train, test, both)
    assert shared["linear_acc"] == alone[0]["linear_acc"] == pytest.approx(hits.mean())
    assert shared["linear_local_acc"] == pytest.approx(np.mean(local))
    assert shared["linear_local_acc_std"] == pytest.approx(np.std(local))
    assert set(shared) - set(alone[0]) == {"linear_local_acc_std", "mlp_local_acc_std"}


def test_shares_of_the_labels_are_class_balanced_and_drawn_by_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[np.ndarray] = []

    def watch(train: Any, labels: Any, test: Any, **rest: Any) -> torch.Tensor:
        seen.append(np.asarray(labels))
        return torch.zeros(len(test), dtype=torch.int64)

    monkeypatch.setattr("fedbench.bench.evaluation.probes.mlp_predictions", watch)
    config = tiny_config(
        "simclr", data__train_subset=400, evaluation__probe_fractions=[1.0, 0.25, 0.01]
    )
    setup = tiny_setup(config)
    train, labels, test = easy(setup)
    metrics = accuracies(setup, train, test, ("mlp",))
    assert [len(rows) for rows in seen] == [400, 100, 10]  # never fewer than there are classes
    everywhere = np.bincount(labels) / 4
    assert np.abs(np.bincount(seen[1], minlength=10) - everywhere).max() < 1
    names = {f"{probe}{share}_acc" for probe in ("linear", "mlp") for share in ("", "_25pct")}
    assert names < set(metrics)
    assert metrics["linear_1pct_acc"] == pytest.approx(0.9, abs=0.1)
    other = dataclasses.replace(setup, config=config.model_copy(update={"seed": 1}))
    assert accuracies(other, train, test, ("mlp",)).keys() == metrics.keys()
    assert len(seen) == 6


def test_the_pooled_reference_is_scored_on_every_client() -> None:
    config = tiny_config(
        "central-ae", evaluation__protocols=["mlp", "local", "angles"], evaluation__mlp_epochs=3
    )
    setup = tiny_setup(config)
    net = setup.make_net()
    binding = setup.layout(net).bind(net)
    protocols = config.evaluation.protocols
    metrics = evaluate(setup, binding, lambda k: None, protocols, CPU)
    assert {"mlp_local_acc_std", "linear_local_acc", "angle_median"} <= set(metrics)
    assert "mlp_acc_std" not in metrics  # one encoder


def test_a_client_without_test_images_counts_in_the_global_mean_only() -> None:
    """Some of five clients on five test images get none; the means are over the others."""
    config = tiny_config(
        "single-ae", evaluation__protocols=["local"], data__test_subset=10, data__num_clients=16,
        evaluation__num_clients=16,
    )  # fmt: skip
    setup = tiny_setup(config)
    net = setup.make_net()
    binding = setup.layout(net).bind(net)
    metrics = evaluate(setup, binding, lambda k: None, ("local",), CPU)
    assert metrics["linear_acc_std"] == 0.0  # one encoder in fact
    assert metrics["linear_local_acc_std"] > 0
