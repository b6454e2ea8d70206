"""Target networks: which tensors move, by how much, and which stay."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from fedbench.bench.method import Net, Sharing
from fedbench.bench.nn.target import add_targets, ema_update, keep_within_round, restored_buffers
from fedbench.bench.system.seeding import generator, scope
from fedbench.bench.training.layout import VectorLayout


def make() -> Net:
    with scope(0, "init"):
        encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        net = Net({"encoder": encoder, "projector": nn.Linear(4, 2)})
        add_targets(net, "encoder", "projector")
    return net


def moved(net: Net) -> Net:
    """Net whose online parts were all changed."""
    rng = generator(0, "moved")
    with torch.no_grad():
        for part in ("encoder", "projector"):
            for value in (*net[part].parameters(), *net[part].buffers()):
                value.add_(torch.randn(value.shape, generator=rng))
    return net


def test_targets_start_as_frozen_copies_with_storage_of_their_own() -> None:
    net = make()
    for part in ("encoder", "projector"):
        for a, b in zip(net[part].parameters(), net[f"target_{part}"].parameters(), strict=True):
            assert torch.equal(a, b)
            assert a.data_ptr() != b.data_ptr()
            assert a.requires_grad
            assert not b.requires_grad
    assert "target_encoder.1.num_batches_tracked" not in net.state_dict()


@pytest.mark.parametrize("decay", [0.0, 0.25, 0.996, 1.0])
def test_decay_is_the_share_of_the_old_target(decay: float) -> None:
    net = moved(make())
    before, buffers = deepcopy(net.state_dict()), dict(net.named_buffers())
    ema_update(net, decay)
    after = net.state_dict()
    for name in before:
        if not name.startswith("target_"):
            assert torch.equal(after[name], before[name])
        elif name in buffers:
            assert torch.equal(after[name], before[name]), "statistics do not follow"
        else:
            online = before[name.removeprefix("target_")]
            expected = decay * before[name].double() + (1 - decay) * online.double()
            within = 0.0 if decay in (0.0, 1.0) else 1e-6
            torch.testing.assert_close(after[name], expected.float(), rtol=within, atol=within)


def test_a_training_pass_leaves_no_trace_in_restored_buffers() -> None:
    net = make()
    before = deepcopy(net.state_dict())
    places = [buffer.data_ptr() for buffer in net.buffers()]
    x = torch.randn(8, 3, generator=generator(0, "x"))
    with restored_buffers(net):
        net(x, "encoder")
        name = "encoder.1.running_mean"
        assert not torch.equal(net.tensor(name), before[name])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [buffer.data_ptr() for buffer in net.buffers()] == places


def test_hidden_parts_are_neither_shared_nor_lost() -> None:
    encoder = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    net = Net({"encoder": encoder, "head": nn.Linear(2, 2)})
    names = set(net.state_dict())
    add_targets(net, "encoder")
    keep_within_round(net["target_encoder"])
    assert set(net.state_dict()) == names
    assert all(not module.state_dict() for module in net["target_encoder"].modules())
    layout = VectorLayout.of(net, {"*": Sharing.AVERAGED})
    assert {slot.name for slot in layout.server} == names
    layout.bind(net)
    x = torch.randn(4, 3, generator=generator(0, "x"))
    torch.testing.assert_close(net(x, "target_encoder"), net(x, "encoder"))
