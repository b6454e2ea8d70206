"""User verification on top of SimCLR: loss term, rows, and the server's constraint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, RoundPlan, Sharing, registry
from fedbench.bench.nn.losses import client_cross_entropy
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import loss_of, tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup


def make_setup(**values: Any) -> Setup:
    return tiny_setup(tiny_config("simclr+uv", **values))


def make_batch(size: int = 6) -> Batch:
    views = tuple(torch.randn(size, 1, 8, 8, generator=generator(0, n)) for n in ("a", "b"))
    return Batch(views, torch.full((size,), -1))


def client(k: int) -> Client:
    return Client(k, 0, generator(0, "client"))


def test_the_term_is_added_to_the_bases_loss_summed_over_views() -> None:
    setup = make_setup(**{"method.uv.weight": 0.7, "method.uv.temperature": 0.2})
    net, batch = setup.make_net(), make_batch()
    out = loss_of(setup.method, net, batch, client(2))
    base = registry.create("simclr", {"hidden_dim": 16, "projection_dim": 16})
    alone = base.loss(net, batch, client(2))
    terms = [
        client_cross_entropy(net["uv_projector"](h), net.tensor("uv.weight"), 2, 0.2)
        for h in alone.features
    ]
    torch.testing.assert_close(out.total, alone.total + 0.7 * (terms[0] + terms[1]))
    torch.testing.assert_close(out.parts["uv"], 0.7 * (terms[0] + terms[1]).detach())


@pytest.mark.parametrize("rows", ["own", "mean"])
@pytest.mark.parametrize("optimizer", ["average", "adam"])
def test_rows_have_length_one_after_every_round(tmp_path: Path, rows: str, optimizer: str) -> None:
    setup = make_setup(**{"method.uv.rows": rows, "server.optimizer": optimizer, "server.lr": 0.1})
    rule = setup.method.sharing()["uv.weight"]
    assert rule is (Sharing.OWN_ROW if rows == "own" else Sharing.MEAN_ROW)
    start = setup.make_net().tensor("uv.weight")
    torch.testing.assert_close(start.norm(dim=1), torch.ones(4))
    final = train(setup, tmp_path).binding.net.tensor("uv.weight")
    torch.testing.assert_close(final.norm(dim=1), torch.ones(4))
    assert not torch.allclose(final, start)


def test_a_client_moves_its_own_row_towards_its_codes(tmp_path: Path) -> None:
    setup = make_setup(**{"method.uv.weight": 5.0, "client.lr": 0.1})
    runner = ClientRunner(setup, torch.device("cpu"), tmp_path)
    net = runner.binding.net
    server = runner.binding.server.data.clone()
    before = net.tensor("uv.weight").detach().clone()
    runner.run(Task(3, 0, RoundPlan(3)), server, torch.empty(runner.layout.upload_size))
    after = net.tensor("uv.weight").detach()
    assert torch.equal(before[:3], after[:3])
    with torch.no_grad():
        images = setup.client_data(3, "cpu").images.float() / 127.5 - 1
        codes = torch.nn.functional.normalize(net(images, "encoder", "uv_projector"), dim=1)
        closeness = [(codes @ row / row.norm()).mean() for row in (before[3], after[3])]
    assert closeness[1] > closeness[0]


def test_its_term_travels_into_the_log(tmp_path: Path) -> None:
    """Two views of 4 clients: by chance 2 ln 4, and least where all cosines are 1 and -1."""
    first, second = (record.parts["uv"] for record in train(make_setup(), tmp_path).history)
    assert 2 * math.log(1 + 3 * math.exp(-2)) < second < first < 2 * math.log(4)
