from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from fedbench.bench.evaluation.probes import knn_accuracy
from fedbench.bench.system import seeding


def blobs(
    size: int, seed: int, classes: int = 4, dim: int = 6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping clusters, so that accuracies are well inside (1/classes, 1)."""
    centres = torch.randn(classes, dim, generator=seeding.generator(0, "centres"))
    draws = seeding.generator(seed, "blobs")
    labels = torch.randint(classes, (size,), generator=draws)
    return centres[labels] + 1.2 * torch.randn(size, dim, generator=draws), labels


def slow_knn(
    bank: torch.Tensor,
    bank_labels: torch.Tensor,
    queries: torch.Tensor,
    query_labels: torch.Tensor,
    classes: int,
    neighbours: int,
    temperature: float,
) -> float:
    hits = 0
    for query, truth in zip(queries.tolist(), query_labels.tolist(), strict=True):
        scored = []
        for row, label in zip(bank.tolist(), bank_labels.tolist(), strict=True):
            dot = sum(a * b for a, b in zip(query, row, strict=True))
            scored.append((dot / math.hypot(*query) / math.hypot(*row), label))
        votes = [0.0] * classes
        for similarity, label in sorted(scored, reverse=True)[:neighbours]:
            votes[label] += math.exp(similarity / temperature)
        hits += votes.index(max(votes)) == truth
    return hits / len(queries)


@pytest.mark.parametrize(
    ("neighbours", "temperature"), [(1, 0.1), (7, 0.1), (25, 1.0), (200, 0.05)]
)
def test_equals_a_slow_loop(neighbours: int, temperature: float) -> None:
    bank, bank_labels = blobs(120, 1)
    queries, query_labels = blobs(60, 2)
    expected = slow_knn(bank, bank_labels, queries, query_labels, 4, neighbours, temperature)
    accuracy = knn_accuracy(
        bank, bank_labels, queries, query_labels,
        num_classes=4, neighbours=neighbours, temperature=temperature, chunk=7,
    )  # fmt: skip
    assert accuracy == expected
    assert 0.3 < accuracy < 1.0


def test_equals_scikit_learn() -> None:
    bank, bank_labels = blobs(300, 3)
    queries, query_labels = blobs(150, 4)
    reference = KNeighborsClassifier(
        20,
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: np.exp((1 - distance) / 0.1),
    ).fit(bank.double().numpy(), bank_labels.numpy())
    accuracy = knn_accuracy(
        bank, bank_labels, queries, query_labels, num_classes=4, neighbours=20, temperature=0.1
    )
    assert accuracy == reference.score(queries.double().numpy(), query_labels.numpy())


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
