"""Memory of projections: a ring of a client's newest rows."""

import pytest
import torch
from torch import Tensor

from fedbench.bench.method import Net
from fedbench.bench.nn.memory import Memory


def values(memory: Memory) -> list[float]:
    return sorted(memory.valid()[:, 0].tolist())


def numbers(begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Rows and the indices of their images, with equal numbers."""
    images = torch.arange(begin, end)
    return images.float().unsqueeze(1), images


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 8, 11])
def test_memory_holds_the_newest_rows_and_no_unfilled_one(batch: int) -> None:
    memory, pushed = Memory(8, 1), 0
    for _ in range(7):
        memory.push(*numbers(pushed + 1, pushed + batch + 1))
        pushed += batch
        assert values(memory) == [float(v) for v in range(max(1, pushed - 7), pushed + 1)]


def test_the_newest_row_of_an_image_is_known() -> None:
    """A ring of 5 after images 0 1 2 3, then 1 4 0 holds 4 0 2 3 1; the oldest is 2."""
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
    assert values(memory) == [12.0, 13.0, 14.0]
    memory.reset(100)
    memory.push(*numbers(0, 20))
    assert values(memory) == [float(v) for v in range(12, 20)]
    memory.reset(0)
    memory.push(*numbers(1, 4))
    assert len(memory.valid()) == 0


def test_memory_is_no_tensor_of_a_run() -> None:
    net = Net({"encoder": torch.nn.Linear(2, 2), "memory": Memory(8, 2)})
    assert sorted(net.state_dict()) == ["encoder.bias", "encoder.weight"]
