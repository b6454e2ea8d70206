"""Server hooks of a method: optimizers, and the extras and uploads that they receive."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.bench.data.batches import ClientData
from fedbench.bench.method import (
    Client,
    DataSpec,
    Extra,
    Needs,
    Net,
    RoundPlan,
    Server,
    Sharing,
    Upload,
)
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup
from fedbench.methods.supervised import Supervised

CPU = torch.device("cpu")


def with_method(cls: type[Supervised], setup: Setup | None = None, **fields: Any) -> Setup:
    setup = setup or tiny_setup(tiny_config("supervised"))
    return dataclasses.replace(setup, method=cls(**fields))


class Recorder(Supervised):
    """Method that uses every server hook and records its arguments."""

    def needs(self) -> Needs:
        declared = {"live": Extra(), "draw": Extra()}
        return dataclasses.replace(super().needs(), extras=declared)

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        net.tensor("memory").fill_(client.id + 1.0)
        return super().before_local(net, data, client)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        net = super().build(backbone, data)
        net["far"] = nn.Linear(1, 1)
        net.register_buffer("memory", torch.zeros(2))
        net.register_buffer("log", torch.zeros(3))
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        table = {"memory": Sharing.PERSONAL, "log": Sharing.BROADCAST, "far.*": Sharing.SERVER_ONLY}
        return {**table, **super().sharing()}

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        return {"live": net.tensor("log"), "draw": torch.rand(1, generator=client.rng)}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        log = net.tensor("log")
        log[0] += float(torch.cat([u.extras["draw"] for u in uploads]).sum())
        log[1] = float(net.training)
        log[2] += float(net.tensor("memory").sum())
        if server.round % 2 == 0:  # an optimizer that rests in odd rounds
            parameters = list(net["far"].requires_grad_(True).parameters())
            adam = server.optimizer("far", lambda: torch.optim.Adam(parameters, lr=0.1))
            adam.zero_grad()
            net["far"](torch.rand(4, 1, generator=server.rng)).square().mean().backward()
            adam.step()


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_server_optimizers_and_modes_survive_interruption(tmp_path: Path, cut: int) -> None:
    config = tiny_config("supervised", federation__num_rounds=5)
    setup = with_method(Recorder, tiny_setup(config))
    whole = train(setup, tmp_path / "whole")
    folder = tmp_path / "cut"
    train(setup, folder, rounds=cut)
    train(setup, folder, rounds=1)  # a second cut: what was restored must be written down again
    assert_same_run(whole, train(setup, folder))
    log = whole.binding.net.tensor("log")
    assert log[1] == 1.0  # the server's net is in training mode, whatever evaluation did before
    assert log[2] == 0.0  # and holds no client's own tensors


def test_extras_are_copies_and_counted(tmp_path: Path) -> None:
    """The net's memory is reused for the next client."""
    setup = with_method(Recorder)
    runner = ClientRunner(setup, CPU, tmp_path)
    vector = runner.binding.server.data.clone()
    trained = runner.run(Task(0, 0, RoundPlan(1)), vector, torch.empty(runner.layout.upload_size))
    before = trained.extras["live"].clone()
    runner.binding.server.data.fill_(5.0)
    assert torch.equal(trained.extras["live"], before)
    trainer = train(setup, tmp_path)
    rounds, clients = 2, 4
    assert trainer.ledger.up["live"] == 4 * 3 * rounds * clients
    assert "far" not in trainer.ledger.down
    assert "memory" not in trainer.ledger.up


def test_single_uploads_are_handed_over_only_where_asked_for(tmp_path: Path) -> None:
    seen: list[Upload] = []

    class Curious(Supervised):
        single: bool = True

        def needs(self) -> Any:
            return dataclasses.replace(super().needs(), single_uploads=self.single)

        def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
            seen.extend(uploads)

    config = tiny_config("supervised", federation__num_rounds=1)
    setup = with_method(Curious, tiny_setup(config))
    trainer = train(setup, tmp_path / "a")
    assert [u.client_id for u in seen] == [0, 1, 2, 3]
    name = "classifier.weight"
    mean = torch.stack([u.weights[name] for u in seen]).double().mean(dim=0).float()
    torch.testing.assert_close(trainer.binding.net.tensor(name), mean)
    seen.clear()
    train(with_method(Curious, setup, single=False), tmp_path / "b")
    assert [dict(u.weights) for u in seen] == [{}] * 4
