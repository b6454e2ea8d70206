"""Orchestra in whole rounds: round 0, uploads, clients of unusual size, ablations."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.bench.method import RoundPlan
from fedbench.bench.nn.memory import Memory
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.setup import Setup

CPU = torch.device("cpu")


def setup_of(shares: list[list[int]] | None = None, **values: Any) -> Setup:
    given = {"method__global_steps": 20, "method__num_global_clusters": 6, **values}
    return tiny_setup(tiny_config("orchestra", **given), shares=shares)


def run_client(
    runner: ClientRunner, setup: Setup, client_id: int, round_index: int, epochs: int
) -> tuple[Trained, Tensor]:
    net = setup.make_net()
    server = setup.layout(net).bind(net).server.data
    out = torch.zeros(runner.layout.upload_size)
    return runner.run(Task(client_id, round_index, RoundPlan(epochs)), server, out), out


def test_round_0_moves_the_centroids_only(tmp_path: Path) -> None:
    setup = setup_of(model__norm="batch")
    trainer = train(setup, tmp_path, rounds=1)
    slots = {slot.name: slice(slot.start, slot.stop) for slot in trainer.layout.server}
    changed = {
        name
        for name, span in slots.items()
        if not torch.equal(trainer.vector[span], trainer.initial[span])
    }
    assert changed == {"centroids"}
    assert trainer.history[0].loss is None
    assert trainer.history[0].bytes_up > 0
    assert trainer.total_rounds == setup.config.federation.num_rounds + 1


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_private_rows_depend_on_one_image_each_and_on_the_received_net(
    norm: str, tmp_path: Path
) -> None:
    setup = setup_of(model__norm=norm, method__representations="private", client__lr=0.1)
    rows = []
    for changed in (False, True):
        images = np.array(setup.images)
        images[setup.partition.client(0)[3]] ^= np.uint8(255 * changed)
        runner = ClientRunner(dataclasses.replace(setup, images=images), CPU, tmp_path)
        run_client(runner, setup, 0, 1, epochs=2)
        rows.append(Memory.of(runner.binding.net).valid())
    assert len(rows[0]) == len(setup.partition.client(0))
    moved = (rows[0] - rows[1]).abs().amax(dim=1)
    assert moved[3] > 1e-3
    assert float(moved.sum() - moved[3]) == 0


@pytest.mark.parametrize(
    ("representations", "smallest", "shares"),
    [("private", None, 8), ("random", None, 8), ("memory", 1, 2), ("centroids", 1, 1)],
)
def test_what_goes_up(
    representations: str, smallest: int | None, shares: int, tmp_path: Path
) -> None:
    """A client with two images sends L centroids in any case, two rows, or one centroid."""
    setup = setup_of([[0, 1], list(range(2, 40))], method__representations=representations)
    trained, _ = run_client(ClientRunner(setup, CPU, tmp_path), setup, 0, 0, epochs=0)
    sent = trained.extras["memory" if representations == "memory" else "centroids"]
    assert len(sent) == shares
    torch.testing.assert_close(sent.norm(dim=1), torch.ones(shares))
    assert ("min_cluster_size" in trained.extras) is (smallest is not None)
    trainer = train(setup, tmp_path / "run")
    assert (trainer.ledger.smallest is None) is (smallest is None)
    assert not torch.equal(trainer.vector, trainer.initial)


def test_random_centroids_do_not_depend_on_the_data(tmp_path: Path) -> None:
    setup = setup_of(method__representations="random")
    other = dataclasses.replace(setup, images=255 - setup.images)
    a, b = (
        run_client(ClientRunner(variant, CPU, tmp_path), variant, 0, 1, epochs=1)[0].extras[
            "centroids"
        ]
        for variant in (setup, other)
    )
    assert torch.equal(a, b)
