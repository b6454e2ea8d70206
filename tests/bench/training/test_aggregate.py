"""Aggregation against hand calculation: means, weights, rows, and tensors left unchanged."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedbench.bench.config import ServerConfig
from fedbench.bench.method import Mean, Net, RoundPlan, Sharing
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.aggregate import ServerUpdate, optimized_size
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.layout import VectorLayout
from fedbench.bench.training.server_optimizers import server_optimizer


def make_layout(rule: Sharing) -> VectorLayout:
    """Layout of 2 trained, 1 buffered, 3 x 2 rows, 1 broadcast; an upload is 2 + 1 + 2 numbers."""
    net = Net({"encoder": nn.Linear(2, 1, bias=False), "rows": nn.Linear(2, 3, bias=False)})
    net.register_buffer("statistic", torch.zeros(1))
    net.register_buffer("told", torch.zeros(1))
    table = {"rows.*": rule, "told": Sharing.BROADCAST, "*": Sharing.AVERAGED}
    return VectorLayout.of(net, table)


def aggregated(
    rule: Sharing,
    uploads: dict[int, tuple[float, list[float]]],
    config: ServerConfig | None = None,
    unweighted: tuple[str, ...] = (),
) -> list[float]:
    layout = make_layout(rule)
    theta = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 99.0])
    assert layout.server_size == len(theta)
    slots = {slot.name: slice(slot.start, slot.stop) for slot in layout.averaged}
    update = ServerUpdate(layout, "cpu", Mean([slots[name] for name in unweighted]))
    scratch = torch.empty(layout.upload_size)
    for client_id, (weight, upload) in uploads.items():
        scratch.copy_(torch.tensor(upload))
        update.fold(client_id, weight, scratch)
        scratch.fill_(torch.nan)  # as the trainer does, which hands the memory to the next client
    optimizer = server_optimizer(config or ServerConfig(), optimized_size(layout), "cpu")
    update.apply(theta, optimizer)
    return theta.tolist()


UPLOADS = {0: (1.0, [2.0, 4.0, 6.0, 11.0, 22.0]), 2: (3.0, [6.0, 0.0, 2.0, 5.0, 6.0])}


def test_own_rows_replace_and_the_rest_is_averaged() -> None:
    # (1 * 2 + 3 * 6) / 4 = 5, (4 + 0) / 4 = 1, buffer (6 + 3 * 2) / 4 = 3
    expected = [5.0, 1.0, 3.0, 11.0, 22.0, 30.0, 40.0, 5.0, 6.0, 99.0]
    assert aggregated(Sharing.OWN_ROW, UPLOADS) == expected


def test_mean_rows_move_by_their_share_of_the_change() -> None:
    # row 0: 10 + (1/4) * (11 - 10) = 10.25, 20 + (22 - 20) / 4 = 20.5
    # row 2: 50 + (3/4) * (5 - 50) = 16.25, 60 + (3/4) * (6 - 60) = 19.5; row 1 stays
    expected = [5.0, 1.0, 3.0, 10.25, 20.5, 30.0, 40.0, 16.25, 19.5, 99.0]
    assert aggregated(Sharing.MEAN_ROW, UPLOADS) == expected


def test_mean_rows_go_through_the_server_optimizer_and_own_rows_do_not() -> None:
    config = ServerConfig(lr=0.5)
    mean = aggregated(Sharing.MEAN_ROW, UPLOADS, config)
    # half of every change above; buffers are averaged as they are
    assert mean == [3.0, 1.5, 3.0, 10.125, 20.25, 30.0, 40.0, 33.125, 39.75, 99.0]
    result = aggregated(Sharing.OWN_ROW, UPLOADS, config)
    assert result == [3.0, 1.5, 3.0, 11.0, 22.0, 30.0, 40.0, 5.0, 6.0, 99.0]


def test_unweighted_buffers_get_the_mean_of_those_who_count() -> None:
    idle = {1: (0.0, [torch.nan] * 5)}
    result = aggregated(Sharing.OWN_ROW, UPLOADS | idle, unweighted=("statistic",))
    assert result[:3] == [5.0, 1.0, 4.0]  # (6 + 2) / 2, whatever the weights


def test_weight_zero_leaves_no_trace() -> None:
    idle = {1: (0.0, [torch.nan] * 5)}
    assert aggregated(Sharing.OWN_ROW, UPLOADS | idle) == aggregated(Sharing.OWN_ROW, UPLOADS)
    unchanged = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 99.0]
    assert aggregated(Sharing.MEAN_ROW, idle, ServerConfig(optimizer="adam")) == unchanged
    assert aggregated(Sharing.OWN_ROW, {}) == unchanged


@pytest.mark.parametrize("count", [1, 3, 7, 100])
@pytest.mark.parametrize("weight", [1.0, 13.0, 500.0])
def test_equal_clients_give_that_clients_weights_to_the_bit(count: int, weight: float) -> None:
    net = Net({"encoder": nn.Linear(40, 40)})
    layout = VectorLayout.of(net, {"*": Sharing.AVERAGED})
    theta, client = (_draw(layout.server_size, name) for name in ("theta", "client"))
    update = ServerUpdate(layout, "cpu", Mean())
    for k in range(count):
        update.fold(k, weight, client)
    update.apply(theta, server_optimizer(ServerConfig(), layout.num_trained, "cpu"))
    assert torch.equal(theta, client)


def _draw(size: int, purpose: str) -> Tensor:
    return torch.randn(size, generator=generator(0, purpose)) * 0.05


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_by_steps_are_fednovas(tmp_path: Path, momentum: float) -> None:
    """Wang et al. 2020, section 4: x - tau_eff sum p_i lr d_i with d_i = G_i a_i / |a_i|_1.

    Clients of 10 and 30 images make 1 and 3 steps. lr G_i a_i is what a client moved, p_i its share
    of the images, and the s-th entry of a_i sums the powers of the momentum with which its gradient
    enters the later steps; tau_eff = sum p_i |a_i|_1.
    """
    config = tiny_config(
        "simclr",
        data__num_clients=2,
        client__batch_size=10,
        client__momentum=momentum,
        federation__num_rounds=1,
        server__weighting="steps",
    )
    setup = tiny_setup(config, shares=[range(10), range(10, 40)])
    trainer = train(setup, tmp_path)
    runner, x = ClientRunner(setup, torch.device("cpu"), tmp_path), trainer.initial.double()
    moved, norms, shares = [], [], [0.25, 0.75]
    for k, steps in enumerate((1, 3)):
        upload = torch.empty(runner.layout.upload_size)
        assert runner.run(Task(k, 0, RoundPlan(1)), trainer.initial, upload).num_steps == steps
        moved.append(upload.double() - x)
        a = [sum(momentum**later for later in range(steps - s)) for s in range(steps)]
        norms.append(sum(a))
    effective = sum(p * n for p, n in zip(shares, norms, strict=True))
    change = sum(p * m / n for p, m, n in zip(shares, moved, norms, strict=True))
    torch.testing.assert_close(
        trainer.vector.double(), x + effective * change, rtol=1e-5, atol=1e-7
    )
