"""Partitions as values: their checks, and their files whole, torn and altered."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import DataConfig
from fedbench.bench.data.partition import Partition, balanced_labels, make_partition
from fedbench.bench.system.errors import DataError, StoreError

CIFAR10, _ = balanced_labels("balanced:50000:10")
CIFAR100, _ = balanced_labels("balanced:50000:100")


def config(partition: str, **fields: Any) -> DataConfig:
    return DataConfig.model_validate({"partition": partition, **fields})


def test_a_partition_is_a_read_only_value() -> None:
    partition = make_partition(CIFAR10, 10, config("joint"), seed=0)
    for array in (partition.client(0), partition.offsets, partition.angles):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("name", ["iid", "pathological", "joint"])
def test_a_file_holds_the_partition(name: str, tmp_path: Path) -> None:
    labels = CIFAR100[:2000]
    saved = make_partition(labels, 100, config(name, num_clients=9), seed=1)
    path = tmp_path / "new" / "partition.safetensors"
    saved.save(path)
    saved.save(path)  # over itself
    loaded = Partition.load(path)
    assert loaded.hash == saved.hash
    assert loaded.rotation_bins == saved.rotation_bins
    assert not loaded.indices.flags.writeable
    if sys.platform == "linux":  # mapped, so that workers share it
        assert str(path) in Path("/proc/self/maps").read_text()
    assert loaded.class_counts(labels).tolist() == saved.class_counts(labels).tolist()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_torn_or_altered_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    make_partition(CIFAR10[:40], 10, config("joint", num_clients=3), seed=1).save(path)
    body = path.read_bytes()
    assert Partition.load(path).num_examples == 40
    for end in range(0, len(body), 7):
        path.write_bytes(body[:end])
        with pytest.raises(DataError, match=str(path)):
            Partition.load(path)
    path.write_bytes(body + b"x")
    with pytest.raises(DataError, match=str(path)):
        Partition.load(path)
    for place in range(0, len(body), 3):
        altered = bytearray(body)
        altered[place] ^= 0x15
        path.write_bytes(altered)
        with pytest.raises(DataError, match=str(path)):
            Partition.load(path)
    with pytest.raises(DataError, match="absent"):
        Partition.load(tmp_path / "absent")


def test_another_format_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.bench.data.partition._FORMAT", 2)
    make_partition(CIFAR10[:40], 10, config("iid", num_clients=3), seed=1).save(tmp_path / "p")
    monkeypatch.undo()
    with pytest.raises(DataError, match="format 1"):
        Partition.load(tmp_path / "p")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.safetensors"
    old = make_partition(CIFAR10, 10, config("iid"), seed=1)
    old.save(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        make_partition(CIFAR10, 10, config("iid"), seed=2).save(path)
    assert Partition.load(path).hash == old.hash
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
