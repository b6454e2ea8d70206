"""FedSC: the loss by hand, matrices that add up over clients, a client's own left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.bench.method import Client
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.methods.fedsc import correlation_contrast


@pytest.mark.parametrize(("own", "expected"), [(1.0, -1.5), (0.5, -1.25), (0.2, -1.1)])
def test_the_loss_by_hand(own: float, expected: float) -> None:
    """Orthonormal pairs: R = I / 2, |R|^2 = 1/2, tr(R O) = 1/2."""
    eye = torch.eye(2)
    value = correlation_contrast(eye, eye, torch.diag(torch.tensor([1.0, 0.0])), torch.tensor(own))
    assert float(value) == pytest.approx(expected)


def test_at_one_share_of_k_clients_the_mean_gradient_is_that_of_pooled_data() -> None:
    rng = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, 3, generator=rng).double().requires_grad_(True) for _ in range(3)]
    matrices = [part.detach().T @ part.detach() / 4 for part in parts]
    for k, part in enumerate(parts):
        others = torch.stack([m for j, m in enumerate(matrices) if j != k]).mean(dim=0)
        share = torch.tensor(1 / 3).double()
        correlation_contrast(part, part, others, share).backward()
    pooled = torch.cat([part.detach() for part in parts]).requires_grad_(True)
    whole = pooled.T @ pooled / 12
    (whole.square().sum() - 2 * pooled.square().sum() / 12).backward()
    assert pooled.grad is not None
    mine = torch.cat([part.grad for part in parts if part.grad is not None]) / 3
    torch.testing.assert_close(mine, pooled.grad)


def test_matrices_of_clients_add_up_and_the_own_one_is_left_out() -> None:
    setup = tiny_setup(tiny_config("fedsc", method__augmentation="simclr-m", method__passes=2))
    net, method = setup.make_net().eval(), setup.method
    answers = []
    with torch.no_grad():
        for k in range(3):
            client = Client(k, 0, generator(0, "survey", 0, k))
            answers.append(method.pre_round(net, setup.client_data(k, "cpu"), client))
    for answer in answers:
        matrix = answer["correlation"]
        torch.testing.assert_close(matrix, matrix.T)
        assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-5
        assert float(matrix.trace()) <= 4.0 + 1e-4  # mu
    sums = {name: sum(a[name].double() for a in answers) for name in answers[0]}
    method.server_pre_round(net, sums, None)  # type: ignore[arg-type]
    client = Client(1, 0, torch.Generator(), answers=answers[1])
    method.before_local(net, setup.client_data(1, "cpu"), client)
    expected = (answers[0]["correlation"] + answers[2]["correlation"]) / 2
    torch.testing.assert_close(net.tensor("others.correlation"), expected, atol=1e-5, rtol=1e-4)


def test_its_bytes_are_a_matrix_each_way(tmp_path: Path) -> None:
    """More than FedAvg: d^2 + 1 numbers up; down with the model and again before the training."""
    config = tiny_config("fedsc", federation__num_rounds=1)
    dim = config.method["projection_dim"]
    assert isinstance(dim, int)
    trainer = train(tiny_setup(config), tmp_path)
    clients = config.cohort_size
    up, down = trainer.ledger.up, trainer.ledger.down
    assert up["correlation"] + up["count"] == 4 * clients * (dim**2 + 1)
    assert down["correlations"] == 2 * 4 * clients * dim**2
    assert down["correlation_count"] == 2 * 4 * clients


@pytest.mark.parametrize(("clients", "share"), [(1, 1.0), (2, 0.2)])
def test_a_client_that_is_alone_in_a_round_has_the_plain_loss(clients: int, share: float) -> None:
    setup = tiny_setup(tiny_config("fedsc"))
    net, method = setup.make_net(), setup.method
    matrix = torch.eye(*net.tensor("correlations").shape)
    sums = {"correlation": clients * matrix, "count": torch.tensor([float(clients)])}
    method.server_pre_round(net, sums, None)  # type: ignore[arg-type]
    late = Client(0, 10**6, torch.Generator(), answers={"correlation": matrix})
    method.before_local(net, setup.client_data(0, "cpu"), late)
    assert float(net.tensor("others.own_share")) == pytest.approx(share)
    left = matrix if clients == 2 else torch.zeros_like(matrix)
    torch.testing.assert_close(net.tensor("others.correlation"), left)
