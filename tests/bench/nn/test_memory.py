"""What a client of Orchestra keeps of its images, and what it sends of that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.bench.method import Net
from fedbench.bench.nn.memory import Memory
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.seeding import generator
from fedbench.methods.orchestra import ClusterFields

from .test_clustering import unit


def kept(memory: Memory) -> list[float]:
    return sorted(memory.valid()[:, 0].tolist())


def numbers(begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Rows, and the images they are of: the same numbers."""
    images = torch.arange(begin, end)
    return images.float().unsqueeze(1), images


def memory_of(rows: Tensor, images: list[int] | None = None) -> Memory:
    memory = Memory(128, rows.shape[1])
    memory.push(rows, torch.tensor(images) if images else torch.arange(len(rows)))
    return memory


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 8, 11])
def test_memory_holds_the_newest_rows_and_no_unfilled_one(batch: int) -> None:
    memory, pushed = Memory(8, 1), 0
    for _ in range(7):
        memory.push(*numbers(pushed + 1, pushed + batch + 1))
        pushed += batch
        assert kept(memory) == [float(v) for v in range(max(1, pushed - 7), pushed + 1)]


def test_of_an_image_that_stands_twice_the_newest_row_is_known() -> None:
    """A ring of 5 after images 0 1 2 3, then 1 4 0: the places hold 4 0 2 3 1, the oldest is 2."""
    memory = Memory(5, 1)
    for images in ([0, 1, 2, 3], [1, 4, 0]):
        memory.push(torch.tensor(images).float().unsqueeze(1), torch.tensor(images))
    assert memory.images().tolist() == memory.valid()[:, 0].tolist() == [4, 0, 2, 3, 1]
    assert memory.newest().tolist() == [0, 1, 2, 3, 4]
    memory.push(torch.tensor([[30.0]]), torch.tensor([3]))
    assert memory.images().tolist() == [4, 0, 3, 3, 1]
    assert memory.valid()[memory.newest(), 0].tolist() == [4, 0, 30, 1]  # not the older row of 3
    memory.hold(torch.zeros(3, 1))
    assert memory.newest().tolist() == memory.images().tolist() == [0, 1, 2]


def test_memory_forgets_on_reset_and_respects_a_smaller_capacity() -> None:
    memory = Memory(8, 1)
    memory.push(*numbers(1, 9))
    memory.reset(3)
    assert len(memory.valid()) == 0
    memory.push(*numbers(10, 15))
    assert kept(memory) == [12.0, 13.0, 14.0]
    memory.reset(100)
    memory.push(*numbers(0, 20))
    assert kept(memory) == [float(v) for v in range(12, 20)]
    memory.reset(0)
    memory.push(*numbers(1, 4))
    assert len(memory.valid()) == 0


def test_memory_is_no_tensor_of_a_run() -> None:
    net = Net({"encoder": torch.nn.Linear(2, 2), "memory": Memory(8, 2)})
    assert sorted(net.state_dict()) == ["encoder.bias", "encoder.weight"]
    assert isinstance(Memory.of(net), Memory)
    with pytest.raises(PluginError, match="the part 'memory' is a Linear"):
        Memory.of(Net({"encoder": torch.nn.Linear(2, 2), "memory": torch.nn.Linear(2, 2)}))


@pytest.mark.parametrize(
    ("n", "sent"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (15, 7), (16, 8), (60, 8)]
)
def test_at_most_half_as_many_clusters_as_rows(n: int, sent: int) -> None:
    up = ClusterFields().to_send(memory_of(unit(n, 4)), generator(0, "rng"))
    assert len(up.get("centroids", [])) == sent
    assert sorted(up) == (["centroids", "min_cluster_size"] if sent else [])


def test_strict_sends_no_centroid_of_a_single_row() -> None:
    strict = ClusterFields(strict_k_anonymity=True)
    assert strict.to_send(memory_of(unit(1, 4)), generator(0, "rng")) == {}
    for n in (2, 5, 60):
        up = strict.to_send(memory_of(unit(n, 4)), generator(0, "rng"))
        assert float(up["min_cluster_size"]) == n // len(up["centroids"]) >= 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_cluster_counts_images_not_rows(strict: bool) -> None:
    """Eight equal rows of four images are one cluster of 8 rows, and then of 4 images.

    Strict: 10 rows of 5 images are 5 rows, two clusters of 2 and 3 images; by rows they were 5.
    """
    fields = ClusterFields(strict_k_anonymity=strict, num_local_clusters=2 if strict else 1)
    images = [0, 1, 2, 3, 4] * 2 if strict else [0, 1, 2, 3] * 2
    memory = memory_of(unit(len(images), 4), images)
    up = fields.to_send(memory, generator(0, "rng"))
    assert float(up["min_cluster_size"]) == (2 if strict else 4)
    if strict:  # made of the newest rows only
        again = fields.to_send(memory_of(unit(len(images), 4)[5:]), generator(0, "rng"))
        assert torch.equal(up["centroids"], again["centroids"])


def test_the_ideal_case_sends_the_rows() -> None:
    ideal = ClusterFields(representations="memory")
    up = ideal.to_send(memory_of(unit(5, 4)), generator(0, "rng"))
    assert torch.equal(up["memory"], unit(5, 4))
    assert float(up["min_cluster_size"]) == 1
    assert ideal.to_send(memory_of(unit(0, 4)), generator(0, "rng")) == {}
