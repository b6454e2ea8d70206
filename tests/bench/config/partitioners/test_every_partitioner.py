"""Invariants of all partitioners, impossible settings, test shares and the summary."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedbench.bench.config import DataConfig, RunConfig, row_id
from fedbench.bench.config.partitioners import PARTITIONERS
from fedbench.bench.config.partitioners.registry import Examples, Partitioner
from fedbench.bench.data.labels import held_out
from fedbench.bench.data.partition import (
    Partition,
    balanced_labels,
    make_partition,
    make_test_partition,
    summary,
)
from fedbench.bench.system.errors import ConfigError

ALL = [name for name, each in PARTITIONERS.items() if each.source != "clients"]
CIFAR10, _ = balanced_labels("balanced:50000:10")
CIFAR100, _ = balanced_labels("balanced:50000:100")


def config(partition: str, **fields: Any) -> DataConfig:
    return DataConfig.model_validate({"partition": partition, **fields})


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


def test_a_million_clients() -> None:
    partition = make_partition(CIFAR10, 10, config("iid", num_clients=1_000_000), seed=0)
    assert partition.num_clients == 1_000_000
    assert (partition.sizes == 1).sum() == 50_000
    assert partition.indices.dtype == np.int32


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
        ("iid", {"num_clients": 9, "min_client_size": 5}, None),
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
        (
            "pathological",
            {"num_clients": 3, "classes_per_client": 1, "min_client_size": 6},
            "'pathological' gives the smallest client 5 images",
        ),
    ],
)
def test_impossible_settings_say_why(
    name: str, fields: dict[str, int], message: str | None
) -> None:
    if message is None:
        assert make_partition(CIFAR10[:50], 10, config(name, **fields), seed=0).sizes.min() == 5
        return
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
