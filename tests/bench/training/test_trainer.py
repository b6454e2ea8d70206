"""The round loop: its arithmetic, server hooks, state after an interruption, and end."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.method import (
    Client,
    DataSpec,
    Extra,
    Loss,
    Needs,
    Net,
    RoundPlan,
    Server,
    Sharing,
    Upload,
)
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.seeding import drawn
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Diverged
from fedbench.methods.supervised import Supervised
from tests.specs import setup_of

CPU = torch.device("cpu")


def with_method(cls: type[Supervised], setup: Setup | None = None, **fields: Any) -> Setup:
    setup = setup or setup_of("supervised")
    return dataclasses.replace(setup, method=cls(**fields))


def client_result(setup: Setup, client_id: int, server: Tensor) -> Tensor:
    """Return the whole server-shaped vector after one client's round."""
    runner = ClientRunner(setup, CPU, Path())
    runner.run(Task(client_id, 0, RoundPlan(1)), server, torch.empty(runner.layout.upload_size))
    return runner.binding.server.data.clone()


def test_one_full_batch_step_of_fedavg_is_one_step_of_central_sgd(tmp_path: Path) -> None:
    """Equal clients make one step each: the mean of their steps is the step on all data.

    The supervised loss is a mean over examples, so equal shares give the pooled gradient; with
    group norm no example sees another. Views are the plain images, so both see the same pixels.
    """

    class Plain(Supervised):
        augmentation: Any = "plain"

    config = tiny_config(
        "supervised",
        client__batch_size=20,
        client__momentum=0.9,
        client__weight_decay=1e-2,
        federation__num_rounds=1,
    )
    setup = with_method(Plain, tiny_setup(config))
    assert set(setup.partition.sizes.tolist()) == {20}
    trainer = train(setup, tmp_path)
    net = setup.make_net()
    assert torch.equal(trainer.initial, setup.layout(net).bind(net).server.data)
    images = torch.from_numpy(np.array(setup.images)).float() / 255
    labels = torch.from_numpy(np.array(setup.dataset.train_labels))
    logits = net((images - 0.5) / 0.5, "encoder", "classifier")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    optimizer.zero_grad()
    F.cross_entropy(logits, labels).backward()
    optimizer.step()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(trainer.binding.net.tensor(name), value, rtol=1e-4, atol=1e-6)
    assert not torch.equal(trainer.vector, trainer.initial)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_clients_count_equally_or_by_their_examples(tmp_path: Path, weighting: str) -> None:
    shares = [range(10), range(10, 40)]
    config = tiny_config(
        "supervised", server__weighting=weighting, federation__num_rounds=1, data__num_clients=2
    )
    setup = tiny_setup(config, shares=shares)
    trainer = train(setup, tmp_path)
    results = [client_result(setup, k, trainer.initial).double() for k in range(2)]
    first = 10 / 40 if weighting == "examples" else 1 / 2
    expected = (first * results[0] + (1 - first) * results[1]).float()
    torch.testing.assert_close(trainer.vector, expected, rtol=1e-6, atol=1e-8)


def test_cohorts_are_drawn_without_replacement_from_those_with_data(tmp_path: Path) -> None:
    shares: list[Sequence[int]] = [[], *([k] for k in range(10)), []]
    config = tiny_config("simclr", federation__participation=0.5, data__num_clients=12)
    setup = tiny_setup(config, shares=shares)
    seen: set[int] = set()
    for index in range(30):
        cohort = setup.cohort(index, RoundPlan(1))
        assert len(cohort) == len(set(cohort)) == 6
        assert cohort == sorted(cohort)
        seen |= set(cohort)
    assert seen == set(range(1, 11))
    assert setup.cohort(0, RoundPlan(1, "all")) == list(range(1, 11))
    assert setup.cohort(0, RoundPlan(1, "labelled")) == []  # SimCLR sees no label
    assert setup.cohort(3, RoundPlan(1)) == setup.cohort(3, RoundPlan(5))


