"""Local training in bfloat16: what it leaves alone, and what it is compared with."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.net import Net


def test_only_the_narrow_precision_is_part_of_the_identity() -> None:
    """Rows from before there was a choice keep their id."""
    config = RunConfig()
    narrow = config.model_copy(
        update={"client": config.client.model_copy(update={"precision": "bf16"})}
    )
    assert '"precision"' in config.model_dump_json()
    assert row_id(config, "r") != row_id(narrow, "r")


def test_views_share_a_pass_where_no_norm_mixes_them() -> None:
    calls: list[int] = []

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return super().forward(x)

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
