"""Metrics of a run's encoder: the label-free objective, the protocols, the collapse detector.

Before training, the statistics of batch norms are filled first. Those that a net starts with (mean
0, variance 1) describe no images: features lie in a narrow cone, and filling them alone raises
every score. Gains are measured from the same weights with filled statistics.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import ceil

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.features import NonFiniteFeaturesError, take_images
from fedbench.bench.evaluation.objective import ClientScores, client_statistics, objective
from fedbench.bench.evaluation.objectives.accumulator import Accumulator, GaussianNoise
from fedbench.bench.evaluation.objectives.base import separation
from fedbench.bench.evaluation.objectives.scores import scored
from fedbench.bench.evaluation.probes import Encoded, OnStep, Splits, angle_summary
from fedbench.bench.evaluation.protocols import probes
from fedbench.bench.evaluation.transfer import PROTOCOLS as TRANSFERRED
from fedbench.bench.evaluation.transfer import metric_prefix
from fedbench.bench.method.base import run_parts
from fedbench.bench.method.ids import row_id
from fedbench.bench.method.net import Net
from fedbench.bench.system.errors import expect
from fedbench.bench.system.seeding import generator, numpy_generator, scope, single_thread
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.setup import Setup

Ask = Callable[[Binding, Sequence[int], Accumulator], list[ClientScores]]
"""Asks clients for their scores, and adds their sums; None = from the images of `Setup`."""

_MAX_IMAGES = 2048
_BATCH_SIZE = 256


def fill_statistics(setup: Setup, net: Net, device: torch.device) -> None:
    """Set the statistics of all batch norms that features and projections pass, in place.

    They become the mean over batches of the statistics of one view (`evaluation.objective_view`) of
    each of at most 2,048 training images, which follow from the seed, so that methods with the same
    encoder start from the same one; frozen norms and encoders that start from given weights keep
    theirs. Weights and the net's mode stay as they are; without a batch norm, and with fewer than
    two images, nothing changes. No label is read.
    """
    encoders = [net[part] for part in ("encoder", *setup.needs.encoders.values())]
    started = encoders if setup.backbone.start is not None else []
    given = {m for part in started for m in part.modules() if isinstance(m, _BatchNorm)}
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m not in given]
    seed, count = setup.config.seed, min(_MAX_IMAGES, len(setup.images))
    if not norms or count < 2:
        return
    rng = numpy_generator(seed, "statistics")
    chosen = np.sort(rng.choice(len(setup.images), count, replace=False))
    draws = generator(seed, "statistics-views")
    modes = {module: module.training for module in net.modules()}
    momenta = [norm.momentum for norm in norms]
    # More threads round sums otherwise, and gains are differences to what this gives.
    with single_thread(), torch.no_grad():
        net.train()
        for norm in given:
            norm.eval()
        for done, batch in enumerate(np.array_split(chosen, ceil(count / _BATCH_SIZE))):
            for norm in norms:
                norm.momentum = 1 / (done + 1)  # the mean over batches so far
            raw = take_images(setup.images, batch).to(device)
            views = make_view(setup.config.evaluation.objective_view, raw, draws)
            setup.method.embed(net, views)
            for part in setup.needs.encoders.values():
                run_parts(setup.method, net, [part], views)
    for module, mode in modes.items():
        module.training = mode
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def evaluate(
    setup: Setup,
    binding: Binding,
    select_client: Callable[[int], None],
    protocols: Sequence[str],
    device: torch.device,
    *,
    one_encoder: bool = False,
    trained: Container[int] = (),
    rounds: int = 0,
    on_step: OnStep = lambda *_: None,
    ask: Ask | None = None,
) -> dict[str, float]:
    """Metrics by name: `objective align unif`, the protocols' accuracies, the collapse detector.

    Where encoders differ between clients, each metric is the mean over at most
    `evaluation.num_clients` clients, drawn once per run, and `<metric>_std` its standard deviation
    over them. Two are other: `sep` is computed of the mean `rho` and `delta_views`, and means and
    medians of angles are over the pairs of all these encoders together. An encoder whose features
    are not finite has no metrics. `mlp` includes `linear`, and `local` adds the accuracies of both
    on each client's share of the test images; without any protocol, no label is read. The method's
    `Needs.encoders` go through `knn` and `linear` too: `target_knn_acc`. On each set of
    `Setup.transfer` the encoder goes through `knn`, `linear` and `few-shot`:
    `transfer_fashion_mnist_knn_acc`.

    `select_client` is called before a client's personal encoder is evaluated; with `one_encoder`,
    as before the first round, the net is evaluated as it is for all clients. Clients that no cohort
    has drawn are not `trained` and do not count beside those that are. `rounds` that the encoder
    has trained make noise on sums differ between them. `on_step` follows the steps of long probes.
    """
    binding.net.eval()
    splits = Splits(setup.dataset, setup.images, setup.probed, setup.spec.image_shape[0], device)
    draws = scope(setup.config.seed, "evaluation-global", rounds)
    with draws, single_thread(), suppress(NonFiniteFeaturesError):
        if one_encoder or not setup.evaluate_on_clients:
            metrics = _objective(setup, binding, scored_clients(setup), device, rounds, ask)
            return _finite(
                {**metrics, **_protocols(setup, binding, protocols, splits, [], on_step)}
            )
        rows: list[Mapping[str, float]] = []
        pairs: list[Mapping[str, Tensor]] = []
        for k in evaluated_clients(setup, trained):
            select_client(k)
            metrics = _objective(setup, binding, [k], device, rounds, ask)
            scores = _protocols(setup, binding, protocols, splits, pairs, on_step, k)
            rows.append({**metrics, **scores})
        return _finite({**_over_clients(rows), **angle_summary(pairs)})
    return {}


def _objective(
    setup: Setup,
    binding: Binding,
    clients: Sequence[int],
    device: torch.device,
    rounds: int,
    ask: Ask | None,
) -> dict[str, float]:
    """Label-free scores of the net over some clients' data."""
    config, net, method = setup.config.evaluation, binding.net, setup.method
    embed = method.embed if config.objective_on == "projector" else method.encode
    noise = None
    if config.objective_noise is not None:
        # Equal draws in two runs would cancel in the difference of their sums.
        run = int(row_id(setup.config, setup.dataset.revision), 16)
        index = (run, rounds, *clients[:1])
        noise = GaussianNoise(config.objective_noise, setup.config.seed, *index)
    chosen = scored(config.objectives, noise=noise is not None)
    accumulator = Accumulator(chosen, len(clients), noise)
    if ask is not None:
        asked = ask(binding, clients, accumulator)
        return {**objective(asked, config.objective_weight), **accumulator.values()}
    statistics = client_statistics(
        partial(embed, net),
        ((k, setup.client_partition.client(k).astype(np.int64)) for k in clients),
        setup.images,
        setup.config,
        device,
        accumulator,
        partial(method.encode, net),
    )
    return {**objective(statistics, config.objective_weight), **accumulator.values()}


