"""Losses from labels and pseudo-labels, against loops and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.nn.losses import (
    accept,
    balanced_thresholds,
    classification,
    confident_cross_entropy,
    consistency,
    sum_over_classes,
)
from fedbench.bench.system.seeding import generator


def random(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.randn(*shape, generator=generator(0, name))


def test_each_class_and_the_unlabelled_part_is_a_term_of_its_own() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    labels = torch.tensor([3, -1, 0, 3, -1, 7])
    # Means: unlabelled (2 + 16) / 2 = 9, class 0: 4, class 3: (1 + 8) / 2 = 4.5, class 7: 32.
    total = sum_over_classes(lambda own: values[own].mean(), labels, min_size=1)
    assert total.item() == 9 + 4 + 4.5 + 32
    assert sum_over_classes(lambda own: values[own].mean(), labels, min_size=2).item() == 9 + 4.5
    assert sum_over_classes(lambda own: values[own].mean(), labels, min_size=3).item() == 0


def test_classification_is_a_mean_over_labelled_examples_and_a_sum_over_views() -> None:
    one, two = random(4, 5, name="a"), random(4, 5, name="b")
    labels = torch.tensor([2, -1, 0, -1])
    expected = 0.0
    for logits in (one, two):
        for i, c in ((0, 2), (2, 0)):
            weights = [math.exp(v) for v in logits[i].tolist()]
            expected -= math.log(weights[c] / sum(weights)) / 2
    assert classification((one, two), labels).item() == pytest.approx(expected, rel=1e-5)
    assert classification((torch.zeros(4, 5),), labels).item() == pytest.approx(math.log(5))
    none = one.requires_grad_()
    classification((none,), torch.full((4,), -1)).backward()
    assert none.grad is not None
    assert not none.grad.any()


def test_consistency_is_the_divergence_from_the_weak_view() -> None:
    weak, strong = random(3, 4, name="a").requires_grad_(), random(3, 4, name="b").requires_grad_()
    expected = 0.0
    for a, b in zip(weak.softmax(1).tolist(), strong.softmax(1).tolist(), strict=True):
        expected += sum(p * math.log(p / q) for p, q in zip(a, b, strict=True)) / 3
    found = consistency(weak, strong)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert consistency(weak, weak).item() == pytest.approx(0, abs=1e-6)
    found.backward()
    assert weak.grad is None
    assert strong.grad is not None


def test_only_confident_guesses_count_and_all_are_divided_by() -> None:
    guesses = torch.tensor([[0.96, 0.04], [0.94, 0.06], [0.05, 0.95], [0.5, 0.5]])
    logits = random(4, 2)
    # The first and the third reach 0.95; the sum is divided by all four.
    each = [
        F.cross_entropy(logits[i : i + 1], torch.tensor([c])).item() for i, c in ((0, 0), (2, 1))
    ]
    found = confident_cross_entropy(guesses, logits, 0.95)
    assert found.item() == pytest.approx(sum(each) / 4, rel=1e-5)
    assert confident_cross_entropy(guesses, logits, 0.97).item() == 0


def test_thresholds_by_hand() -> None:
    # Mean 0.1, squares of deviations 0.04, 0, 0.0025, 0.0225: deviation sqrt(0.065 / 4) = 0.12748.
    share = torch.tensor([0.3, 0.1, 0.05, -0.05])
    expected = [0.95, 0.81252, 0.76252, 0.66252]  # the first would be 1.01252
    found = balanced_thresholds(share, 0.84, 0.95)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)
    even = balanced_thresholds(torch.full((10,), 0.1), 0.84, 0.95)
    torch.testing.assert_close(even, torch.full((10,), 0.94))


def test_acceptance_by_hand() -> None:
    thresholds = torch.tensor([0.6, 0.9, 0.9, 0.9])
    rare = torch.tensor([False, False, False, True])
    probabilities = torch.tensor(
        [
            [0.61, 0.20, 0.10, 0.09],  # sure of class 0
            [0.20, 0.61, 0.10, 0.09],  # class 1 needs 0.9; its second guess, 0, is not rare
            [0.05, 0.61, 0.10, 0.24],  # second guess 3 is rare
            [0.60, 0.05, 0.05, 0.30],  # 0.6 is not above 0.6; second guess 3 is rare
            [0.01, 0.05, 0.04, 0.90],  # 0.9 is not above 0.9; second guess 1 is not rare
        ]
    )
    labels, accepted = accept(probabilities, thresholds, rare)
    assert accepted.tolist() == [True, False, True, True, False]
    assert labels[accepted].tolist() == [0, 3, 3]
