"""BYOL, SimSiam, RotPred and divergence-aware updates: losses, targets, clients that remember."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.method import Batch, Client, ClientData, DataSpec, Loss, Needs, Net, RoundPlan
from fedbench.bench.nn import Backbone
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator, scope
from fedbench.bench.testing import loss_of, tiny_config, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup
from fedbench.methods.divergence import ONLINE, DivergenceAware, convolutions, mix
from tests.specs import batch_of, client, moved, setup_of

CLIENT = client()
STATEFUL = {"method__target": "personal", "method__update": "fedu"}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [("byol", {}), *(("simsiam", {"method__heads": n}) for n in ("o", "m", "m-pre"))],
)
def test_the_loss_is_the_negative_cosine_of_predictions(spec: str, fields: dict[str, str]) -> None:
    setup, batch = setup_of(spec, **fields), batch_of()
    net = setup.make_net()
    if spec == "byol":  # its target lags behind
        moved(net, "encoder", "projector")
    out = setup.method.loss(net, batch, CLIENT)
    h = [net["encoder"](view) for view in batch.views]
    z = [net["projector"](features) for features in h]
    p = [net["predictor"](projection) for projection in z]
    if spec == "byol":
        z = [net["target_projector"](net["target_encoder"](view)) for view in batch.views]
    cosines = F.cosine_similarity(p[0], z[1]).mean() + F.cosine_similarity(p[1], z[0]).mean()
    torch.testing.assert_close(out.total, -cosines / 2)
    for features, expected in zip(out.features, h, strict=True):
        torch.testing.assert_close(features, expected)
    assert spec == "byol" or 0 < out.parts["spread"].item() <= 1


@pytest.mark.parametrize(("inverted", "share"), [(False, 0.9), (True, 0.1)])
def test_the_target_follows_after_the_step(inverted: bool, share: float) -> None:
    setup = setup_of("byol", method__ema_decay=0.9, method__ema_inverted=inverted)
    net = setup.make_net()
    moved(net, "encoder", "projector")
    before = copy.deepcopy(net)
    setup.method.after_step(net, Loss(torch.zeros(())), CLIENT)
    for part in ("encoder", "projector"):
        old, online = before[f"target_{part}"].state_dict(), before[part].state_dict()
        for name, value in net[f"target_{part}"].state_dict().items():
            torch.testing.assert_close(value, share * old[name] + (1 - share) * online[name])
            assert torch.equal(net[part].state_dict()[name], online[name])


def target_at_the_start(setup: Setup, folder: Path, *, changed: bool, rounds: int) -> str:
    """Name the net that a target equals when a client's last round begins."""
    runner = ClientRunner(setup, torch.device("cpu"), folder)
    server = runner.binding.server.data.clone()
    out = torch.empty(runner.layout.upload_size)
    for index in range(rounds):
        runner.run(Task(0, index, RoundPlan(1), index - 1 if index else None), server, out)
    net = runner.binding.net
    previous = net.tensor("target_encoder.stem.weight").detach().clone()
    if changed:
        server = server + 0.01
    runner.binding.server.data.copy_(server)
    client = Client(0, rounds, generator(0, "client"))
    setup.method.before_local(net.train(), setup.client_data(0, "cpu"), client)
    target, online = net.tensor("target_encoder.stem.weight"), net.tensor("encoder.stem.weight")
    if rounds and torch.equal(target, previous):
        return "own"
    return "received" if torch.equal(target, online) else "other"


def test_who_gives_the_target(tmp_path: Path) -> None:
    def at(kind: str, rounds: int, **fields: Any) -> str:
        setup = setup_of("byol", method__target=kind, **fields)
        folder = tmp_path / f"{kind}-{rounds}-{len(fields)}"
        return target_at_the_start(setup, folder, changed=True, rounds=rounds)

    # All of the server's vector moved by 0.01, its targets included.
    assert at("personal", 0) == "received"  # a first round that is not round 0 of the run
    assert at("personal", 1) == "own"
    assert at("reinit", 0) == "received"
    assert at("reinit", 1) == "received"
    assert at("averaged", 1) == "received"
    assert at("personal", 1, method__update="fedema") == "own"


def test_updates_that_remember_need_a_target_at_home() -> None:
    with pytest.raises(ConfigError, match=r"method.target"):
        tiny_config("byol", method__update="fedu")
    setup = setup_of("byol", **STATEFUL)
    personal = {slot.name.split(".")[0] for slot in setup.layout(setup.make_net()).personal}
    assert personal == {"target_encoder", "target_projector", "own_predictor", "own_record"}


