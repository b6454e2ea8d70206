"""Few-shot probes against scikit-learn's regression on the same draws."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

from fedbench.bench.evaluation.probes import DRAWS, SHOTS, Encoded, few_shot
from fedbench.bench.system.seeding import numpy_generator


def encoded(train: Any, labels: Any, test: Any, test_labels: Any) -> Encoded:
    splits = SimpleNamespace(num_classes=3, test_labels=test_labels, train_labels=labels)
    setup = SimpleNamespace(config=SimpleNamespace(seed=7))
    features = (torch.tensor(x, dtype=torch.float32) for x in (train, test))
    names = ("train", "test", "splits", "setup")
    return cast(
        Encoded, SimpleNamespace(**dict(zip(names, (*features, splits, setup), strict=True)))
    )


@pytest.fixture
def data() -> Encoded:
    rng = np.random.default_rng(0)
    labels, test_labels = np.repeat(np.arange(3), 40), np.repeat(np.arange(3), 50)
    centres = rng.normal(size=(3, 5))
    train, test = (centres[y] + 1.5 * rng.normal(size=(len(y), 5)) for y in (labels, test_labels))
    return encoded(train, labels, test, test_labels)


def test_accuracies_are_those_of_scikit_learn(data: Encoded) -> None:
    found, labels = few_shot(data, ()), data.splits.train_labels
    for shots in SHOTS:
        shares = []
        for draw in range(DRAWS):
            order = numpy_generator(7, "few-shot", draw).permutation(len(labels))
            rows = np.concatenate([order[labels[order] == c][:shots] for c in range(3)])
            x = data.train.numpy()[rows].astype(float)
            mean, std = x.mean(axis=0), x.std(axis=0)
            # Its C = 1 is the sum of losses + |W|^2 / 2.
            model = LogisticRegression(tol=1e-8, max_iter=1000).fit((x - mean) / std, labels[rows])
            test = (data.test.numpy() - mean) / std
            shares.append(model.score(test, data.splits.test_labels))
        assert found[f"few_shot_{shots}_acc"] == pytest.approx(np.mean(shares), abs=2e-3)
        half = stats.t.ppf(0.975, DRAWS - 1) * stats.sem(shares)
        assert found[f"few_shot_{shots}_half"] == pytest.approx(half, abs=2e-3)


def test_a_class_with_fewer_images_gives_all_and_one_with_none_nothing() -> None:
    train = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]])
    labels = np.array([0, 0, 1])
    found = few_shot(encoded(train, labels, train, np.array([0, 0, 2])), ())
    assert found["few_shot_10_acc"] == pytest.approx(2 / 3)
    assert found["few_shot_10_half"] == pytest.approx(0)
