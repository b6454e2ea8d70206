"""Classifiers on frozen features, scored on all test images and on each client's share of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.data.partition import make_test_partition
from fedbench.bench.evaluation.features import Labels, class_tensor
from fedbench.bench.evaluation.linear import linear_probe, standardisation
from fedbench.bench.evaluation.metrics import accuracy
from fedbench.bench.evaluation.sgd import run_sgd
from fedbench.bench.nn import optimizers
from fedbench.bench.nn.heads import mlp
from fedbench.bench.system import seeding
from fedbench.bench.training.setup import Setup

MLP = accuracy("mlp_acc", "MLP %", ("mlp_hidden_dim", "mlp_epochs", "mlp_lr"))


def probe_accuracies(
    setup: Setup,
    train: Tensor,
    train_labels: NDArray[np.int64],
    test: Tensor,
    protocols: Collection[str],
    device: torch.device,
    client_id: int | None = None,
) -> dict[str, float]:
    """Accuracies of the linear probe, and with `mlp` also of a perceptron.

    Both are trained on the pooled labels, or on a class-balanced share of them: `linear_acc`,
    `linear_10pct_acc`, `mlp_acc`, … With `local` both are also scored on the clients' shares of the
    test set, in the clients' class proportions: `linear_local_acc` and so on. That is the
    client's accuracy where the encoder is one client's, else the mean over clients, with
    `linear_local_acc_std`.

    Source: Arora 2023, pFedAE, tables 4.1 and 4.2 (global and local accuracy; 1 % and 10 % of the
    labels with the encoder frozen).

    Args:
        setup: the run.
        train: (N, D) features of training images, on `device`.
        train_labels: (N,) their classes.
        test: (M, D) features of all test images, on `device`.
        protocols: what the run measures; only `mlp` and `local` matter here.
        device: where classifiers are trained.
        client_id: the client whose encoder it is; None for an encoder of all clients.
    """
    dataset, config, seed = setup.dataset, setup.config.evaluation, setup.config.seed
    truth = torch.from_numpy(np.array(dataset.test_labels, np.int64))
    shares = _test_shares(setup, client_id) if "local" in protocols else {}
    accuracies: dict[str, float] = {}
    for suffix, rows in _subsets(train_labels, config.probe_fractions, dataset.num_classes, seed):
        x, y = train[rows.to(train.device)], train_labels[rows]
        linear = linear_probe(
            x, y, test, truth, num_classes=dataset.num_classes, l2=config.linear_l2
        )
        accuracies[f"linear{suffix}_train_acc"] = linear.train_accuracy
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
            correct = (predicted == truth).double()
            accuracies |= _scores(f"{name}{suffix}", correct, shares, client_id)
    return accuracies


def _scores(
    name: str, correct: Tensor, shares: Mapping[int, Tensor], client_id: int | None
) -> dict[str, float]:
    """Accuracy on all test images, and on the clients' shares where there are any."""
    scores = {f"{name}_acc": correct.mean().item()}
    local = [correct[rows].mean().item() for rows in shares.values()]
    if local:
        scores[f"{name}_local_acc"] = float(np.mean(local))
        if client_id is None:
            scores[f"{name}_local_acc_std"] = float(np.std(local))
    return scores


def _test_shares(setup: Setup, client_id: int | None) -> dict[int, Tensor]:
    """Positions of each client's test images; clients without any are left out."""
    dataset = setup.dataset
    test = make_test_partition(
        dataset.test_labels, setup.client_partition, dataset.train_labels, setup.config.seed
    )
    clients = range(test.num_clients) if client_id is None else [client_id]
    rows = {k: torch.from_numpy(test.client(k).astype(np.int64)) for k in clients}
    return {k: positions for k, positions in rows.items() if len(positions)}


def _subsets(
    labels: NDArray[np.int64], fractions: Sequence[float], num_classes: int, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Suffix and rows of each share of the labels: at least as many examples as classes."""
    for fraction in fractions:
        if fraction == 1:
            yield "", torch.arange(len(labels))
        else:
            size = min(len(labels), max(num_classes, round(fraction * len(labels))))
            chosen = balanced_subset(labels, size, f"probe-labels-{seed}")
            yield f"_{fraction * 100:g}pct", torch.from_numpy(chosen)


def mlp_predictions(
    train: Tensor,
    train_labels: Labels,
    test: Tensor,
    *,
    num_classes: int,
    seed: int,
    device: torch.device | str = "cpu",
    hidden_dim: int = 512,
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 0.1,
) -> Tensor:
    """Train a perceptron with one hidden layer on features and predict the class of others.

    Plain SGD with a constant rate, as in the source. Choices of ours, where the source is silent:
    512 hidden units, batches of 256, no momentum, no weight decay, and features standardised by the
    training set's mean and deviation, so that an encoder's scale does not act as a learning rate.

    Source: Arora 2023, pFedAE, experiments (two layers, SGD with 0.1, 100 epochs).

    Args:
        train: (N, D) features, finite.
        train_labels: (N,), each in [0, num_classes).
        test: (M, D) features of the same encoder, finite.
        num_classes: at least 1.
        seed: the run's; names the draws of the initial weights and of the order.
        device: where to train.
        hidden_dim: units of the hidden layer.
        epochs: passes over the features.
        batch_size: examples per step; an incomplete last batch is used too.
        lr: learning rate.

    Returns:
        Most probable class of each test row, int64 (M,) on the CPU.
    """
    classes = class_tensor(train_labels, device)
    mean, scale = standardisation(train)
    inputs, held_out = (((x.double() - mean) * scale).float().to(device) for x in (train, test))
    with seeding.scope(seed, "mlp-probe-init"):
        net = mlp(train.shape[1], hidden_dim, num_classes).to(device)
    optimizer = optimizers.SGD(net.parameters(), lr=lr)
    order = seeding.generator(seed, "mlp-probe-order")
    batches = (
        (inputs[rows], classes[rows])
        for _ in range(epochs)
        for rows in torch.randperm(len(inputs), generator=order).to(device).split(batch_size)
    )
    run_sgd(optimizer, net, batches)
    with torch.no_grad():
        return torch.cat([net(rows).argmax(dim=1) for rows in held_out.split(4096)]).cpu()
