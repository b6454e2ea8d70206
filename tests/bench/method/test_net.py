"""Net: the number of times each part runs."""

import copy

import pytest
import torch
from torch import nn

from fedbench.bench.method import Net
from fedbench.bench.method import net as net_module
from fedbench.bench.nn.norms import BatchNorm1d
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.seeding import generator

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


def test_batch_norms_keep_views_apart_that_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = nn.Sequential(Counted(4, 4), BatchNorm1d(4)).double()
    views = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator(0, "test"))
    results = []
    for at_once in (False, True):
        net = Net({"encoder": copy.deepcopy(encoder)})
        monkeypatch.setattr(net_module, "_in_one_pass", lambda *_, answer=at_once: answer)
        calls.clear()
        outputs = net.views(views.unbind(), "encoder")
        assert calls == ([6] if at_once else [3, 3])
        torch.stack(outputs).pow(3).sum().backward()
        gradients = [parameter.grad for parameter in net.parameters()]
        results.append([*outputs, *net.buffers(), *gradients])
    torch.testing.assert_close(*results)
    alone = net(views[0], "encoder")
    assert calls == [6, 3]
    torch.testing.assert_close(alone, outputs[0])


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


def test_what_a_net_does_not_have_or_only_the_server_has_is_refused() -> None:
    net = Net({"encoder": Counted(4, 4)})
    for name in ("encoder.weights", "projector.weight", "encoder"):
        with pytest.raises(PluginError, match=f"'{name}'"):
            net.tensor(name)
    net.remote = frozenset({"encoder"})
    with pytest.raises(PluginError, match="'encoder'"):
        net.call("encoder", "forward", torch.ones(1, 4))
