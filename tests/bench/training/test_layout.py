"""Sharing tables, offsets of tensors in the vectors, and the net that is a view of them."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from fedbench.bench.method import Labels, Loss, Needs, Net, RoundPlan, Sharing
from fedbench.bench.method.sharing import check_table, rule_of
from fedbench.bench.system.errors import PluginError
from fedbench.bench.training.layout import VectorLayout

TABLE: Mapping[str, Sharing] = {
    "rows.weight": Sharing.OWN_ROW,
    "frozen.*": Sharing.BROADCAST,
    "own.*": Sharing.PERSONAL,
    "far.*": Sharing.SERVER_ONLY,
    "*": Sharing.AVERAGED,
}


def make_net() -> Net:
    net = Net(
        {
            "own": nn.Linear(2, 1),  # 3 numbers
            "far": nn.Linear(2, 2, bias=False),  # 4
            "frozen": nn.Linear(1, 1),  # 2
            "rows": nn.Linear(2, 3, bias=False),  # 3 rows of 2
            "encoder": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),  # 6 + 4, buffers 4
        }
    )
    net.register_buffer("loose", torch.tensor([7.0]))
    return net


def test_the_first_matching_pattern_decides() -> None:
    table = {"a.b": Sharing.PERSONAL, "a.*": Sharing.BROADCAST, "*": Sharing.AVERAGED}
    assert rule_of("a.b", table) is Sharing.PERSONAL
    assert rule_of("a.c", table) is Sharing.BROADCAST
    assert rule_of("ab", table) is Sharing.AVERAGED


def test_words_of_rules_and_labels_are_taken_and_others_refused() -> None:
    assert rule_of("a", {"*": "personal"}) is Sharing.PERSONAL  # type: ignore[dict-item]
    assert Needs(views=(), labels="all").labels is Labels.ALL  # type: ignore[arg-type]
    with pytest.raises(PluginError):
        rule_of("a", {"*": "personl"})  # type: ignore[dict-item]
    for wrong in ({"labels": "al"}, {"views": "base"}, {"pixels": "uint"}, {"veiws": ()}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Needs(**{"views": (), **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cohort"):
        RoundPlan(1, cohort="al")  # type: ignore[arg-type]
    for given in ((torch.zeros(2),), (torch.zeros(()), torch.zeros(2, 2))):
        with pytest.raises(TypeError):
            Loss(*given)
    with pytest.raises(TypeError, match="mse"):
        Loss(torch.zeros(()), parts={"mse": 0.5})  # type: ignore[dict-item]


def test_dead_patterns_and_uncovered_tensors_are_refused() -> None:
    with pytest.raises(PluginError, match=r"'targt\.\*'"):
        check_table(["x.w"], {"targt.*": Sharing.PERSONAL, "*": Sharing.AVERAGED})
    with pytest.raises(PluginError, match=r"'y\.w'"):
        check_table(["x.w", "y.w"], {"x.*": Sharing.AVERAGED})


def test_slots_cover_both_vectors_without_gaps() -> None:
    layout = VectorLayout.of(make_net(), TABLE)
    for slots, size in (
        (layout.server, layout.server_size),
        (layout.personal, layout.personal_size),
    ):
        ends = [0, *(slot.stop for slot in slots)]
        assert [slot.start for slot in slots] == ends[:-1]
        assert ends[-1] == size
    # averaged: trained 6 + 4, then buffers 4 + 1; rows 6; broadcast 2; server-only 4
    assert layout.num_trained == 10
    assert layout.num_averaged == 15
    assert layout.server_size == 15 + 6 + 2 + 4
    assert layout.personal_size == 3
    assert layout.upload_size == 15 + 2
    names = [slot.name for slot in (*layout.server, *layout.personal)]
    assert sorted(names) == sorted(make_net().state_dict())


def test_an_upload_is_the_averaged_part_and_the_own_row() -> None:
    layout = VectorLayout.of(make_net(), TABLE)
    vector = torch.arange(float(layout.server_size))
    upload = torch.full((layout.upload_size,), torch.nan)
    layout.pack(vector, 1, upload)
    # rows begin at 15, two numbers each: client 1 owns 17 and 18
    assert upload.tolist() == [*map(float, range(15)), 17.0, 18.0]


def test_the_net_is_a_view_of_its_vectors() -> None:
    net = make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    binding = VectorLayout.of(net, TABLE).bind(net)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    binding.server.data.fill_(2.0)
    binding.personal.data.fill_(3.0)
    for name, value in net.state_dict().items():
        assert bool((value == (3.0 if name.startswith("own.") else 2.0)).all()), name
    assert bool((net.tensor("loose") == 2.0).all())
    net(torch.ones(4, 2), "encoder").sum().backward()
    assert bool(binding.server.grad[:10].any())
    binding.zero_grad()
    assert not bool(binding.server.grad.any())
    assert net.tensor("encoder.0.weight").grad is not None


def test_what_is_frozen_takes_no_gradient() -> None:
    net = make_net()
    VectorLayout.of(net, TABLE).bind(net)
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert frozen == {"frozen.weight", "frozen.bias", "far.weight"}


def test_an_optimizer_reaches_its_own_row_only() -> None:
    """Weight decay alone shrinks what a client trains, and nothing else."""
    net = make_net()
    layout = VectorLayout.of(net, TABLE)
    binding = layout.bind(net)
    binding.server.data.fill_(1.0)
    binding.personal.data.fill_(1.0)
    torch.optim.SGD(binding.trained(2), lr=0.5, weight_decay=1.0).step()
    expected = torch.ones(layout.server_size)
    expected[:10] = 0.5  # trained and averaged
    expected[15 + 4 : 15 + 6] = 0.5  # row 2
    assert torch.equal(binding.server.data, expected)
    assert bool((binding.personal.data == 0.5).all())
    binding.server.data.mul_(0)
    assert bool((net.tensor("rows.weight") == 0).all())


def test_tensors_that_cannot_travel_are_refused() -> None:
    net = make_net()
    net.register_buffer("counter", torch.tensor([1]))
    with pytest.raises(PluginError, match="'counter'"):
        VectorLayout.of(net, TABLE)
    flat = Net({"encoder": nn.Linear(1, 1)})
    with pytest.raises(PluginError, match=r"'encoder\.bias'"):
        VectorLayout.of(flat, {"*.bias": Sharing.OWN_ROW, "*": Sharing.AVERAGED})


@pytest.mark.parametrize("learning", [True, False])
def test_the_wire_meters_activations_and_gradients(learning: bool) -> None:
    """An example sends its code up and gets an answer; gradients go back: 16 L bytes in all."""
    dim, batch = 5, 3
    net = Net({name: nn.Linear(dim, dim) for name in ("encoder", "far", "further", "decoder")})
    net.remote = frozenset({"far", "further"})
    with torch.set_grad_enabled(learning):
        net(torch.ones(batch, dim), "encoder", "far", "further", "decoder")
    one_way = 4 * dim * batch
    assert net.wire.up == one_way * (2 if learning else 1)
    assert net.wire.down == one_way * (2 if learning else 1)
    net.wire.up = net.wire.down = 0
    net(torch.ones(batch, dim), "encoder", "decoder")
    assert net.wire.up == net.wire.down == 0


def test_a_layout_for_steps_moves_every_number_once() -> None:
    net = Net({"encoder": nn.Sequential(nn.BatchNorm1d(2), nn.Conv2d(2, 3, 2), nn.Linear(3, 2))})
    layout = VectorLayout.of(net, {"*": Sharing.AVERAGED})
    stepping, order = layout.for_steps()
    vector = torch.arange(float(layout.server_size))
    moved = vector[order]
    assert sorted(order.tolist()) == list(range(layout.server_size))
    assert [slot.is_vector for slot in stepping.trained] == [False, False, True, True, True, True]
    theirs = {slot.name: slot.of(vector) for slot in layout.server}
    for slot in stepping.server:
        assert torch.equal(slot.of(moved), theirs[slot.name])
    weight = next(slot for slot in stepping.trained if len(slot.shape) == 4).of(moved)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved[order.argsort()], vector)
