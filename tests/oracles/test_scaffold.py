"""SCAFFOLD against a loop written from its paper, with clients that make no step.

Source: Karimireddy et al. 2020, https://arxiv.org/abs/1910.06378, algorithm 1 with option II. Each
client k of the cohort S makes steps w <- w - lr (g_k(w) - c_k + c) from the server's weights x, and

    c_k+ = c_k - c + (x - w) / (steps lr),    c <- c + 1/K sum over S of (c_k+ - c_k),

K all clients, each of the same weight. A client without a step keeps c_k and adds nothing to the
sum, but is one of the K. Since all start at 0, c is the mean of the c_k of all clients at any time.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, DataSpec, Loss, Method, Needs, Net
from fedbench.bench.nn import Backbone
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer

Matrix = npt.NDArray[np.float64]

LR, EPOCHS, ROUNDS = 0.05, 3, 3
PREDICTED = (10, 19, 28, 37)
"""Pixels whose squares the linear net below predicts from all 64."""

SHARES: Sequence[Sequence[int]] = (range(6), range(6, 20), [20], range(21, 51), [51], range(52, 62))
WITHOUT_IDLE: Sequence[Sequence[int]] = tuple(s for s in SHARES if len(s) > 1)  # as it needs


class Squares(Method):
    """A linear net that predicts squares of some pixels from all; one matrix, no bias."""

    def needs(self) -> Needs:
        return Needs(views=("plain",), min_batch=2)

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        return Net({"encoder": nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False))})

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        (images,) = batch.views
        features = net(images, "encoder")
        targets = images.flatten(1)[:, PREDICTED] ** 2
        return Loss((features - targets).square().sum(dim=1).mean() / 2, features=(features,))


def setup_of(shares: Sequence[Sequence[int]], **values: Any) -> Setup:
    """Set up runs of full batches and plain SGD."""
    setup = tiny_setup(
        tiny_config(
            "simclr+scaffold",
            data__num_clients=len(shares),
            client__lr=LR,
            client__momentum=0.0,
            client__weight_decay=0.0,
            client__batch_size=64,
            client__keep_last_batch=True,
            client__local_epochs=EPOCHS,
            federation__num_rounds=ROUNDS,
            **values,
        ),
        shares=shares,
    )
    return dataclasses.replace(setup, method=setup.method.model_copy(update={"base": Squares()}))


def gradient(setup: Setup, client_id: int, weights: Matrix) -> Matrix:
    """Return the gradient of a client's loss on all its images, (4, 64)."""
    pixels = np.asarray(setup.images[setup.partition.client(client_id)], dtype=np.float64)
    rows = pixels.reshape(len(pixels), 64) / 255 * 2 - 1
    errors = rows @ weights.T - rows[:, PREDICTED] ** 2
    return errors.T @ rows / len(rows)


def controls(
    setup: Setup, cohorts: Sequence[Sequence[int]], starts: Sequence[Matrix]
) -> tuple[Matrix, list[Matrix]]:
    """Run the paper's rounds from the server's weights of each; return c and every c_k."""
    count = setup.partition.num_clients
    common, own = np.zeros((4, 64)), [np.zeros((4, 64)) for _ in range(count)]
    for cohort, start in zip(cohorts, starts, strict=True):
        total = np.zeros((4, 64))
        for k in cohort:
            if setup.partition.sizes[k] < 2:
                continue
            weights = start.copy()
            for _ in range(EPOCHS):
                weights -= LR * (gradient(setup, k, weights) - own[k] + common)
            new = own[k] - common + (start - weights) / (EPOCHS * LR)
            total += new - own[k]
            own[k] = new
        common = common + total / count
    return common, own


def held(trainer: Trainer, client_id: int) -> Matrix:
    """Return a client's control variate."""
    store = PersonalStore(trainer.folder / "clients")
    latest = store.latest(client_id, trainer.personal_rounds, trainer.first_personal)
    (slot,) = [s for s in trainer.layout.personal if s.name == "scaffold.own"]
    return latest[slot.start : slot.stop].double().numpy()


def common(trainer: Trainer) -> Matrix:
    """Return the server's control variate."""
    return trainer.binding.net.tensor("scaffold.control").detach().double().numpy().flatten()


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("shares", [SHARES, WITHOUT_IDLE], ids=["with-idle", "all-step"])
def test_control_variates_are_the_papers(
    tmp_path: Path, shares: Sequence[Sequence[int]], participation: float, weighting: str
) -> None:
    """Sizes from 6 to 30 images: a mean weighted by them would be another."""
    setup = setup_of(shares, federation__participation=participation, server__weighting=weighting)
    first = next(iter(setup.make_net().parameters())).detach().flatten()
    passed: list[torch.Tensor] = []
    trainer = train(setup, tmp_path, passed=passed)
    (slot,) = [s for s in trainer.layout.server if s.name == "encoder.1.weight"]
    vectors = [first, *(vector[slot.start : slot.stop] for vector in passed[:-1])]
    starts = [vector.double().numpy().reshape(4, 64) for vector in vectors]
    cohorts = [trainer.setup.cohort(index) for index in range(ROUNDS)]
    expected, own = controls(setup, cohorts, starts)
    for k, value in enumerate(own):
        np.testing.assert_allclose(held(trainer, k), value.flatten(), atol=1e-4)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(common(trainer), expected.flatten(), atol=1e-4)
