"""Classifiers on frozen features: for everybody's test images, and for each client's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.data.partition import deal_test
from fedbench.bench.evaluation.linear import linear_probe
from fedbench.bench.evaluation.mlp import mlp_predictions
from fedbench.bench.setup import Setup


def probe_accuracies(
    setup: Setup,
    train: Tensor,
    train_labels: NDArray[np.int64],
    test: Tensor,
    protocols: Sequence[str],
    device: torch.device,
    client_id: int | None = None,
) -> dict[str, float]:
    """Accuracies of the linear probe, and with `mlp` of the perceptron beside it.

    Both are trained on the pooled labels, or on a class-balanced share of them: `linear_acc`,
    `linear_10pct_acc`, `mlp_acc`, … With `local` each also has the accuracy on clients' own shares
    of the test set, dealt in their class proportions: `linear_local_acc` and so on, the client's
    where the encoder is one client's, else the mean over clients, with `linear_local_acc_std`.

    Source: Arora 2023, pFedAE, tables 4.1 and 4.2 (global and local accuracy; 1 % and 10 % of the
    labels with the encoder frozen).

    Args:
        setup: the run.
        train: (N, D) features of training images.
        train_labels: (N,) their classes.
        test: (M, D) features of all test images.
        protocols: those of the run; only `mlp` and `local` matter here.
        device: where perceptrons are trained.
        client_id: whose encoder it is; None = everybody's.
    """
    dataset, config, seed = setup.dataset, setup.config.evaluation, setup.config.seed
    truth = torch.from_numpy(np.array(dataset.test_labels, np.int64))
    shares = _test_shares(setup, client_id) if "local" in protocols else {}
    found: dict[str, float] = {}
    for suffix, rows in _subsets(train_labels, config.probe_fractions, dataset.num_classes, seed):
        x, y = train[rows], train_labels[rows]
        linear = linear_probe(
            x, y, test, truth, num_classes=dataset.num_classes, l2=config.linear_l2
        )
        found[f"linear{suffix}_train_acc"] = linear.train_accuracy
        predictions = {"linear": linear.predicted}
        if "mlp" in protocols:
            predictions["mlp"] = mlp_predictions(
                x,
                y,
                test,
                num_classes=dataset.num_classes,
                seed=seed,
                device=device,
                hidden_dim=config.mlp_hidden_dim,
                epochs=config.mlp_epochs,
                lr=config.mlp_lr,
            )
        for name, predicted in predictions.items():
            found |= _scores(f"{name}{suffix}", (predicted == truth).double(), shares, client_id)
    return found


def _scores(
    name: str, hits: Tensor, shares: Mapping[int, Tensor], client_id: int | None
) -> dict[str, float]:
    found = {f"{name}_acc": hits.mean().item()}
    local = [hits[rows].mean().item() for rows in shares.values()]
    if local:
        found[f"{name}_local_acc"] = float(np.mean(local))
        if client_id is None:
            found[f"{name}_local_acc_std"] = float(np.std(local))
    return found


def _test_shares(setup: Setup, client_id: int | None) -> dict[int, Tensor]:
    """Per client the positions of its test images; clients that got none are left out."""
    dataset, dealt = setup.dataset, setup.dealt
    test = deal_test(dataset.test_labels, dealt, dataset.train_labels, setup.config.seed)
    clients = range(test.num_clients) if client_id is None else [client_id]
    rows = {k: torch.from_numpy(test.client(k).astype(np.int64)) for k in clients}
    return {k: each for k, each in rows.items() if len(each)}


def _subsets(
    labels: NDArray[np.int64], fractions: Sequence[float], num_classes: int, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Name and rows of each share of the labels: at least as many examples as there are classes."""
    for fraction in fractions:
        size = min(len(labels), max(num_classes, round(fraction * len(labels))))
        if fraction == 1:
            yield "", torch.arange(len(labels))
        else:
            chosen = balanced_subset(labels, size, f"probe-labels-{seed}")
            yield f"_{fraction * 100:g}pct", torch.from_numpy(chosen)
