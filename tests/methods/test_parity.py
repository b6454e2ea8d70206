"""Four methods against plain training loops that were written from their papers alone.

With one client the harness is sequential training, so its curves of loss and k-NN accuracy must be
those of a loop that shares no code with it. Both start from the same encoder and read the same
images; heads, order and views are drawn apart, so only their distributions can agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import t as student
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

FALSE_ALARM = 0.01
"""Chance that any point of the four methods fails although harness and loop agree."""


class Measured(NamedTuple):
    """Curves of one run by name, each over the rounds at which it was measured."""

    curves: Mapping[str, Mapping[int, float]]
    config: RunConfig


class Verdict(NamedTuple):
    """Comparison of two curves over their rounds.

    Attributes:
        gaps: absolute difference of the means over seeds, (R,).
        allowed: the largest that chance explains.
        sd: of one run between seeds, pooled over rounds.
    """

    gaps: np.ndarray
    allowed: float
    sd: float


def compare(harness: np.ndarray, loop: np.ndarray, level: float) -> Verdict:
    """Compare two curves, each (seeds, rounds), at a level for each round.

    The difference of means over n seeds has the standard error s sqrt(2 / n), with the variance s^2
    pooled over sides and rounds. Rounds with the covariance matrix C have, by Satterthwaite's rule,
    2 (n - 1) tr(C)^2 / tr(C C) degrees of freedom: a run that is ahead stays ahead.
    """
    seeds = len(harness)
    residuals = np.concatenate([side - side.mean(axis=0) for side in (harness, loop)])
    free = 2 * (seeds - 1)
    covariance = residuals.T @ residuals / free  # (R, R)
    variance = float(np.trace(covariance)) / len(covariance)
    degrees = free * float(np.trace(covariance)) ** 2 / float((covariance**2).sum())
    error = math.sqrt(variance * 2 / seeds)
    gaps = np.abs(harness.mean(axis=0) - loop.mean(axis=0))
    return Verdict(gaps, float(student.ppf(1 - level / 2, degrees)) * error, math.sqrt(variance))


def verdicts(
    harness: Sequence[Measured], loops: Sequence[Mapping[str, Mapping[int, float]]]
) -> dict[str, Verdict]:
    """Compare all curves of one method, with Bonferroni's correction for every point of all four.

    A point of one curve fails by chance with FALSE_ALARM divided by the points of four methods.
    """
    curves = harness[0].curves
    points = len(METHODS) * sum(len(curve) for curve in curves.values())
    result = {}
    for name, curve in curves.items():
        rounds = list(curve)
        sides = (
            np.array([[one.curves[name][r] for r in rounds] for one in harness]),
            np.array([[one[name][r] for r in rounds] for one in loops]),
        )
        result[name] = compare(*sides, FALSE_ALARM / points)
    return result


@cache
def harness_runs(spec: str) -> tuple[Measured, ...]:
    return tuple(_harness_run(spec, seed) for seed in SEEDS)


def _harness_run(spec: str, seed: int) -> Measured:
    settings = {**SETTINGS, **FURTHER.get(spec, {})}
    with TemporaryDirectory() as folder:
        place: dict[str, Any] = {"store": Path(folder), "workers": 1, "device": "cpu"}
        result = run(spec, preset="demo", set=settings, seed=seed, **place)
        rounds = result.curve
    trained = rounds[rounds["loss"].notna()].reset_index()  # Orchestra first fills the memory only
    trained.index += 1
    assert len(trained) == settings["federation.num_rounds"]
    columns = {"loss": "loss", "knn": "metrics.knn_acc"}
    if spec == "orchestra":  # each of its losses has a curve of its own
        columns |= {part: f"parts.{part}" for part in ("clusters", "rotation")}
    curves: dict[str, dict[int, float]] = {}
    for name, column in columns.items():
        values = trained[column].dropna()
        curves[name] = dict(zip(values.index.tolist(), values.tolist(), strict=True))
    curves["knn"][len(trained)] = result.metrics["knn_acc"] or math.nan
    return Measured(curves, result.config)


@cache
def plain_runs(spec: str) -> tuple[Mapping[str, dict[int, float]], ...]:
    """Curves of the plain loop, one run per seed, with the settings of the harness."""
    return tuple(_plain_run(spec, measured) for measured in harness_runs(spec))


def _plain_run(spec: str, measured: Measured) -> Mapping[str, dict[int, float]]:
    config = measured.config
    setup = Experiment(config).setup
    encoder, names = setup.make_net()["encoder"], setup.needs.views
    accuracies: dict[int, float] = {}

    def view(index: int, images: Tensor, generator: torch.Generator) -> Tensor:
        return make_view(names[index], images, generator)

    def after_round(done: int) -> None:
        if done in measured.curves["knn"]:
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
    loop: Callable[..., plain_loops.Curve] = getattr(plain_loops, spec)
    hyperparameters = {
        name: getattr(setup.method, name)
        for name, parameter in signature(loop).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is Parameter.empty
    }
    images = setup.client_data(0, "cpu").images
    with single_thread():
        given = plain_loops.Given(encoder, images, view, plan, after_round)
        curve = loop(given, **hyperparameters)
    by_round = partial(enumerate, start=1)
    parts = {name: dict(by_round(values)) for name, values in curve.parts.items()}
    return {"loss": dict(by_round(curve.losses)), "knn": accuracies, **parts}


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
def test_the_harness_learns_as_a_plain_loop_does(spec: str) -> None:
    measured, loops = harness_runs(spec), plain_runs(spec)
    found = verdicts(measured, loops)
    for name, verdict in found.items():
        assert (verdict.gaps <= verdict.allowed).all(), (name, verdict)

    # Both sides learn: what is minimised falls under every seed.
    for runs in ([one.curves for one in measured], loops):
        assert all(one["loss"][1] > one["loss"][ROUNDS] for one in runs)
