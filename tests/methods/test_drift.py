"""FedProx and SCAFFOLD: gradients by hand, and rounds in which they do nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from fedbench.bench.method import RoundPlan
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task

CPU = torch.device("cpu")


def test_proximity_is_zero_at_the_received_model_and_pulls_towards_it(tmp_path: Path) -> None:
    setup = tiny_setup(tiny_config("simclr+fedprox", method__fedprox__mu=0.5))
    runner = ClientRunner(setup, CPU, tmp_path)
    local = runner.begin(Task(0, 0, RoundPlan(1)), runner.binding.server.data.clone())
    batch, size = next(local.batches), runner.layout.num_trained
    net, server = runner.binding.net, runner.binding.server
    assert float(setup.method.loss(net, batch, local.client).parts["proximity"]) == 0.0
    start = server.data[:size].clone()
    moved = torch.randn(size, generator=torch.Generator().manual_seed(0))
    server.data[:size] += moved
    gradients = []
    for method in (setup.method, setup.method.base):  # type: ignore[attr-defined]
        runner.binding.zero_grad()
        method.loss(net, batch, local.client).total.backward()
        gradients.append(server.grad[:size].clone())
    difference = server.data[:size] - start
    torch.testing.assert_close(gradients[0] - gradients[1], 0.5 * difference, atol=2e-3, rtol=1e-3)


def test_the_first_round_and_a_single_client_are_fedavg(tmp_path: Path) -> None:
    """No correction before the first variates, and none where both variates are equal."""
    plain = {"client__momentum": 0.0, "client__weight_decay": 0.0}
    for name, fields in (
        ("first", {"federation__num_rounds": 1}),
        ("single", {"federation__num_rounds": 2, "data__num_clients": 1, "data__partition": "iid"}),
    ):
        weights = []
        for spec in ("simclr", "simclr+scaffold"):
            setup = tiny_setup(tiny_config(spec, **plain, **fields))
            trainer = train(setup, tmp_path / name / spec)
            weights.append(trainer.vector[: trainer.layout.num_trained])
        torch.testing.assert_close(*weights, atol=1e-6, rtol=1e-5)
