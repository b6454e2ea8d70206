"""Divergence-aware updates: distances, shares, and rounds by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    DataSpec,
    Loss,
    Needs,
    Net,
    Server,
)
from fedbench.bench.nn import Backbone
from fedbench.bench.system.seeding import generator, scope
from fedbench.methods.divergence import (
    ONLINE,
    DivergenceAware,
    mean_distance,
    mix,
)

NO_DATA = ClientData(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0))


class Toy(DivergenceAware):
    """Method with a net of two convolutions; `record` forces a record under every rule."""

    record: bool = False

    @property
    def keeps_record(self) -> bool:
        return self.record or super().keeps_record

    def needs(self) -> Needs:
        return Needs(views=("plain",))

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        raise NotImplementedError

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        raise NotImplementedError


def make(method: Toy) -> Net:
    with scope(0, "init"):
        encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 2))
        predictor = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        net = Net({"encoder": encoder, "projector": nn.Linear(2, 3), "predictor": predictor})
    method.add_memory(net)
    return net


def at(round_index: int) -> Client:
    return Client(0, round_index, generator(0, "client", round_index))


def restore(method: Toy, net: Net) -> None:
    method.server_step(net, [], Server(0, generator(0, "server"), {}))


def shift(module: nn.Module, by: float) -> None:
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            value.add_(by)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_mean_distance_equals_a_loop() -> None:
    before = [torch.randn(2, 3, generator=generator(0, "a")), torch.zeros(4)]
    after = [torch.randn(2, 3, generator=generator(0, "b")), torch.full((4,), 3.0)]
    first = math.sqrt(
        sum(
            (x - y) ** 2
            for x, y in zip(*(t[0].flatten().tolist() for t in (before, after)), strict=True)
        )
    )
    # The second moved by 3 in each of four places: 6.
    assert mean_distance(before, after).item() == pytest.approx((first + 6) / 2, rel=1e-6)
    assert mean_distance(before, before).item() == 0


def test_mix_equals_a_loop_over_parameters_and_statistics() -> None:
    both = [Net({"encoder": nn.Linear(2, 3), "norm": nn.BatchNorm1d(3)}) for _ in range(2)]
    received, trained = both
    shift(trained, 2.0)
    old, new = state(received), state(trained)
    mix(received, trained, 0.25)
    for name, value in state(received).items():
        torch.testing.assert_close(value, 0.25 * new[name] + 0.75 * old[name])
    mix(received, trained, 1.0)
    assert all(torch.equal(value, new[name]) for name, value in state(received).items())
    torch.testing.assert_close(state(trained), new)


def play(method: Toy, net: Net, index: int, moved: float, server: Net) -> tuple[bool, Net]:
    """Play one round; return whether it starts from the server alone, and its first net."""
    for part in ONLINE:
        mix(net[part], server[part], 1.0)
    from_server = method.begin_round(net, at(index))
    began = copy.deepcopy(net)
    for part in ONLINE:
        shift(net[part], moved)
    method.after_local(net, NO_DATA, at(index))
    return from_server, began


def test_fedu_keeps_the_clients_predictor_after_a_long_way() -> None:
    method = Toy(update="fedu")
    server, net = make(Toy()), make(method)
    shift(server["predictor"], 5.0)
    # Convolutions have 18 and 8 weights; all move by m: d = m (sqrt 18 + sqrt 8) / 2 = 3.536 m.
    way = (math.sqrt(18) + math.sqrt(8)) / 2
    from_server, began = play(method, net, 0, 0.2, server)  # d = 0.707
    assert from_server
    assert net.tensor("own_record.divergence").item() == pytest.approx(0.2 * way, rel=1e-5)
    assert torch.equal(began.tensor("predictor.0.weight"), server.tensor("predictor.0.weight"))
    stored = state(net["predictor"])

    shift(server["predictor"], 1.0)
    from_server, began = play(method, net, 3, 0.1, server)  # missed rounds do not matter; d = 0.354
    assert not from_server
    for name, value in state(began["predictor"]).items():
        assert torch.equal(value, stored[name])
    assert torch.equal(began.tensor("encoder.0.weight"), server.tensor("encoder.0.weight"))

    _, began = play(method, net, 4, 0.1, server)  # the last way was short
    assert torch.equal(began.tensor("predictor.0.weight"), server.tensor("predictor.0.weight"))


def test_fedema_mixes_all_online_parts_by_how_far_the_client_went() -> None:
    method = Toy(update="fedema")
    server, net = make(Toy()), make(method)
    way = (math.sqrt(18) + math.sqrt(8)) / 2
    assert play(method, net, 0, 0.2, server)[0]
    scale = 0.7 / (0.2 * way)
    assert net.tensor("own_record.scale").item() == pytest.approx(scale, rel=1e-5)
    before = {part: state(net[part]) for part in ONLINE}

    shift(server, -1.0)
    from_server, began = play(
        method, net, 1, 0.1, server
    )  # the last way gives the share 0.7 itself
    assert not from_server
    for part in ONLINE:
        for name, received in state(server[part]).items():
            expected = 0.7 * before[part][name] + 0.3 * received
            torch.testing.assert_close(began[part].state_dict()[name], expected)
    assert net.tensor("own_record.divergence").item() == pytest.approx(0.1 * way, rel=1e-4)
    assert net.tensor("own_record.scale").item() == pytest.approx(scale, rel=1e-5)  # fixed for good

    before = {part: state(net[part]) for part in ONLINE}
    _, began = play(method, net, 2, 0.1, server)  # half the way: share 0.35
    name, received = "0.weight", server.tensor("predictor.0.weight")
    expected = 0.35 * before["predictor"][name] + 0.65 * received
    torch.testing.assert_close(began.tensor("predictor.0.weight").detach(), expected.detach())

    from_server, began = play(method, net, 4, 0.1, server)  # round 3 was missed
    assert from_server
    assert torch.equal(began.tensor("encoder.0.weight"), server.tensor("encoder.0.weight"))


def test_a_client_that_never_moved_has_no_scale_yet() -> None:
    method = Toy(update="fedema")
    server, net = make(Toy()), make(method)
    play(method, net, 0, 0.0, server)
    assert net.tensor("own_record.scale").item() == 0
    from_server, began = play(method, net, 1, 0.2, server)
    assert not from_server
    assert torch.equal(began.tensor("encoder.0.weight"), server.tensor("encoder.0.weight"))
    assert net.tensor("own_record.scale").item() > 0
    assert bool(net.tensor("own_record.scale").isfinite())


def test_the_frozen_predictor_comes_back() -> None:
    method = Toy(update="frozen-predictor")
    net = make(method)
    before = state(net)
    for part in ONLINE:
        shift(net[part], 1.0)
    restore(method, net)
    for name, value in state(net).items():
        same = torch.equal(value, before[name])
        assert same == (not name.startswith(("encoder", "projector")))
