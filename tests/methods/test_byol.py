"""BYOL: loss, targets, traffic, and stateful clients."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.config import ModelConfig
from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, DataSpec, Loss, Net, RoundPlan, registry
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.layout import Layout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup
from fedbench.methods.byol import BYOL

CLIENT = Client(0, 0, generator(0, "client"))
ENCODER = 11_168_832 + 9_600  # derived in tests/bench/nn/test_backbones.py; batch norm's statistics
STATEFUL = {"method__target": "personal", "method__update": "fedu"}


def setup_of(**fields: Any) -> Setup:
    return tiny_setup(tiny_config("byol", **fields))


def batch_of(size: int = 5) -> Batch:
    views = tuple(torch.randn(size, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    return Batch(views, torch.full((size,), -1))


def moved(net: Net, *parts: str, by: float = 0.1) -> None:
    with torch.no_grad():
        for part in parts:
            for value in net[part].parameters():
                value.add_(by * torch.randn(value.shape, generator=generator(0, part)))


def test_the_loss_by_hand() -> None:
    setup, batch = setup_of(), batch_of()
    net = setup.make_net()
    moved(net, "encoder", "projector")
    out = setup.method.loss(net, batch, CLIENT)
    h = [net["encoder"](view) for view in batch.views]
    p = [net["predictor"](net["projector"](features)) for features in h]
    t = [net["target_projector"](net["target_encoder"](view)) for view in batch.views]
    cosines = F.cosine_similarity(p[0], t[1]).mean() + F.cosine_similarity(p[1], t[0]).mean()
    torch.testing.assert_close(out.total, -cosines / 2)
    torch.testing.assert_close(out.features[1], h[1])


def test_no_gradient_reaches_the_target() -> None:
    setup = setup_of()
    net = setup.make_net()
    setup.method.loss(net, batch_of(), CLIENT).total.backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name


@pytest.mark.parametrize(("inverted", "share"), [(False, 0.9), (True, 0.1)])
def test_the_target_follows_after_the_step(inverted: bool, share: float) -> None:
    setup = setup_of(method__ema_decay=0.9, method__ema_inverted=inverted)
    net = setup.make_net()
    moved(net, "encoder", "projector")
    before = copy.deepcopy(net)
    setup.method.after_step(net, Loss(torch.zeros(())), CLIENT)
    for part in ("encoder", "projector"):
        old, online = before[f"target_{part}"].state_dict(), before[part].state_dict()
        for name, value in net[f"target_{part}"].state_dict().items():
            torch.testing.assert_close(value, share * old[name] + (1 - share) * online[name])
            assert torch.equal(net[part].state_dict()[name], online[name])


def test_a_decay_of_one_freezes_and_of_zero_copies(tmp_path: Path) -> None:
    for decay, follows in ((1.0, "target_encoder"), (0.0, "encoder")):
        trainer = train(setup_of(method__ema_decay=decay), tmp_path / str(decay))
        state = trainer.binding.net
        target = torch.cat([p.flatten() for p in state["target_encoder"].parameters()])
        if follows == "encoder":
            online = torch.cat([p.flatten() for p in state["encoder"].parameters()])
            torch.testing.assert_close(target, online)
        else:
            first = setup_of().make_net()["target_encoder"].parameters()
            torch.testing.assert_close(target, torch.cat([p.flatten() for p in first]))


def test_views_are_the_configured_ones() -> None:
    assert BYOL().needs().views == ("byol-o-1", "byol-o-2")
    assert BYOL(augmentation="simclr-m").needs().views == ("simclr-m", "simclr-m")


def traffic(**fields: Any) -> Ledger:
    config = ModelConfig.model_validate({"backbone": "resnet18", "norm": "batch"})
    method = registry.create("byol", fields)
    net = method.build(make_backbone(config, 3), DataSpec((3, 32, 32), 10, 100))
    net.drop_counters()
    return Ledger.of_client(Layout.of(net, method.sharing()))


def test_traffic() -> None:
    # 512-1024-512 with one norm and its statistics; the predictor's last layer has a bias.
    projector = 512 * 1024 + 2 * 1024 + 1024 * 512
    assert (projector, projector + 512) == (1_050_624, 1_051_136)
    followed, predictor = ENCODER + projector + 2_048, projector + 512 + 2_048
    stateless = traffic()
    assert stateless.bytes_up == stateless.bytes_down == 4 * (2 * followed + predictor)
    assert f"{stateless.bytes_up / 1e6:.2f} MB" == "102.06 MB"
    kinds: tuple[dict[str, Any], ...] = (
        {"target": "personal"},
        {"target": "reinit"},
        {"target": "personal", "update": "fedu"},
        {"target": "personal", "update": "fedema"},
        {"target": "personal", "update": "frozen-predictor"},
    )
    for fields in kinds:
        ledger = traffic(**fields)
        assert ledger.bytes_up == ledger.bytes_down == 4 * (followed + predictor) == 53_137_152
        assert set(ledger.up) == {"encoder", "projector", "predictor"}


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
        setup = setup_of(method__target=kind, **fields)
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
    setup = setup_of(**STATEFUL)
    personal = {slot.name.split(".")[0] for slot in setup.layout(setup.make_net()).personal}
    assert personal == {"target_encoder", "target_projector", "own_predictor", "own_record"}


@pytest.mark.parametrize("target", ["averaged", "personal", "reinit"])
@pytest.mark.parametrize("inverted", [False, True])
def test_every_target_trains(target: str, inverted: bool, tmp_path: Path) -> None:
    fields = {"method__target": target, "method__ema_inverted": inverted, "model__norm": "batch"}
    config = tiny_config("byol", federation__num_rounds=4, **fields)
    losses = [record.loss for record in train(tiny_setup(config), tmp_path).history]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < losses[0]


class TestStateful(MethodContract):
    """Contract for clients with a personal target, predictor and record."""

    spec = "byol"
    fields: Mapping[str, Any] = MappingProxyType(STATEFUL)


class TestReinit(MethodContract):
    """Contract for a target that lives for one round."""

    spec = "byol"
    fields: Mapping[str, Any] = MappingProxyType({"method__target": "reinit"})
