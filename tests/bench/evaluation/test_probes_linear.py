from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from fedbench.bench.evaluation.probes import fit_logistic
from fedbench.bench.system import seeding

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
def test_equals_scikit_learn(l2: float) -> None:
    train, labels = mixed(600, 1)
    test, test_labels = mixed(400, 2)
    scaler = StandardScaler().fit(train.double().numpy())
    # Here: mean CE + l2 |W|^2 / 2; sklearn: C * sum CE + |W|^2 / 2. Equal for C = 1 / (l2 * N).
    reference = LogisticRegression(C=1 / (l2 * 600), tol=1e-9, max_iter=10_000)
    reference.fit(scaler.transform(train.double().numpy()), labels.numpy())

    fit = fit_logistic(train, labels, num_classes=3, l2=l2)
    assert fit.converged
    np.testing.assert_allclose(fit.weight.T.numpy(), reference.coef_, atol=2e-3)
    # A common shift of all biases changes no probability.
    centre = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose((fit.bias - fit.bias.mean()).numpy(), centre, atol=2e-3)

    found = accuracy(train, labels, test, test_labels, l2=l2)
    expected = reference.score(scaler.transform(test.double().numpy()), test_labels.numpy())
    assert found == pytest.approx(expected, abs=1 / 400)
    assert 0.5 < found < 0.95


def test_the_gradient_vanishes_at_the_fit() -> None:
    # Written out independently: mean over examples of x (p - onehot)^T + l2 W, and of (p - onehot).
    features, labels = mixed(500, 3)
    fit = fit_logistic(features, labels, num_classes=3, l2=1e-3)
    inputs = (features.double() - features.double().mean(0)) / features.double().std(
        0, correction=0
    )
    error = (inputs @ fit.weight + fit.bias).softmax(1) - torch.eye(3, dtype=torch.float64)[labels]
    assert (inputs.T @ error / 500 + 1e-3 * fit.weight).abs().max() < 1e-4
    assert error.mean(0).abs().max() < 1e-4


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
    assert fit_logistic(features, labels, num_classes=3).converged


def test_same_bits_twice_and_the_iteration_limit_is_reported() -> None:
    features, labels = mixed(300, 6)
    first, second = (fit_logistic(features, labels, num_classes=3) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    stopped = fit_logistic(features, labels, num_classes=3, max_iterations=2)
    assert (stopped.iterations, stopped.converged) == (2, False)
    assert not torch.equal(stopped.predict(features), first.predict(features))
