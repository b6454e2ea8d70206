"""Partitioners against published statistics and slow ones, and the invariants of all."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedbench.bench.config import DataConfig, RunConfig
from fedbench.bench.config.partitioners import PARTITIONERS, by_label
from fedbench.bench.config.partitioners.registry import Examples, Partitioner
from fedbench.bench.data.labels import held_out
from fedbench.bench.data.partition import (
    Partition,
    balanced_labels,
    make_partition,
    make_test_partition,
    summary,
)
from fedbench.bench.method.ids import row_id
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


# Louizos et al.: "one or two bins per client": 10 bins at 0.1 / 10 give 1.55 bins among
# 500 images, at 0.1 they give 4.96.
@pytest.mark.parametrize(("multiply_prior", "bins"), [(True, 1.55), (False, 4.96)])
def test_rotation_bins(multiply_prior: bool, bins: float) -> None:
    settings = config("rotation", num_clients=100, alpha=0.1, multiply_prior=multiply_prior)
    means = []
    for seed in range(5):
        partition = make_partition(CIFAR10, 10, settings, seed)
        assert partition.rotation_bins is not None
        means.append(np.mean([len(b) for b in partition.rotation_bins]))
    assert np.mean(means) == pytest.approx(bins, abs=0.1)


@pytest.mark.parametrize("name", ["rotation", "joint"])
def test_angles_lie_in_their_clients_bins_and_fill_them(name: str) -> None:
    settings = config(name, num_clients=20, alpha=0.3, rotation_alpha=0.3, rotation_bins=7)
    partition = make_partition(CIFAR10[:4000], 10, settings, seed=2)
    assert partition.angles is not None
    assert partition.rotation_bins is not None
    assert partition.angles.dtype == np.float32
    assert ((partition.angles >= 0) & (partition.angles < 360)).all()
    for k in range(20):
        bins = np.floor(partition.angles[partition.client(k)].astype(float) * 7 / 360)
        assert partition.rotation_bins[k] == sorted({int(b) for b in bins})
    # uniform inside a bin: mean 1/2, variance 1/12; 4000 draws have a standard error of 0.0046
    within = partition.angles.astype(float) * 7 / 360 % 1
    assert within.mean() == pytest.approx(0.5, abs=0.02)
    assert within.var() == pytest.approx(1 / 12, abs=0.005)


def test_rotations_leave_the_shares_alone() -> None:
    joint = make_partition(CIFAR10, 10, config("joint", num_clients=50), seed=2)
    plain = make_partition(CIFAR10, 10, config("hsu", num_clients=50), seed=2)
    np.testing.assert_array_equal(joint.indices, plain.indices)
    assert plain.angles is None
    assert joint.hash != plain.hash
    other = make_partition(CIFAR10, 10, config("joint", num_clients=50, rotation_alpha=9.0), seed=2)
    np.testing.assert_array_equal(joint.indices, other.indices)


ALL = [name for name, each in PARTITIONERS.items() if each.source != "clients"]


def skewed_labels(num_examples: int, num_classes: int) -> npt.NDArray[np.int64]:
    """Labels with class c about c + 1 times as frequent as class 0, and class 1 absent."""
    weights = np.arange(1.0, num_classes + 1)
    weights[1] = 0
    return np.random.default_rng(5).choice(num_classes, num_examples, p=weights / weights.sum())


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1e5])
@pytest.mark.parametrize("name", ALL)
def test_every_partition_is_disjoint_complete_and_repeatable(
    name: str, alpha: float, seed: int
) -> None:
    labels = skewed_labels(997, 6)
    settings = config(name, num_clients=9, alpha=alpha, rotation_alpha=alpha)
    partition = make_partition(labels, 6, settings, seed)
    shares = [partition.client(k) for k in range(9)]
    held = [int(i) for share in shares for i in share]
    assert len(set(held)) == len(held) == 997 - partition.num_unused
    assert partition.num_unused == 0  # two classes each cover five classes nine times over
    assert [len(share) for share in shares] == partition.sizes.tolist()
    assert all((np.diff(share) > 0).all() for share in shares)
    slow = [[int((labels[share] == c).sum()) for c in range(6)] for share in shares]
    assert partition.class_counts(labels).tolist() == slow
    assert partition.hash == make_partition(labels, 6, settings, seed).hash
    assert partition.hash != make_partition(labels, 6, settings, seed + 1).hash
    if name in ("dirichlet-balanced", "hsu", "iid", "rotation", "joint"):
        assert np.ptp(partition.sizes) <= 1


@pytest.mark.parametrize("name", ALL)
def test_what_is_held_out_is_nobodys_and_the_rest_has_clients(name: str) -> None:
    labels = skewed_labels(997, 6)
    settings = config(name, num_clients=9, held_out=0.2)
    partition = make_partition(labels, 6, settings, 3)
    chosen = held_out(labels, 0.2, 3)
    assert len(chosen) == 199  # 0.2 * 997 = 199.4
    assert partition.num_examples == 997
    assert not np.isin(chosen, partition.indices).any()
    assert partition.num_unused == 199
    if partition.angles is not None:
        assert np.isnan(partition.angles[chosen]).all()
        assert np.isfinite(np.delete(partition.angles, chosen)).all()
    legacy = make_partition(
        labels, 6, config("dirichlet-balanced", num_clients=9, held_out=0.2, legacy=True), 3
    )
    assert not np.isin(chosen, legacy.indices).any()


def test_test_shares_follow_the_clients_own_classes() -> None:
    train, test = skewed_labels(997, 6), skewed_labels(500, 6)
    partition = make_partition(train, 6, config("hsu", num_clients=9, multiply_prior=False), seed=0)
    shares = make_test_partition(test, partition, train, seed=0)
    assert shares.num_unused == 0
    held, given = partition.class_counts(train), shares.class_counts(test)
    for c in (0, 2, 3, 4, 5):
        for k in range(9):
            exact = (test == c).sum() * held[k, c] / held[:, c].sum()
            assert abs(given[k, c] - exact) < 1
    assert not given[held == 0].any()
    assert shares.hash == make_test_partition(test, partition, train, seed=0).hash

    rotated = make_partition(CIFAR100, 100, config("rotation", num_clients=10), seed=0)
    assert make_test_partition(CIFAR100[:1000], rotated, CIFAR100, seed=0).angles is None
    pathological = make_partition(CIFAR100, 100, config("pathological", num_clients=10), seed=0)
    # 10 test images of each of the 20 classes that clients hold
    assert len(make_test_partition(CIFAR100[:1000], pathological, CIFAR100, seed=0).indices) == 200


def test_summary_of_a_hand_made_partition() -> None:
    labels = np.array([0] * 199 + [1] + [2] * 50)
    owners = np.array([0] * 200 + [2] * 49 + [1])
    order = np.argsort(owners, kind="stable")
    partition = Partition("iid", 0.1, 4, 250, 3, order, np.array([0, 200, 201, 250, 250]))
    record = summary(partition, labels)
    assert record == json.loads(json.dumps(record))
    assert record["class_counts"] == [[199, 1, 0], [0, 0, 1], [0, 0, 49], [0, 0, 0]]
    assert record["sizes"] == [200, 1, 49, 0]
    # 2 + 1 + 1 + 0 classes over 4 clients; 1 of 200 images is 0.5 %, so 1 + 1 + 1 + 0 of them
    assert record["classes_per_client"] == {"ge_1_mean": 1.0, "ge_1pct_mean": 0.75}
    assert "rotation_bins" not in record
    joint = make_partition(labels, 3, config("joint", num_clients=4), seed=0)
    assert set(summary(joint, labels)) - set(record) == {"rotation_bins"}
    assert len(summary(joint, labels)["rotation_bins"]) == 4


@pytest.mark.parametrize(
    "text", ["balanced:10", "balanced:a:2", "balanced:4:2:", "balanced:10:3", "balanced:10:0"]
)
def test_balanced_labels_wants_its_form_and_equal_classes(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        balanced_labels(text)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("hsu", {"num_clients": 51}, "num_clients=51 is more than the 50 training images"),
        ("pathological", {"num_clients": 51}, "leaves no client empty"),
        ("iid", {"num_clients": 10, "min_client_size": 6}, "min_client_size=6"),
        (
            "pathological",
            {"num_clients": 20, "classes_per_client": 11},
            "classes_per_client=11; allowed: 1 to 10",
        ),
        (
            "pathological",
            {"num_clients": 50, "classes_per_client": 3},
            r"has 5 images for 1[0-9] clients.*lower data.num_clients=50",
        ),
        ("natural", {"natural_column": "writer"}, "natural needs images with clients"),
        (
            "dirichlet",
            {"num_clients": 40, "alpha": 0.01, "min_client_size": 1},
            r"min_client_size=1 was not reached in 1000 draws \(best smallest client: 0\)",
        ),
        (
            "pathological",
            {"num_clients": 3, "classes_per_client": 1, "min_client_size": 6},
            "'pathological' gives the smallest client 5 images",
        ),
    ],
)
def test_impossible_settings_say_why(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_partition(CIFAR10[:50], 10, config(name, **fields), seed=0)


def test_a_partitioner_reads_what_its_parameters_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another partitioner is one registration: its shares and the ids of its runs follow."""

    def blocks(examples: Examples, *, classes_per_client: int) -> npt.NDArray[np.int32]:
        return np.arange(len(examples.labels), dtype=np.int32) // classes_per_client % 2

    monkeypatch.setitem(PARTITIONERS, "blocks", Partitioner(blocks, source="nothing"))
    settings = config("iid", num_clients=2, classes_per_client=3, alpha=0.5)
    settings = settings.model_copy(update={"partition": "blocks"})
    partition = make_partition(CIFAR10[:12], 10, settings, seed=0)
    assert partition.client(0).tolist() == [0, 1, 2, 6, 7, 8]

    def identity(**fields: Any) -> str:
        return row_id(RunConfig(data=settings.model_copy(update=fields)), "revision")

    assert identity() == identity(alpha=0.1) != identity(classes_per_client=2)
    assert settings.alpha_read is None
