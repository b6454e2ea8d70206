"""Classifiers on frozen features: for everybody's test images, and for each client's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.data.partition.deal import deal_test
from fedbench.bench.evaluation.features import Labels, check_examples, check_positive
from fedbench.bench.evaluation.linear import linear_probe, standardisation
from fedbench.bench.nn import optimizers
from fedbench.bench.nn.heads import mlp
from fedbench.bench.system import seeding
from fedbench.bench.training.setup import Setup


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

    Plain SGD with a constant rate, as the source says. Ours where it is silent: 512 hidden units,
    batches of 256, no momentum and no weight decay, and features standardised by the training set's
    mean and deviation, so that an encoder's scale does not act as a learning rate.

    Source: Arora 2023, pFedAE, experiments (two layers, SGD with 0.1, 100 epochs).

    Args:
        train: (N, D) features.
        train_labels: (N,), each in [0, num_classes).
        test: (M, D) features of the same encoder, finite.
        num_classes: at least 1.
        seed: the run's; names the draws of the initial weights and of the order.
        device: where to train.
        hidden_dim: units of the hidden layer.
        epochs: passes over the features.
        batch_size: examples per step; an incomplete last batch counts too.
        lr: learning rate.

    Returns:
        Most probable class of each test row, int64 (M,) on the CPU.

    Raises:
        EvaluationError: if shapes, labels or settings do not fit together.
        NonFiniteFeaturesError: if a training feature is NaN or infinite.
    """
    for name, value in (("hidden_dim", hidden_dim), ("epochs", epochs), ("lr", lr)):
        check_positive(name, value)
    check_positive("batch_size", batch_size)
    classes = check_examples("MLP probe, training", train, train_labels, num_classes).to(device)
    mean, scale = standardisation(train)
    inputs, held_out = (((x.double() - mean) * scale).float().to(device) for x in (train, test))
    with seeding.scope(seed, "mlp-probe-init"):
        net = mlp(train.shape[1], hidden_dim, num_classes).to(device)
    optimizer = optimizers.SGD(net.parameters(), lr=lr)
    order = seeding.generator(seed, "mlp-probe-order")
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs), generator=order).to(device).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rows]), classes[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return torch.cat([net(rows).argmax(dim=1) for rows in held_out.split(4096)]).cpu()


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