def test_a_personal_target_beside_an_encoder_without_convolutions(tmp_path: Path) -> None:
    setup = setup_of("byol", method__target="personal", model__backbone="vit-5", model__width=12)
    assert train(setup, tmp_path).history[-1].loss is not None


def test_projections_get_their_gradient_through_the_predictor_only() -> None:
    setup = setup_of("simsiam")
    net = setup.make_net()
    with torch.no_grad():
        net.tensor("predictor.3.weight").zero_()  # constant: nothing flows back through it
    setup.method.loss(net, batch_of(), CLIENT).total.backward()
    bias = net.tensor("predictor.3.bias").grad
    assert bias is not None
    assert bool(bias.any())
    gradients = [p.grad for part in ("encoder", "projector") for p in net[part].parameters()]
    assert not any(g is not None and bool(g.any()) for g in gradients)


def test_the_releases_predictor_never_moves(tmp_path: Path) -> None:
    setup = setup_of("simsiam", method__update="frozen-predictor")
    trainer = train(setup, tmp_path)
    for slot in trainer.layout.server:
        same = torch.equal(
            trainer.vector[slot.start : slot.stop], trainer.initial[slot.start : slot.stop]
        )
        assert same == (slot.name.startswith(("predictor", "initial_predictor")))


def test_the_loss_of_rotpred_is_the_cross_entropy_of_the_drawn_turns() -> None:
    setup, batch = setup_of("rotpred", model__norm="batch"), batch_of(6, "a")
    net = setup.make_net().eval()
    out = loss_of(setup.method, net, batch, Client(0, 0, generator(0, "client")))
    turns = torch.randint(4, (6,), generator=generator(0, "client")).tolist()
    assert len(set(turns)) > 1
    total = 0.0
    for image, turn in zip(batch.views[0], turns, strict=True):
        turned = torch.rot90(image, turn, (1, 2)).unsqueeze(0)
        logits = net(turned, "encoder", "projector", "rotation")[0].tolist()
        total -= logits[turn] - math.log(sum(math.exp(v) for v in logits))
    assert float(out.total.detach()) == pytest.approx(total / 6, rel=1e-5)
    assert out.features[0].shape == (6, 16)  # width 4, doubled twice


@pytest.mark.parametrize(
    ("spec", "values", "remedy"),
    [
        ("rotpred", {}, r"data\.image_size=8,"),
        ("orchestra", {}, r"data\.image_size=8, .*method\.degeneracy=false"),
        ("orchestra", {"method__degeneracy": False}, None),
    ],
)
def test_images_that_are_not_square_are_refused_before_any_is_turned(
    spec: str, values: dict[str, Any], remedy: str | None
) -> None:
    setup = setup_of(spec, **values)
    setup = replace(setup, spec=replace(setup.spec, image_shape=(1, 8, 12)))
    with pytest.raises(ConfigError, match=remedy) if remedy else nullcontext():
        setup.make_net()


NO_DATA = ClientData(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0))


class Toy(DivergenceAware):
    """The rules of updates alone, for a net of two convolutions that is made and moved by hand."""

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


def shift(module: nn.Module, by: float) -> None:
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            value.add_(by)


def test_shortcuts_do_not_count() -> None:
    """ResNet-8 has a stem, three blocks of two 3x3 convolutions, and two 1x1 shortcuts."""
    encoder = make_backbone(ModelConfig(backbone="resnet8", width=4), 3).make()
    assert [tuple(w.shape[2:]) for w in convolutions(encoder)] == [(3, 3)] * 7
    assert sum(isinstance(module, nn.Conv2d) for module in encoder.modules()) == 9


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
    stored = copy.deepcopy(net["predictor"].state_dict())

    shift(server["predictor"], 1.0)
    from_server, began = play(method, net, 3, 0.1, server)  # missed rounds do not matter; d = 0.354
    assert not from_server
    for name, value in began["predictor"].state_dict().items():
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
    before = {part: copy.deepcopy(net[part].state_dict()) for part in ONLINE}

    shift(server, -1.0)
    # The last way gives the share 0.7 itself.
    from_server, began = play(method, net, 1, 0.1, server)
    assert not from_server
    for part in ONLINE:
        for name, received in server[part].state_dict().items():
            expected = 0.7 * before[part][name] + 0.3 * received
            torch.testing.assert_close(began[part].state_dict()[name], expected)
    assert net.tensor("own_record.divergence").item() == pytest.approx(0.1 * way, rel=1e-4)
    assert net.tensor("own_record.scale").item() == pytest.approx(scale, rel=1e-5)  # fixed for good

    before = {part: copy.deepcopy(net[part].state_dict()) for part in ONLINE}
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
