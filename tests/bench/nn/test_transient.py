"""Parts that live for one round are in no state_dict, yet in the net."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.bench.method import Net, Sharing
from fedbench.bench.nn.target import add_targets, keep_within_round
from fedbench.bench.system.seeding import generator
from fedbench.bench.training.layout import Layout


def test_hidden_parts_are_neither_shared_nor_lost() -> None:
    encoder = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    net = Net({"encoder": encoder, "head": nn.Linear(2, 2)})
    names = set(net.state_dict())
    add_targets(net, "encoder")
    keep_within_round(net["target_encoder"])
    assert set(net.state_dict()) == names
    assert all(not module.state_dict() for module in net["target_encoder"].modules())
    layout = Layout.of(net, {"*": Sharing.AVERAGED})
    assert {slot.name for slot in layout.server} == names
    layout.bind(net)
    x = torch.randn(4, 3, generator=generator(0, "x"))
    torch.testing.assert_close(net(x, "target_encoder"), net(x, "encoder"))