def _protocols(
    setup: Setup,
    binding: Binding,
    protocols: Sequence[str],
    splits: Splits,
    pairs: list[Mapping[str, Tensor]],
    on_step: OnStep,
    client_id: int | None = None,
) -> dict[str, float]:
    """Metrics of one encoder; its angles between classes are appended to `pairs`."""
    collapse = CollapseMonitor(setup, splits.device)(binding)
    metrics = {} if collapse is None else {k: float(v) for k, v in collapse._asdict().items()}
    for prefix, encoded, asked in _encoders(setup, binding.net, protocols, splits, client_id):
        encoded.on_step = on_step
        with suppress(NonFiniteFeaturesError):
            for probe in probes():
                if not set(asked).isdisjoint(probe.protocols):
                    values = expect(probe.measure(encoded, asked), Mapping, "measure()")
                    metrics |= {f"{prefix}{name}": float(value) for name, value in values.items()}
            if "angles" in asked:
                pairs.append(encoded.angles)
    return metrics


def _encoders(
    setup: Setup, net: Net, protocols: Sequence[str], splits: Splits, client_id: int | None
) -> Iterator[tuple[str, Encoded, Sequence[str]]]:
    """Yield what is probed: the start of its metrics' names, the encoder, and its protocols."""
    encode, device = partial(setup.method.encode, net), splits.device
    yield "", Encoded(setup, net, encode, splits, device, client_id), protocols
    transferred = [name for name in TRANSFERRED if name in protocols]
    for dataset in setup.transfer:
        labelled = np.flatnonzero(dataset.train_labels >= 0)
        images = Splits(dataset, dataset.train_images, labelled, splits.channels, device)
        yield metric_prefix(dataset), Encoded(setup, net, encode, images, device), transferred
    chosen = [name for name in ("knn", "linear") if name in protocols]
    for prefix, part in setup.needs.encoders.items():
        further = partial(run_parts, setup.method, net, [part])
        yield f"{prefix}_", Encoded(setup, net, further, splits, device), chosen


def evaluated_clients(setup: Setup, trained: Container[int]) -> list[int]:
    """Clients whose encoders are evaluated: at most `evaluation.num_clients`, drawn once.

    Of these, those that have `trained`; all if none has.
    """
    drawn = _drawn(setup, setup.config.evaluation.num_clients, "evaluated-clients")
    return [k for k in drawn if k in trained] or drawn


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
    if "rho" in metrics:  # the ratio of means that `bench.evaluation.objective` defines
        metrics.pop("sep", None)
        sep = separation(metrics["rho"], metrics["delta_views"])
        metrics |= {} if sep is None else {"sep": sep}
    return metrics


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
