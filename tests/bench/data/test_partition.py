"""Partitions as values: read-only, and kept in files."""

from itertools import pairwise
from pathlib import Path

import pytest

from fedbench.bench.data.partition import make_partition
from fedbench.bench.system import tensor_files
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
    meta, arrays = tensor_files.read(path)
    assert meta["partitioner"] == name
    shares = [arrays["indices"][a:b].tolist() for a, b in pairwise(arrays["offsets"].tolist())]
    assert shares == [saved.client(k).tolist() for k in range(9)]
    if name == "joint":
        held = [arrays["bins"][a:b].tolist() for a, b in pairwise(arrays["bin_offsets"].tolist())]
        assert held == saved.rotation_bins
        assert arrays["angles"].tolist() == pytest.approx(saved.angles, nan_ok=True)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
