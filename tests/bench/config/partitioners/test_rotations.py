"""Angles and bins of the rotation shifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedbench.bench.config import DataConfig
from fedbench.bench.data.partition import balanced_labels, make_partition

CIFAR10, _ = balanced_labels("balanced:50000:10")


def config(partition: str, **fields: Any) -> DataConfig:
    return DataConfig.model_validate({"partition": partition, **fields})


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
