"""Partitions as values: their checks, and their files whole, torn and altered."""

import sys
from pathlib import Path

import pytest

from fedbench.bench.data.partition import Partition, make_partition
from fedbench.bench.system.errors import DataError
from tests.bench.config.partitioners.test_partitioners import CIFAR10, CIFAR100, config


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
    altered = body[:-1] + bytes([body[-1] ^ 1])
    for data in (b"", body[:-7], body + b"x", altered):
        path.write_bytes(data)
        with pytest.raises(DataError, match=str(path)):
            Partition.load(path)
    with pytest.raises(DataError, match="absent"):
        Partition.load(tmp_path / "absent")
