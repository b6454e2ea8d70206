"""Probes: neighbours, logistic regression, perceptron, angles, shares of labels, local accuracy."""

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from fedbench.bench.data.partition import make_test_partition
from fedbench.bench.evaluation import probes
from fedbench.bench.evaluation.probes import (
    DRAWS,
    SHOTS,
    Splits,
    angle_summary,
    balanced_accuracy,
    both_angles,
    class_angles,
    few_shot,
    fit_logistic,
    knn_accuracy,
    mlp_predictions,
    probe_accuracies,
)
from fedbench.bench.nn.heads import mlp
from fedbench.bench.system import seeding
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.setup import Setup
from tests.specs import measured

CPU = torch.device("cpu")


def cloud(num: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Two classes that no line separates: the inside and the outside of a circle."""
    rng = seeding.numpy_generator(seed, "cloud")
    points = rng.normal(size=(num, 2))
    return torch.from_numpy(points).float(), (np.hypot(*points.T) > 1.2).astype(np.int64)


def test_the_training_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected result comes from 20 epochs of plain SGD on standardised features."""
    (train, y), (test, _) = cloud(50, 0), cloud(40, 1)
    monkeypatch.setattr(probes, "MLP_BATCH", 20)
    settings = {"hidden_dim": 8, "epochs": 20, "lr": 0.5}
    named = {f"evaluation__mlp_{name}": value for name, value in settings.items()}
    predicted = mlp_predictions(train, y, test, 2, tiny_config("simclr", seed=3, **named))
    x, z = (((a - train.mean(0)) / train.std(0, correction=0)) for a in (train, test))
    with seeding.scope(3, "mlp-probe-init"):
        net = mlp(2, 8, 2)
    order = seeding.generator(3, "mlp-probe-order")
    for _ in range(20):
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
    splits = Splits(setup.dataset, setup.images, setup.probed, 1, CPU)
    encoded: Any = SimpleNamespace(
        setup=setup,
        splits=splits,
        train=train,
        test=test,
        device=CPU,
        client_id=k,
        on_step=lambda *_: None,
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

    def watch(train: Any, labels: Any, test: Any, *rest: Any) -> torch.Tensor:
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
    held_out = {"data__held_out": 1e-4, "evaluation__labels_from": "held-out"}
    one = tiny_setup(tiny_config("simclr", data__train_subset=400, **held_out))
    assert accuracies(one, train[one.probed], test, ())["linear_train_acc"] == 1.0


def test_a_client_without_test_images_counts_in_the_global_mean_only() -> None:
    """Some of five clients on five test images get none; the means are over the others."""
    config = tiny_config(
        "single-ae", evaluation__protocols=["local"], data__test_subset=10, data__num_clients=16,
        evaluation__num_clients=16,
    )  # fmt: skip
    metrics = measured(tiny_setup(config), ["local"])
    assert metrics["linear_acc_std"] == 0.0  # one encoder in fact
    assert metrics["linear_local_acc_std"] > 0


def blobs(
    size: int, seed: int, classes: int = 4, dim: int = 6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping clusters, so that accuracies are well inside (1/classes, 1)."""
    centres = torch.randn(classes, dim, generator=seeding.generator(0, "centres"))
    draws = seeding.generator(seed, "blobs")
    labels = torch.randint(classes, (size,), generator=draws)
    return centres[labels] + 1.2 * torch.randn(size, dim, generator=draws), labels


@pytest.mark.parametrize(("neighbours", "temperature"), [(1, 0.1), (20, 0.1), (25, 1.0)])
def test_knn_equals_scikit_learn(neighbours: int, temperature: float) -> None:
    bank, bank_labels = blobs(300, 3)
    queries, query_labels = blobs(150, 4)
    reference = KNeighborsClassifier(
        neighbours,
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: np.exp((1 - distance) / temperature),
    ).fit(bank.double().numpy(), bank_labels.numpy())
    accuracy = knn_accuracy(
        bank, bank_labels, queries, query_labels,
        num_classes=4, neighbours=neighbours, temperature=temperature, chunk=7,
    )  # fmt: skip
    assert accuracy == reference.score(queries.double().numpy(), query_labels.numpy())
    assert 0.3 < accuracy < 1.0


def test_neighbours_are_capped_and_small_temperatures_do_not_overflow() -> None:
    # exp(1 / 0.001) is infinite; the nearest example must win nevertheless.
    bank, labels = torch.eye(3), torch.tensor([0, 1, 2])
    for temperature in (0.1, 1e-3):
        assert knn_accuracy(
            bank, labels, 5 * bank, labels, num_classes=3, neighbours=200, temperature=temperature
        ) == pytest.approx(1.0)


def test_equal_votes_go_to_the_lowest_class() -> None:
    # Both bank examples are equally near; class 1 is listed first but class 0 wins.
    bank, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0])
    query = torch.tensor([[1.0, 1.0]])
    assert knn_accuracy(bank, labels, query, torch.tensor([0]), num_classes=2) == 1.0
    # Collapsed encoder: every vote is equal, so a balanced bank gives the share of class 0.
    ones = torch.ones(10, 4)
    classes = torch.arange(10) % 5
    assert knn_accuracy(ones, classes, ones, classes, num_classes=5) == pytest.approx(0.2)


Data = tuple[torch.Tensor, torch.Tensor]


def mixed(size: int, seed: int, noise: float = 2.5) -> Data:
    """Three overlapping classes in 12 correlated dimensions >= 0 of very different scale."""
    shared = seeding.generator(0, "mixed")
    centres = torch.randn(3, 8, generator=shared)
    mixing = torch.randn(8, 12, generator=shared)
    scales = torch.logspace(-3, 3, 12)
    draws = seeding.generator(seed, "mixed")
    labels = torch.randint(3, (size,), generator=draws)
    latent = centres[labels] + noise * torch.randn(size, 8, generator=draws)
    return torch.relu(latent @ mixing + 1.0) * scales, labels


def accuracy(x: Any, y: Any, test: torch.Tensor, z: torch.Tensor, **fit: Any) -> float:
    predicted = fit_logistic(x, y, **{"num_classes": 3, **fit}).predict(test)
    return (predicted == z).double().mean().item()


@pytest.mark.parametrize("l2", [1e-4, 1e-2])
def test_linear_equals_scikit_learn(l2: float) -> None:
    train, labels = mixed(600, 1)
    test, test_labels = mixed(400, 2)
    scaler = StandardScaler().fit(train.double().numpy())
    # Here: mean CE + l2 |W|^2 / 2; sklearn: C * sum CE + |W|^2 / 2. Equal for C = 1 / (l2 * N).
    reference = LogisticRegression(C=1 / (l2 * 600), tol=1e-9, max_iter=10_000)
    reference.fit(scaler.transform(train.double().numpy()), labels.numpy())

    fit = fit_logistic(train, labels, num_classes=3, l2=l2)
    np.testing.assert_allclose(fit.weight.T.numpy(), reference.coef_, atol=2e-3)
    # A common shift of all biases changes no probability.
    centre = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose((fit.bias - fit.bias.mean()).numpy(), centre, atol=2e-3)

    found = accuracy(train, labels, test, test_labels, l2=l2)
    expected = reference.score(scaler.transform(test.double().numpy()), test_labels.numpy())
    assert found == pytest.approx(expected, abs=1 / 400)
    assert 0.5 < found < 0.95


def test_constant_and_repeated_dimensions_are_harmless() -> None:
    train, labels = mixed(300, 4)
    test, test_labels = mixed(200, 5)
    plain = accuracy(train, labels, test, test_labels)

    def padded(features: torch.Tensor, constant: float) -> torch.Tensor:
        return torch.cat([features, torch.full((len(features), 2), constant)], dim=1)

    # Test values far from a constant of the training set must not explode.
    far = accuracy(padded(train, 0.3), labels, padded(test, 9e9), test_labels)
    assert far == pytest.approx(plain, abs=1 / 200)
    # Without a penalty repeated dimensions make the problem singular.
    doubled = fit_logistic(torch.cat([train, train], 1), labels, num_classes=3, l2=0.0)
    assert torch.isfinite(doubled.weight).all()


def test_collapsed_features_give_the_majority_class() -> None:
    labels = torch.tensor([1, 1, 1, 0, 2] * 20)
    features = torch.full((100, 8), 0.1)
    assert accuracy(features, labels, features, labels) == pytest.approx(0.6)
    other = torch.full((10, 8), 0.1)
    assert accuracy(features, labels, other, torch.arange(10) % 2) == 0.5


def shots(
    train: torch.Tensor, labels: Any, test: torch.Tensor, truth: Any, steps: list[Any] | None = None
) -> dict[str, float]:
    splits = SimpleNamespace(num_classes=3, train_labels=labels, test_labels=truth)
    setup = SimpleNamespace(config=SimpleNamespace(seed=7))
    encoded: Any = SimpleNamespace(train=train, test=test, splits=splits, setup=setup)
    encoded.on_step = lambda *step: [] if steps is None else steps.append(step)
    return few_shot(encoded, ())


def test_few_shots_equal_scikit_learn_on_the_same_draws() -> None:
    (train, labels), (test, truth) = blobs(120, 5, 3), blobs(150, 6, 3)
    found = shots(train, labels.numpy(), test, truth.numpy())
    for count in SHOTS:
        shares = []
        for draw in range(DRAWS):
            order = seeding.numpy_generator(7, "few-shot", draw).permutation(120)
            rows = np.concatenate([order[labels.numpy()[order] == c][:count] for c in range(3)])
            scaler = StandardScaler().fit(train.double().numpy()[rows])
            # Its C = 1 is the sum of losses + |W|^2 / 2.
            model = LogisticRegression(tol=1e-8, max_iter=1000)
            model.fit(scaler.transform(train.double().numpy()[rows]), labels.numpy()[rows])
            shares.append(model.score(scaler.transform(test.double().numpy()), truth.numpy()))
        assert found[f"few_shot_{count}_acc"] == pytest.approx(np.mean(shares), abs=2e-3)
        half = stats.t.ppf(0.975, DRAWS - 1) * stats.sem(shares)
        assert found[f"few_shot_{count}_half"] == pytest.approx(half, abs=2e-3)


def test_probes_that_saw_the_same_images_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of classes with two images 5 and 10 shots are all of them, in every draw."""
    fits = []

    def counted(features: torch.Tensor, *args: Any, **settings: Any) -> Any:
        fits.append(len(features))
        return fit_logistic(features, *args, **settings)

    train, labels = torch.eye(6) + torch.arange(6)[:, None], np.array([0, 0, 1, 1, 2, 2])
    expected = shots(train, labels, train, labels)
    monkeypatch.setattr(probes, "fit_logistic", counted)
    steps: list[Any] = []
    assert shots(train, labels, train, labels, steps) == expected
    assert fits.count(6) == 1
    assert 1 < fits.count(3) <= 8  # of the 2^3 sets of three images
    assert steps == [("few-shot", done, 10 * 3 + 6 + 6) for done in np.cumsum([0, *fits])]


def test_a_fit_does_not_depend_on_the_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 12,870 weights OpenBLAS shares each sum of L-BFGS between its threads."""
    rng = seeding.numpy_generator(0, "threads")
    labels = np.arange(396) % 198
    centres = rng.normal(size=(198, 64))
    features = torch.from_numpy(centres[labels] + rng.normal(size=(396, 64))).float()
    weights = []
    monkeypatch.setattr(probes, "MAX_ITERATIONS", 10)
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            weights.append(fit_logistic(features, labels, num_classes=198).weight)
    assert torch.equal(*weights)


def test_balanced_accuracy_is_scikit_learns() -> None:
    """Answers that are right more often in small classes; class 3 has no test image."""
    truth = np.repeat([0, 1, 2, 4], [60, 20, 15, 5])
    draws = seeding.numpy_generator(0, "answers").random(100)
    answers = np.where(draws < 0.3 + 0.1 * truth, truth, 0)
    splits: Any = SimpleNamespace(test_labels=truth, num_classes=5)
    found = balanced_accuracy("knn", torch.from_numpy(answers == truth), splits)
    assert found == {"balanced_knn_acc": pytest.approx(balanced_accuracy_score(truth, answers))}
    splits.test_labels = np.arange(100) % 5
    assert balanced_accuracy("knn", torch.from_numpy(answers == truth), splits) == {}


def test_a_class_with_fewer_images_gives_all_and_one_with_none_nothing() -> None:
    train = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]])
    found = shots(train, np.array([0, 0, 1]), train, np.array([0, 0, 2]))
    assert found["few_shot_10_acc"] == pytest.approx(2 / 3)
    assert found["few_shot_10_half"] == pytest.approx(0)


LABELS = np.arange(5).repeat(4)


def test_centred_means_of_a_simplex() -> None:
    """C points at equal distances seen from their centre: cos = -1 / (C - 1)."""
    features = torch.eye(5)[LABELS] + 100  # a large common mean shrinks the plain angles
    assert float(class_angles(features, LABELS, 5).max()) < 1
    expected = math.degrees(math.acos(-1 / 4))
    for labels in (LABELS, np.arange(5).repeat([1, 2, 3, 4, 10])):  # sizes of classes do not count
        features = torch.eye(5)[labels] + 100
        centred = class_angles(features.double(), labels, 5, centred=True)
        assert centred.tolist() == pytest.approx([expected] * 10)


def test_against_a_loop() -> None:
    features = torch.randn(20, 3, generator=generator(0, "x"))
    order = torch.randperm(20, generator=generator(0, "order"))
    means = [features[c == LABELS].double().mean(0) for c in range(5)]
    expected = []
    for i in range(5):
        for j in range(i + 1, 5):
            cosine = float(means[i] @ means[j] / means[i].norm() / means[j].norm())
            expected.append(math.degrees(math.acos(cosine)))
    angles = class_angles(features[order], LABELS[order.numpy()], 5)
    assert angles.tolist() == pytest.approx(expected)
    pairs = both_angles(features, LABELS, 5)
    summary = angle_summary([pairs])
    assert summary["angle_mean"] == pytest.approx(np.mean(expected))
    assert summary["angle_median"] == pytest.approx(np.median(expected))
    other = {"angle": torch.tensor([5.0, 7.0]), "angle_centred": pairs["angle_centred"]}
    together = angle_summary([pairs, other])  # not the mean of two medians
    assert together["angle_median"] == pytest.approx(np.median([*expected, 5.0, 7.0]))


def test_classes_without_images_or_direction_are_left_out() -> None:
    features = torch.eye(5)[LABELS]
    features[LABELS == 4] = 0
    assert len(class_angles(features, LABELS, 9)) == 6  # four of nine classes are left
    same = torch.ones(20, 3)
    assert class_angles(same, LABELS, 5).tolist() == pytest.approx([0.0] * 10, abs=1e-5)
    assert len(class_angles(same, LABELS, 5, centred=True)) == 0
    assert set(angle_summary([both_angles(same, LABELS, 5)])) == {"angle_mean", "angle_median"}
