"""All that is measured of a run's encoder: the label-free objective and the protocols."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.evaluation.angles import angle_summary, both_angles
from fedbench.bench.evaluation.collapse import judge, probe_images
from fedbench.bench.evaluation.features import NonFiniteFeaturesError, extract
from fedbench.bench.evaluation.finetune import finetune_accuracies
from fedbench.bench.evaluation.knn import knn_accuracy
from fedbench.bench.evaluation.linear_paper import linear_probe_paper
from fedbench.bench.evaluation.objective import ClientObjective, client_statistics, objective
from fedbench.bench.evaluation.probes import probe_accuracies
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.seeding import numpy_generator, single_thread
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.setup import Setup

SelectClient = Callable[[int], None]
"""Loads one client's personal tensors into the net."""


def evaluate(
    setup: Setup,
    binding: Binding,
    select_client: SelectClient,
    protocols: Sequence[str],
    device: torch.device,
    *,
    one_encoder: bool = False,
) -> dict[str, float]:
    """Metrics by name: `objective align unif`, the protocols' accuracies, the collapse detector.

    Where encoders differ between clients, each metric is the mean over at most
    `evaluation.num_clients` clients, drawn once per run, and `<metric>_std` its standard deviation
    over them; medians of angles are those of the pairs of all these encoders together. Nothing is
    returned for an encoder whose features are not finite.

    Args:
        setup: the run.
        binding: the net with the server's tensors in it.
        select_client: called before a client's own encoder is looked at.
        protocols: any of `evaluation.protocols`; `mlp` has `linear` beside it, and `local` adds
            their accuracies on clients' own test images; without any, no label is read. The
            method's `Needs.encoders` go through `knn` and `linear` too: `target_knn_acc`, ….
        device: where the net is.
        one_encoder: the net as it is stands for all clients, as before the first round.
    """
    binding.net.eval()
    with single_thread(), suppress(NonFiniteFeaturesError):
        if one_encoder or not setup.evaluate_on_clients:
            holders = np.flatnonzero(setup.dealt.sizes)
            result = _objective(setup, _statistics(setup, binding, holders, device))
            return _finite({**result, **_protocols(setup, binding, protocols, device, [])})
        rows: list[Mapping[str, float]] = []
        pairs: list[Mapping[str, Tensor]] = []
        for k in evaluated_clients(setup):
            select_client(k)
            own = _objective(setup, _statistics(setup, binding, np.array([k]), device))
            rows.append({**own, **_protocols(setup, binding, protocols, device, pairs, k)})
        return _finite({**_over_clients(rows), **angle_summary(pairs)})
    return {}


def _statistics(
    setup: Setup, binding: Binding, clients: np.ndarray, device: torch.device
) -> list[ClientObjective]:
    config, net, method = setup.config.evaluation, binding.net, setup.method
    embed = method.embed if config.objective_on == "projector" else method.encode
    return client_statistics(
        lambda x: embed(net, x),
        ((int(k), setup.dealt.client(int(k)).astype(np.int64)) for k in clients),
        setup.images,
        view=config.objective_view,
        seed=setup.config.seed,
        device=device,
        temperature=config.objective_temperature,
        max_examples=config.objective_max_examples,
    )


def _objective(setup: Setup, statistics: list[ClientObjective]) -> dict[str, float]:
    score = objective(statistics, setup.config.evaluation.objective_weight)
    found = {"objective": score.value, "align": score.align, "unif": score.unif}
    if score.unif_without_self is not None:
        found["unif_without_self"] = score.unif_without_self
    return found


def _protocols(
    setup: Setup,
    binding: Binding,
    protocols: Sequence[str],
    device: torch.device,
    pairs: list[Mapping[str, Tensor]],
    client_id: int | None = None,
) -> dict[str, float]:
    """Metrics of one encoder; its angles between classes join `pairs`."""
    dataset, net = setup.dataset, binding.net

    def encode(images: Tensor) -> Tensor:
        return setup.method.encode(net, images)

    collapse = judge(setup, binding, probe_images(setup), device)
    found = {} if collapse is None else {k: float(v) for k, v in collapse._asdict().items()}
    if not protocols:
        return found
    test = extract(encode, dataset.test_images, device=device)
    if not all_finite(test):
        return found
    probed, classes = setup.probed, dataset.num_classes
    labels = dataset.train_labels[probed]
    if "angles" in protocols:
        pairs.append(both_angles(test, dataset.test_labels, classes))
        found |= angle_summary(pairs[-1:])
    if {"knn", "linear", "mlp", "local"} & set(protocols):
        train = extract(encode, setup.images[probed], device=device)
        if not all_finite(train):
            return found
        found |= _judged(setup, train, test, protocols, device, client_id)
        found |= _beside(setup, binding, protocols, device)
    if "linear-paper" in protocols:
        found["linear_paper_acc"] = linear_probe_paper(
            encode,
            setup.images[probed],
            labels,
            dataset.test_images,
            dataset.test_labels,
            num_classes=classes,
            seed=setup.config.seed,
            device=device,
        )
    if "finetune" in protocols:
        found |= finetune_accuracies(setup, net, device)
    return found


def _judged(
    setup: Setup,
    train: Tensor,
    test: Tensor,
    protocols: Sequence[str],
    device: torch.device,
    client_id: int | None = None,
) -> dict[str, float]:
    """What k-NN and classifiers on frozen features make of an encoder."""
    config, dataset, found = setup.config.evaluation, setup.dataset, dict[str, float]()
    labels = dataset.train_labels[setup.probed]
    if "knn" in protocols:
        found["knn_acc"] = knn_accuracy(
            train,
            labels,
            test,
            dataset.test_labels,
            num_classes=dataset.num_classes,
            neighbours=config.knn_neighbours,
            temperature=config.knn_temperature,
        )
    if {"linear", "mlp", "local"} & set(protocols):
        found |= probe_accuracies(setup, train, labels, test, protocols, device, client_id)
    return found


def _beside(
    setup: Setup, binding: Binding, protocols: Sequence[str], device: torch.device
) -> dict[str, float]:
    """k-NN and linear probe of the encoders that the method names beside its own."""
    needs, found = setup.method.needs(), dict[str, float]()
    view = "unit" if needs.pixels == "unit" else "plain"
    given = setup.images[setup.probed], setup.dataset.test_images
    wanted = [each for each in ("knn", "linear") if each in protocols]
    for prefix, part in needs.encoders.items() if wanted else ():

        def encode(images: Tensor, part: str = part) -> Tensor:
            return binding.net(images, part)  # type: ignore[no-any-return]

        train, test = (extract(encode, images, device=device, view=view) for images in given)
        if all_finite(train) and all_finite(test):
            judged = _judged(setup, train, test, wanted, device)
            found |= {f"{prefix}_{name}": value for name, value in judged.items()}
    return found


def evaluated_clients(setup: Setup) -> list[int]:
    """The clients whose own encoders are looked at: at most `evaluation.num_clients`."""
    holders = np.flatnonzero(setup.dealt.sizes)
    count = min(setup.config.evaluation.num_clients, len(holders))
    rng = numpy_generator(setup.config.seed, "evaluated-clients")
    chosen: list[int] = np.sort(rng.choice(holders, count, replace=False)).tolist()
    return chosen


def _over_clients(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        found[name] = float(np.mean(values))
        found[f"{name}_std"] = float(np.std(values))
    return found


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