@pytest.mark.parametrize("spec", ["simclr", "supervised"])
def test_a_round_without_local_epochs_or_data_changes_no_weight(tmp_path: Path, spec: str) -> None:
    idle = train(setup_of(spec, client__local_epochs=0), tmp_path / "epochs")
    assert torch.equal(idle.vector, idle.initial)
    assert [record.loss for record in idle.history] == [None, None]
    assert [record.idle_clients for record in idle.history] == [4, 4]
    assert idle.ledger.bytes_down > 0
    none = tiny_setup(tiny_config(spec), shares=[[], [], []])
    assert train(none, tmp_path / "data").ledger.bytes_up == 0


def test_a_client_that_trained_is_measured(tmp_path: Path) -> None:
    config = tiny_config("single-ae", federation__num_rounds=1, client__keep_last_batch=False)
    shares = [[0], range(1, 41)]
    untrained = config.model_copy(
        update={"client": config.client.model_copy(update={"local_epochs": 0})}
    )
    first, second = (
        train(tiny_setup(each, shares=shares), tmp_path / name).history[0]
        for each, name in ((config, "a"), (untrained, "b"))
    )
    assert first.idle_clients == 1
    assert first.std_ratio != second.std_ratio


def test_a_checkpoint_of_other_code_is_named(tmp_path: Path) -> None:
    train(setup_of("simclr"), tmp_path, rounds=1)
    wider = setup_of("simclr", method__hidden_dim=24)
    with pytest.raises(StoreError, match=r"[\d,]+ numbers, .* [\d,]+ now"):
        train(wider, tmp_path)


@pytest.mark.parametrize("where", ["loss", "server"])
def test_a_run_that_diverges_says_so(tmp_path: Path, where: str) -> None:
    values = {"loss": {"client__lr": 1e30}, "server": {"server__lr": 1e30}}[where]
    setup = setup_of("simclr", federation__num_rounds=20, **values)
    with pytest.raises(Diverged, match=r"round \d+: the .* not finite"):
        train(setup, tmp_path)


def test_clients_and_rounds_have_draws_of_their_own(tmp_path: Path) -> None:
    """All images are the same, so only the augmentation distinguishes clients."""
    setup = setup_of("simclr")
    copies = np.repeat(setup.images[:1], len(setup.images), axis=0)
    setup = dataclasses.replace(setup, images=copies)
    runner = ClientRunner(setup, CPU, tmp_path)
    server, upload = runner.binding.server.data.clone(), torch.empty(runner.layout.upload_size)
    seen = set()
    for k, r in ((0, 0), (1, 0), (0, 1), (1, 1)):
        seen.add(runner.run(Task(k, r, RoundPlan(1)), server, upload).loss)
    assert len(seen) == 4


def drawn_everywhere() -> float:
    of_numpy = float(np.random.rand())  # noqa: NPY002
    return of_numpy + random.random() + torch.rand(()).item()


class Drawing(Supervised):
    """Draws in each hook as code does that knows no generator."""

    def needs(self) -> Needs:
        return dataclasses.replace(super().needs(), extras={"draw": Extra()})

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        net.tensor("classifier.bias").data.add_(drawn_everywhere())
        return super().before_local(net, data, client)

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        out = super().loss(net, batch, client)
        return dataclasses.replace(out, total=out.total * drawn_everywhere())

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        return {"draw": torch.tensor([drawn_everywhere()])}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        sent = sum(float(upload.extras["draw"]) for upload in uploads)
        server.log["draws"] = sent + drawn_everywhere()
        net.tensor("classifier.bias").data.add_(server.log["draws"])


def test_draws_from_global_generators_are_of_the_run(tmp_path: Path) -> None:
    """Whatever the caller has drawn, with an interruption or without; his draws go on."""
    setup = with_method(Drawing)
    before = drawn()
    whole = train(setup, tmp_path / "whole")
    assert drawn() == before
    train(setup, tmp_path / "parts", rounds=1)
    drawn_everywhere()
    assert_same_run(whole, train(setup, tmp_path / "parts"))


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
