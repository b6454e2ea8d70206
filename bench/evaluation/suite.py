"""Metrics of a run's encoder: the label-free objective, the protocols, the collapse detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.evaluation.angles import angle_summary, both_angles
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.features import Images, NonFiniteFeaturesError, extract
from fedbench.bench.evaluation.finetune import finetune_accuracies
from fedbench.bench.evaluation.knn import knn_accuracy
from fedbench.bench.evaluation.linear_paper import linear_probe_paper
from fedbench.bench.evaluation.objective import client_statistics, objective, separation
from fedbench.bench.evaluation.objectives.noise import GaussianNoise
from fedbench.bench.evaluation.objectives.registry import objectives
from fedbench.bench.evaluation.objectives.tally import Tally
from fedbench.bench.evaluation.probes import probe_accuracies
from fedbench.bench.system.compute import all_finite, resident
from fedbench.bench.system.seeding import numpy_generator, single_thread
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.setup import Setup

SelectClient = Callable[[int], None]
"""Loads one client's personal tensors into the net."""


class _Splits:
    """Images that protocols learn from and are scored on; a GPU gets them once."""

    def __init__(self, setup: Setup, device: torch.device) -> None:
        self._setup, self._device = setup, device

    @cached_property
    def train(self) -> Images:
        """Return uint8 (N, C, H, W), those of `Setup.probed`."""
        return resident(self._setup.images[self._setup.probed], self._device)

    @cached_property
    def test(self) -> Images:
        """Return uint8 (M, C, H, W), all test images."""
        return resident(self._setup.dataset.test_images, self._device)


def evaluate(
    setup: Setup,
    binding: Binding,
    select_client: SelectClient,
    protocols: Sequence[str],
    device: torch.device,
    *,
    one_encoder: bool = False,
    rounds: int = 0,
) -> dict[str, float]:
    """Metrics by name: `objective align unif`, the protocols' accuracies, the collapse detector.

    Where encoders differ between clients, each metric is the mean over at most
    `evaluation.num_clients` clients, drawn once per run, and `<metric>_std` its standard deviation
    over them; means and medians of angles are over the pairs of all these encoders together. An
    encoder whose features are not finite has no metrics.

    Args:
        setup: the run.
        binding: the net with the server's tensors in it.
        select_client: called before a client's personal encoder is evaluated.
        protocols: any of `evaluation.protocols`; `mlp` includes `linear`, and `local` adds the
            accuracies of both on each client's share of the test images; without any, no label is
            read. The method's `Needs.encoders` go through `knn` and `linear` too: `target_knn_acc`.
        device: where the net is.
        one_encoder: evaluate the net as it is for all clients, as before the first round.
        rounds: that the encoder has trained, so that noise on sums differs between them.
    """
    binding.net.eval()
    splits = _Splits(setup, device)
    with single_thread(), suppress(NonFiniteFeaturesError):
        if one_encoder or not setup.evaluate_on_clients:
            metrics = _objective(setup, binding, scored_clients(setup), device, rounds)
            return _finite({**metrics, **_protocols(setup, binding, protocols, splits, device, [])})
        rows: list[Mapping[str, float]] = []
        pairs: list[Mapping[str, Tensor]] = []
        for k in evaluated_clients(setup):
            select_client(k)
            metrics = _objective(setup, binding, [k], device, rounds)
            scores = _protocols(setup, binding, protocols, splits, device, pairs, k)
            rows.append({**metrics, **scores})
        return _finite({**_over_clients(rows), **angle_summary(pairs)})
    return {}


