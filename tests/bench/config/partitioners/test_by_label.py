"""Partitioning algorithms against published statistics and a slow independent one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedbench.bench.config import DataConfig
from fedbench.bench.config.partitioners import by_label
from fedbench.bench.data.partition import Partition, balanced_labels, make_partition
from fedbench.bench.system.errors import ConfigError

CIFAR10, _ = balanced_labels("balanced:50000:10")
CIFAR100, _ = balanced_labels("balanced:50000:100")


def config(partition: str, **fields: Any) -> DataConfig:
    return DataConfig.model_validate({"partition": partition, **fields})


def mean_classes(partition: Partition, labels: npt.NDArray[Any], at_least: int = 1) -> float:
    return float((partition.class_counts(labels) >= at_least).sum(axis=1).mean())


# Orchestra, Table 4, cross-device (100 clients), "classes per client with at least one sample".
# Its "at least 1 %" entry for CIFAR-100 at 0.1 is 17.92: 5 of 500 images are 1 %.
@pytest.mark.parametrize(
    ("labels", "alpha", "at_least", "published"),
    [
        (CIFAR10, 0.1, 1, 4.69),
        (CIFAR10, 1e-3, 1, 1.08),
        (CIFAR100, 0.1, 1, 29.3),
        (CIFAR100, 0.1, 5, 17.92),
        (CIFAR10, 1e5, 1, 10.0),
    ],
)
def test_legacy_reproduces_the_published_statistics(
    labels: npt.NDArray[Any], alpha: float, at_least: int, published: float
) -> None:
    settings = config("dirichlet-balanced", num_clients=100, alpha=alpha, legacy=True)
    partition = make_partition(labels, int(labels.max()) + 1, settings, seed=3)
    assert mean_classes(partition, labels, at_least) == pytest.approx(published, abs=1e-9)


def test_legacy_ignores_the_seed_and_loses_images_as_the_released_code_does() -> None:
    settings = config("dirichlet-balanced", num_clients=100, alpha=0.1, legacy=True)
    partition = make_partition(CIFAR100, 100, settings, seed=3)
    assert partition.num_unused == 50_000 - 47_955
    assert partition.hash == make_partition(CIFAR100, 100, settings, seed=4).hash
    # contiguous in the class: client k's images of a class precede those of client k + 1
    held = partition.indices  # of client 0, then of client 1, …, ascending in each
    assert (np.diff(held[CIFAR100[held] == 0]) > 0).all()
    rough = settings.model_copy(update={"alpha": 1e-3})
    sizes = make_partition(CIFAR10, 10, rough, seed=0).sizes
    assert (sizes.min(), sizes.max()) == (433, 732)


def test_legacy_says_when_the_released_arithmetic_breaks() -> None:
    settings = config("dirichlet-balanced", num_clients=100, alpha=1e-4, legacy=True)
    with pytest.raises(ConfigError, match=r"data.legacy=true underflows.*set data.legacy=false"):
        make_partition(CIFAR10, 10, settings, seed=0)


def test_balanced_shares_are_exact_and_near_the_published_heterogeneity() -> None:
    counted = {}
    for alpha in (1e-3, 0.1, 1e5):
        settings = config("dirichlet-balanced", num_clients=100, alpha=alpha)
        partitions = [make_partition(CIFAR10, 10, settings, seed) for seed in range(5)]
        assert all(p.num_unused == 0 and set(p.sizes) == {500} for p in partitions)
        counted[alpha] = np.mean([mean_classes(p, CIFAR10) for p in partitions])
    assert counted[0.1] == pytest.approx(4.69, abs=0.35)
    # 110 totals leave at least (100 + 10 - 1) / 100 = 1.09 cells per client in general position
    assert 1.08 <= counted[1e-3] < 1.25
    assert counted[1e5] == 10


# One-in-ten priors: 0.01 per class. Without the prior the published figures are 4.7 and 20.5.
@pytest.mark.parametrize(
    ("labels", "num_clients", "multiply_prior", "low", "high"),
    [
        (CIFAR10, 100, True, 1.5, 1.65),
        (CIFAR100, 500, True, 1.5, 1.65),
        (CIFAR10, 100, False, 4.4, 5.0),
        (CIFAR100, 500, False, 20.0, 21.0),
    ],
)
def test_hsu_statistics(
    labels: npt.NDArray[Any], num_clients: int, multiply_prior: bool, low: float, high: float
) -> None:
    settings = config("hsu", num_clients=num_clients, alpha=0.1, multiply_prior=multiply_prior)
    partitions = [
        make_partition(labels, int(labels.max()) + 1, settings, seed) for seed in range(6)
    ]
    assert all(set(p.sizes) == {50_000 // num_clients} for p in partitions)
    assert low <= np.mean([mean_classes(p, labels) for p in partitions]) <= high


def test_hsu_has_the_distribution_of_drawing_image_by_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_label, "_HSU_BLOCK", 2)
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    settings = config("hsu", num_clients=3, alpha=0.6, multiply_prior=False)
    rng = np.random.default_rng(11)
    repeats = 3000

    def slow() -> npt.NDArray[np.int64]:
        left, counts = [4, 2, 3], np.zeros((3, 3), np.int64)
        for k in range(3):
            q = rng.dirichlet([0.6] * 3)
            for _ in range(3):
                p = np.array([q[c] if left[c] else 0.0 for c in range(3)])
                c = rng.choice(3, p=p / p.sum())
                left[c] -= 1
                counts[k, c] += 1
        return counts

    fast = np.stack(
        [make_partition(labels, 3, settings, s).class_counts(labels) for s in range(repeats)]
    )
    reference = np.stack([slow() for _ in range(repeats)])
    # Means and second moments of nine cells; counts are at most 3, so the standard error of the
    # difference of means is below 1.5 * sqrt(2 / 3000) = 0.039, of squares below 4.5 * 0.026.
    np.testing.assert_allclose(fast.mean(0), reference.mean(0), atol=4 * 0.039)
    np.testing.assert_allclose((fast**2).mean(0), (reference**2).mean(0), atol=4 * 0.12)
    cross = (fast[:, 0, 0] * fast[:, 1, 0]).mean(), (reference[:, 0, 0] * reference[:, 1, 0]).mean()
    assert cross[0] == pytest.approx(cross[1], abs=0.12)


def test_plain_dirichlet_is_unbalanced_and_redraws_for_a_minimum() -> None:
    partition = make_partition(CIFAR10, 10, config("dirichlet", num_clients=10, alpha=0.1), seed=0)
    assert partition.sizes.max() > 2 * partition.sizes.min()
    assert partition.num_unused == 0
    settings = config("dirichlet", num_clients=10, alpha=0.1, min_client_size=1500)
    assert make_partition(CIFAR10, 10, settings, seed=0).sizes.min() >= 1500
    empty = make_partition(
        CIFAR10[:40], 10, config("dirichlet", num_clients=30, alpha=0.01), seed=0
    )
    assert (empty.sizes == 0).any()
    assert len(empty.client(int(empty.sizes.argmin()))) == 0


def test_pathological_layouts() -> None:
    ten = make_partition(CIFAR10, 10, config("pathological", num_clients=10), seed=0)
    held = [set(np.flatnonzero(row).tolist()) for row in ten.class_counts(CIFAR10)]
    assert held == [{i, (i + 1) % 10} for i in range(10)]
    assert set(ten.class_counts(CIFAR10).ravel()) == {0, 2500}
    # 10 clients with 2 of 100 classes: 20 classes of 500 images; 40,000 images are unused
    wide = make_partition(CIFAR100, 100, config("pathological", num_clients=10), seed=0)
    counts = wide.class_counts(CIFAR100)
    assert wide.num_unused == 40_000
    assert ((counts > 0).sum(axis=0) <= 1).all()
    assert set(wide.sizes) == {1000}
    for num_clients, width in ((6, 2), (100, 3), (47, 10)):
        settings = config("pathological", num_clients=num_clients, classes_per_client=width)
        partition = make_partition(CIFAR10, 10, settings, seed=1)
        assert partition.num_unused == 0
        assert ((partition.class_counts(CIFAR10) > 0).sum(axis=1) == width).all()
