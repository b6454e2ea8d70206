"""The probe of pFedAE: a classifier of two layers on frozen features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench import optimizers, seeding
from fedbench.bench.evaluation.features import Labels, check_examples, check_positive
from fedbench.bench.evaluation.linear import standardisation
from fedbench.bench.nn.heads import mlp


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
