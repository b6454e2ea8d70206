"""L-DAWA: cosines by hand, the unit that shares one, warm-up, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.bench.method import Sharing
from fedbench.bench.method.registry import create
from fedbench.bench.training.aggregate import Aggregate
from fedbench.bench.training.layout import Layout, Slot


def l_dawa(**fields: Any) -> Any:
    return create("simclr+l-dawa", {"l-dawa": {"warmup_rounds": 0, **fields}})


def averaged(held: Tensor, *uploads: Tensor, **fields: Any) -> Tensor:
    """Return the average of uploads of one tensor, with their factors."""
    slot = Slot("a.weight", Sharing.AVERAGED, True, held.shape, 0, held.numel())
    method = l_dawa(**fields)
    held_by_name = {"a.weight": held}
    aggregate = Aggregate(
        Layout((slot,), ()), "cpu", weigh=lambda sent: method.weigh(sent, held_by_name, 0)
    )
    for k, upload in enumerate(uploads):
        aggregate.fold(k, 1.0, upload)
    return (aggregate._sum / aggregate.total).float()


def test_two_clients_by_hand() -> None:
    held = torch.tensor([1.0, 0.0])
    # Cosines 1 / sqrt(2) and 0: half of (0.7071, 0.7071).
    mean = averaged(held, torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(mean, torch.tensor([0.3536, 0.3536]), atol=1e-4, rtol=0)
    # A client that points the other way is flipped, unless there is a floor.
    opposed = torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 0.0])
    expected = torch.tensor([0.8536, 0.3536])
    torch.testing.assert_close(averaged(held, *opposed), expected, atol=1e-4, rtol=0)
    expected = torch.tensor([0.3536, 0.3536])
    torch.testing.assert_close(averaged(held, *opposed, floor=0.0), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [("tensor", 0.0, 1.0), ("module", 0.0, 1.0), ("model", 0.9901, 0.9901)],
)
def test_the_unit_shares_a_cosine(unit: str, first: float, second: float) -> None:
    held = {"a.weight": torch.tensor([1.0, 0.0]), "b.weight": torch.tensor([10.0, 0.0])}
    sent = {"a.weight": torch.tensor([0.0, 1.0]), "b.weight": torch.tensor([10.0, 0.0])}
    factors = l_dawa(unit=unit).weigh(sent, held, 0)
    assert factors["a.weight"] == pytest.approx(first, abs=1e-4)
    assert factors["b.weight"] == pytest.approx(second, abs=1e-4)


def test_what_did_not_move_and_zeros_have_factor_one() -> None:
    value = torch.randn(7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(averaged(value, value, value), value)
    zero = torch.zeros(3)
    factors = l_dawa().weigh(
        {"a.bias": zero, "b.bias": zero + 1}, {"a.bias": zero, "b.bias": zero}, 0
    )
    assert factors == {"a.bias": 1.0, "b.bias": 1.0}


def test_statistics_are_averaged_plainly_unless_asked() -> None:
    held = {"norm.running_var": torch.tensor([1.0, 0.0])}
    sent = {"norm.running_var": torch.tensor([0.0, 1.0])}
    assert l_dawa().weigh(sent, held, 0) == {}
    assert l_dawa(buffers="scaled").weigh(sent, held, 0) == {"norm.running_var": 0.0}