def _objective(
    setup: Setup, binding: Binding, clients: Sequence[int], device: torch.device, rounds: int
) -> dict[str, float]:
    """Objective of the net over some clients' data, and its parts."""
    config, net, method = setup.config.evaluation, binding.net, setup.method
    embed = method.embed if config.objective_on == "projector" else method.encode
    multiplier, seed = config.objective_noise, setup.config.seed
    noise = None if multiplier is None else GaussianNoise(multiplier, seed, rounds, *clients[:1])
    tally = Tally(objectives().values(), len(clients), noise)
    statistics = client_statistics(
        lambda x: embed(net, x),
        ((k, setup.client_partition.client(k).astype(np.int64)) for k in clients),
        setup.images,
        view=config.objective_view,
        seed=seed,
        device=device,
        temperature=config.objective_temperature,
        max_examples=config.objective_max_examples,
        tally=tally,
    )
    score = objective(statistics, config.objective_weight)
    metrics = {
        "objective": score.value,
        "align": score.align,
        "unif": score.unif,
        "unif_without_self": score.unif_without_self,
        "rho": score.rho,
        "delta_views": score.delta,
        "sep": score.sep,
        **tally.values(),
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _protocols(
    setup: Setup,
    binding: Binding,
    protocols: Sequence[str],
    splits: _Splits,
    device: torch.device,
    pairs: list[Mapping[str, Tensor]],
    client_id: int | None = None,
) -> dict[str, float]:
    """Metrics of one encoder; its angles between classes are appended to `pairs`."""
    dataset, net = setup.dataset, binding.net

    def encode(images: Tensor) -> Tensor:
        return setup.method.encode(net, images)

    collapse = CollapseMonitor(setup, device)(binding)
    metrics = {} if collapse is None else {k: float(v) for k, v in collapse._asdict().items()}
    if not protocols:
        return metrics
    test = extract(encode, splits.test, device=device)
    if not all_finite(test):
        return metrics
    labels, classes = dataset.train_labels[setup.probed], dataset.num_classes
    if "angles" in protocols:
        pairs.append(both_angles(test, dataset.test_labels, classes))
        metrics |= angle_summary(pairs[-1:])
    if {"knn", "linear", "mlp", "local"} & set(protocols):
        train = extract(encode, splits.train, device=device)
        if not all_finite(train):
            return metrics
        metrics |= _on_features(setup, train, test, protocols, device, client_id)
        metrics |= _further_encoders(setup, binding, protocols, splits, device)
    if "linear-paper" in protocols:
        metrics["linear_paper_acc"] = linear_probe_paper(
            encode,
            splits.train,
            labels,
            splits.test,
            dataset.test_labels,
            num_classes=classes,
            seed=setup.config.seed,
            device=device,
        )
    if "finetune" in protocols:
        metrics |= finetune_accuracies(setup, net, device)
    return metrics


def _on_features(
    setup: Setup,
    train: Tensor,
    test: Tensor,
    protocols: Sequence[str],
    device: torch.device,
    client_id: int | None = None,
) -> dict[str, float]:
    """Accuracies of k-NN and of classifiers on the features of a frozen encoder."""
    config, dataset, metrics = setup.config.evaluation, setup.dataset, dict[str, float]()
    labels = dataset.train_labels[setup.probed]
    if "knn" in protocols:
        metrics["knn_acc"] = knn_accuracy(
            train,
            labels,
            test,
            dataset.test_labels,
            num_classes=dataset.num_classes,
            neighbours=config.knn_neighbours,
            temperature=config.knn_temperature,
        )
    if {"linear", "mlp", "local"} & set(protocols):
        metrics |= probe_accuracies(setup, train, labels, test, protocols, device, client_id)
    return metrics


def _further_encoders(
    setup: Setup,
    binding: Binding,
    protocols: Sequence[str],
    splits: _Splits,
    device: torch.device,
) -> dict[str, float]:
    """k-NN and linear probe of the encoders in the method's `Needs.encoders`."""
    needs, metrics = setup.method.needs(), dict[str, float]()
    view = "unit" if needs.pixels == "unit" else "plain"
    chosen = [name for name in ("knn", "linear") if name in protocols]
    for prefix, part in needs.encoders.items() if chosen else ():

        def encode(images: Tensor, part: str = part) -> Tensor:
            return binding.net(images, part)  # type: ignore[no-any-return]

        train, test = (
            extract(encode, images, device=device, view=view)
            for images in (splits.train, splits.test)
        )
        if all_finite(train) and all_finite(test):
            scores = _on_features(setup, train, test, chosen, device)
            metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
    return metrics


def evaluated_clients(setup: Setup) -> list[int]:
    """Clients whose encoders are evaluated: at most `evaluation.num_clients`, drawn once."""
    return _drawn(setup, setup.config.evaluation.num_clients, "evaluated-clients")


def scored_clients(setup: Setup) -> list[int]:
    """Clients that the label-free scores of an encoder are made of, drawn once.

    Where encoders differ between clients `evaluation.num_clients` says of how many, so that the
    encoder before training is scored on all of them.
    """
    count = None if setup.evaluate_on_clients else setup.config.evaluation.objective_clients
    return _drawn(setup, count, "scored-clients")


def _drawn(setup: Setup, count: int | None, purpose: str) -> list[int]:
    """Clients with images, at most so many."""
    holders = np.flatnonzero(setup.client_partition.sizes)
    if count is None or count >= len(holders):
        return holders.tolist()
    rng = numpy_generator(setup.config.seed, purpose)
    return np.sort(rng.choice(holders, count, replace=False)).tolist()  # type: ignore[no-any-return]


def _over_clients(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean and standard deviation of each metric (divided by n) over the clients that have it."""
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        metrics[name] = float(np.mean(values))
        metrics[f"{name}_std"] = float(np.std(values))
    if "rho" in metrics:  # a ratio of means, as for one encoder
        metrics.pop("sep", None)
        sep = separation(metrics["rho"], metrics["delta_views"])
        metrics |= {} if sep is None else {"sep": sep}
    return metrics


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
