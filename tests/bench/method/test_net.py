"""Net: the number of times each part runs."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.bench.method import Net

calls: list[int] = []


class Counted(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return super().forward(x)


def test_views_share_a_pass_where_no_norm_mixes_them() -> None:
    calls.clear()
    net = Net({"encoder": Counted(4, 4), "mixing": nn.Sequential(Counted(4, 4), nn.BatchNorm1d(4))})
    views = torch.ones(3, 4), torch.zeros(2, 4)
    for part, expected in (("encoder", [5]), ("mixing", [3, 2])):
        calls.clear()
        first, second = net.views(views, part)
        assert calls == expected
        assert (len(first), len(second)) == (3, 2)
        assert first.dtype is second.dtype is torch.float32
    net.remote = frozenset({"encoder"})
    net.views(views, "encoder")
    assert calls[-2:] == [3, 2]  # what crosses a wire crosses it view by view


def test_a_part_is_reused_on_the_same_tensor_only() -> None:
    net, x = Net({"encoder": Counted(4, 4), "projector": nn.Linear(4, 2)}), torch.ones(3, 4)
    calls.clear()
    with torch.no_grad(), net.reusing("encoder"):
        first = net(x, "encoder")
        assert torch.equal(net(x, "encoder", "projector"), net["projector"](first))
        assert calls == [3]
        net(x[:2], "encoder")
        assert calls == [3, 2]
    net(x, "encoder")
    assert calls == [3, 2, 3]
