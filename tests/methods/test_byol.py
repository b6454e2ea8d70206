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

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, Loss, Net, RoundPlan
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup

CLIENT = Client(0, 0, generator(0, "client"))
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


class TestStateful(MethodContract):
    """Contract for clients with a personal target, predictor and record."""

    spec = "byol"
    fields: Mapping[str, Any] = MappingProxyType(STATEFUL)


class TestReinit(MethodContract):
    """Contract for a target that lives for one round."""

    spec = "byol"
    fields: Mapping[str, Any] = MappingProxyType({"method__target": "reinit"})
