"""Linear-probe accuracy: multinomial logistic regression on cached features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.features import Labels, class_tensor

CHUNK = 4096
"""Rows per matrix product: fixed, so that sums are always added in the same order."""

TOLERANCE = 1e-9
"""Relative decrease of the loss in one iteration below which the fit has converged."""


class LogisticFit(NamedTuple):
    """A fitted classifier: logits = ((x - mean) * scale) @ weight + bias, all float64."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,): 1 / standard deviation, 0 for constant dimensions
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    iterations: int
    converged: bool

    def predict(self, features: Tensor) -> Tensor:
        """Most probable class of each row of (N, D), ties to the lowest index; int64 (N,)."""
        logits = [
            (rows.double() - self.mean) * self.scale @ self.weight + self.bias
            for rows in features.split(CHUNK)
        ]
        return torch.cat(logits).argmax(dim=1)


class LinearResult(NamedTuple):
    """Outcome of a linear probe on the CPU; accuracies in [0, 1]."""

    accuracy: float
    train_accuracy: float
    predicted: Tensor  # (M,) class of each test image


def linear_probe(
    train: Tensor,
    train_labels: Labels,
    test: Tensor,
    test_labels: Labels,
    *,
    num_classes: int,
    l2: float = 1e-4,
    max_iterations: int = 200,
) -> LinearResult:
    """Fit a linear classifier to training features and score it on test features.

    See `fit_logistic` for what is fitted. Unlike Orchestra's probe (`linear_probe_paper`) it sees
    each training image once, without augmentation; expect about one point of difference.

    Args:
        train: (N, D) features of the training images.
        train_labels: (N,), each in [0, num_classes).
        test: (M, D) features of the test images.
        test_labels: (M,), each in [0, num_classes).
        num_classes: at least 1.
        l2: penalty per training example, at least 0.
        max_iterations: of L-BFGS, at least 1.
    """
    fit = fit_logistic(
        train, train_labels, num_classes=num_classes, l2=l2, max_iterations=max_iterations
    )
    predicted = fit.predict(test)
    truth, train_truth = (class_tensor(y, test.device) for y in (test_labels, train_labels))
    return LinearResult(
        accuracy=(predicted == truth).double().mean().item(),
        train_accuracy=(fit.predict(train) == train_truth).double().mean().item(),
        predicted=predicted.cpu(),
    )


def fit_logistic(
    features: Tensor,
    labels: Labels,
    *,
    num_classes: int,
    l2: float = 1e-4,
    max_iterations: int = 200,
) -> LogisticFit:
    """Multinomial logistic regression on standardised features by L-BFGS, from zero weights.

    Minimises sum_i CE_i + l2 * N * |W|^2 / 2, that is mean CE + l2 * |W|^2 / 2; the bias is not
    penalised. (In scikit-learn's terms C = 1 / (l2 * N).) Nothing is random, and everything is in
    double precision, so the optimum is found to more digits than float32 features carry. The device
    of the features computes the loss and its gradient; SciPy's L-BFGS runs on the CPU.

    L-BFGS runs in rotated and rescaled coordinates: W = Q diag(1 / s) V with the eigenvectors Q of
    the feature correlations and s^2 about the curvature along each. The optimum is the same and is
    reached in far fewer iterations, because encoder features are strongly correlated.

    Args:
        features: (N, D), finite.
        labels: (N,), each in [0, num_classes).
        num_classes: at least 1.
        l2: penalty per training example, at least 0.
        max_iterations: at least 1; when they run out, `converged` is False.
    """
    classes = class_tensor(labels, features.device)
    mean, scale = standardisation(features)
    basis, curvature = _eigenbasis(features, mean, scale, l2, num_classes)  # (D, r), (r,)
    transform = scale[:, None] * basis / curvature.sqrt()  # (D, r)
    device, size = features.device, (len(features), basis.shape[1])
    inputs = torch.empty(size, dtype=torch.float64, device=device)  # (N, r)
    for rows, out in zip(features.split(CHUNK), inputs.split(CHUNK), strict=True):
        torch.mm(rows.double() - mean, transform, out=out)
    penalty = (l2 / curvature)[:, None]  # (r, 1)
    shape = (basis.shape[1] + 1, num_classes)

    from scipy.optimize import minimize  # imported here: it takes half a second

    def loss_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        parameters = torch.from_numpy(flat).view(shape).to(device)
        weight, bias = parameters[:-1], parameters[-1]  # (r, C), (C,)
        gradient = torch.zeros_like(parameters)
        loss = torch.zeros((), dtype=torch.float64, device=device)  # read once, at the end
        for rows, expected in zip(inputs.split(CHUNK), classes.split(CHUNK), strict=True):
            log_probability = F.log_softmax(rows @ weight + bias, dim=1)  # (n, C)
            loss += F.nll_loss(log_probability, expected, reduction="sum")
            error = log_probability.exp_()
            error[torch.arange(len(rows), device=device), expected] -= 1.0
            gradient[:-1] += rows.T @ error
            gradient[-1] += error.sum(dim=0)
        gradient /= len(inputs)
        gradient[:-1] += penalty * weight
        loss = loss / len(inputs) + 0.5 * (penalty * weight.square()).sum()
        return loss.item(), gradient.view(-1).cpu().numpy()

    result = minimize(
        loss_and_gradient,
        np.zeros(shape[0] * shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iterations,
            "maxfun": 4 * max_iterations,
            "gtol": 1e-6,
            "ftol": TOLERANCE,
        },
    )
    best = torch.from_numpy(result.x).view(shape).to(device)
    return LogisticFit(
        mean=mean,
        scale=scale,
        weight=basis / curvature.sqrt() @ best[:-1],
        bias=best[-1],
        iterations=int(result.nit),
        converged=bool(result.success),
    )


def standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation per dimension, both float64 (D,); 0 where constant."""
    chunks = features.split(CHUNK)
    mean = torch.stack([rows.double().sum(dim=0) for rows in chunks]).sum(dim=0) / len(features)
    squares = torch.stack([(rows.double() - mean).square().sum(dim=0) for rows in chunks])
    std = (squares.sum(dim=0) / len(features)).sqrt()
    # A spread below float32's resolution of the values is rounding, not signal.
    constant = std <= 4 * torch.finfo(torch.float32).eps * mean.abs()
    return mean, torch.where(constant, 0.0, 1.0 / std)


def _eigenbasis(
    features: Tensor, mean: Tensor, scale: Tensor, l2: float, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Eigenvectors (D, r) of the feature correlations and the loss's curvature (r,) along each.

    Directions without variance are dropped: the loss is flat along them, so their weight stays 0.
    """
    correlation = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=mean.device)
    for rows in features.split(CHUNK):
        standard = (rows.double() - mean) * scale
        correlation.addmm_(standard.T, standard, alpha=1.0 / len(features))
    variance, basis = torch.linalg.eigh(correlation)  # ascending (D,), (D, D)
    varying = variance > variance[-1] * len(mean) * torch.finfo(torch.float64).eps
    # p (1 - p) is 1/C (1 - 1/C) before training and a fraction of it after: only a scale.
    return basis[:, varying], 2 * variance[varying] / num_classes + l2
