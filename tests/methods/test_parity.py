"""Four methods against plain training loops that were written from their papers alone.

With one client the harness is sequential training, so its curves of loss and k-NN accuracy must be
those of a loop that shares no code with it. Both start from the same encoder and read the same
images; heads, order and views are drawn apart, so only their distributions can agree.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from fedbench import run
from fedbench.bench.config import RunConfig
from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import extract
from fedbench.bench.evaluation.probes import knn_accuracy
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.setup import Setup
from tests.methods import plain_loops

SEEDS = (0, 1, 2, 3, 4)  # with three, chance would explain gaps twice as large
ROUNDS = 28
IMAGES = 320  # ten batches of 32 in a round, 280 steps in all
SETTINGS: Mapping[str, Any] = {
    "data.num_clients": 1,
    "data.partition": "iid",
    "data.train_subset": IMAGES,
    "model.width": 8,
    "client.local_epochs": 1,
    "federation.participation": 1.0,
    "federation.num_rounds": ROUNDS,
    "evaluation.every": 4,
    "evaluation.protocols": ["knn"],
    "evaluation.untrained": False,
}
FURTHER: Mapping[str, Mapping[str, Any]] = {
    # One client sends 16 centroids, of about eight memories each, for the server's 8 clusters.
    "orchestra": {"method.num_local_clusters": 16, "method.num_global_clusters": 8}
}
METHODS = ("simclr", "simsiam", "byol", "orchestra")

CURVES = 10  # loss and k-NN of each, and two terms of Orchestra's loss

FALSE_ALARM = 0.01
"""Chance that any curve of the four methods fails although harness and loop agree."""

Curves = Mapping[str, Mapping[Any, float]]
"""Name -> number of rounds done -> value."""


def harness_run(spec: str, seed: int, folder: Path) -> tuple[Curves, RunConfig]:
    settings = {**SETTINGS, **FURTHER.get(spec, {})}
    result = run(
        spec, preset="demo", set=settings, seed=seed, store=folder, workers=1, device="cpu"
    )
    rounds = result.curve
    trained = rounds[rounds["loss"].notna()].reset_index()  # Orchestra first fills the memory only
    trained.index += 1
    assert len(trained) == ROUNDS
    columns = {"loss": "loss", "knn": "metrics.knn_acc"}
    if spec == "orchestra":  # each of its losses has a curve of its own
        columns |= {part: f"parts.{part}" for part in ("clusters", "rotation")}
    curves = {name: trained[column].dropna().to_dict() for name, column in columns.items()}
    curves["knn"][ROUNDS] = result.metrics["knn_acc"] or math.nan
    return curves, result.config


def plain_run(spec: str, config: RunConfig, rounds: Collection[int]) -> Curves:
    """Curves of the plain loop with the settings of the harness, k-NN after these rounds."""
    setup = Experiment(config).setup
    encoder, names = setup.make_net()["encoder"], setup.needs.views
    accuracies: dict[int, float] = {}

    def view(index: int, images: Tensor, generator: torch.Generator) -> Tensor:
        return make_view(names[index], images, generator)

    def after_round(done: int) -> None:
        if done in rounds:
            accuracies[done] = _knn(setup, encoder)

    client = config.client
    plan = plain_loops.Plan(
        rounds=ROUNDS,
        steps_per_round=IMAGES // client.batch_size,
        batch_size=client.batch_size,
        lr=client.lr,
        momentum=client.momentum,
        weight_decay=client.weight_decay,
        seed=config.seed,
    )
    loop: Callable[..., plain_loops.Curves] = getattr(plain_loops, spec)
    images = setup.client_data(0, "cpu").images
    with single_thread():
        given = plain_loops.Given(encoder, images, view, plan, after_round)
        curves = loop(given, setup.method)
    by_round = {name: dict(enumerate(values, 1)) for name, values in curves.items()}
    return {**by_round, "knn": accuracies}


def _knn(setup: Setup, encoder: nn.Module) -> float:
    dataset, evaluation = setup.dataset, setup.config.evaluation
    encoder.eval()
    return knn_accuracy(
        extract(encoder, setup.images[setup.probed], device="cpu"),
        dataset.train_labels[setup.probed],
        extract(encoder, dataset.test_images, device="cpu"),
        dataset.test_labels,
        num_classes=dataset.num_classes,
        neighbours=evaluation.knn_neighbours,
        temperature=evaluation.knn_temperature,
    )


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("spec", METHODS)
def test_the_harness_learns_as_a_plain_loop_does(spec: str, tmp_path: Path) -> None:
    """Means of curves over their rounds differ by no more than seeds do: a run ahead stays ahead.

    Both sides learn: what is minimised falls under every seed.
    """
    ours, theirs = [], []
    for seed in SEEDS:
        curves, config = harness_run(spec, seed, tmp_path)
        ours.append(curves)
        theirs.append(plain_run(spec, config, curves["knn"]))
    for name, curve in ours[0].items():
        sides = [
            [np.mean([one[name][index] for index in curve]) for one in side]
            for side in (ours, theirs)
        ]
        assert stats.ttest_ind(*sides).pvalue > FALSE_ALARM / CURVES, (name, sides)
    assert all(one["loss"][1] > one["loss"][ROUNDS] for one in (*ours, *theirs))
