"""Angles between the mean features of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.evaluation.features import Labels, class_tensor
from fedbench.bench.evaluation.metrics import Metric, register

for _name in ("angle_mean", "angle_median", "angle_centred_mean", "angle_centred_median"):
    register(Metric(_name, needs_labels=True))
BIN_DEGREES = 5
"""Width of a histogram's bins, from 0 to 180 degrees."""


def class_angles(
    features: Tensor, labels: Labels, num_classes: int, *, centred: bool = False
) -> Tensor:
    """Angle between the mean features of every two classes, in degrees.

    Features of a network that ends in ReLU and averaging are not negative, so plain angles do not
    exceed 90 degrees and shrink with all that the classes have in common; centred ones, after the
    mean of the class means was subtracted, do not.

    Source: Arora 2023, pFedAE, equations 4.1 and 4.2 (plain).

    Features (N, D) of test images are finite; classes without examples are left out.

    Returns:
        float64 (C (C - 1) / 2,) in [0, 180] on the CPU; pairs with a mean of length 0 are left out.
    """
    classes = class_tensor(labels, features.device)
    shape = num_classes, features.shape[1]
    sums = torch.zeros(shape, dtype=torch.float64, device=features.device)
    sums.index_add_(0, classes, features.double())
    counts = torch.bincount(classes, minlength=num_classes)
    means = sums[counts > 0] / counts[counts > 0, None]  # (C, D)
    if centred:
        means = means - means.mean(dim=0)
    lengths = means.norm(dim=1)
    # A mean that rounding alone keeps from 0 has no direction.
    rounding = torch.finfo(torch.float32).eps * features.double().norm(dim=1).mean()
    means = means[lengths > rounding]
    unit = means / means.norm(dim=1, keepdim=True)
    first, second = torch.triu_indices(len(unit), len(unit), offset=1)
    cosines = (unit[first] * unit[second]).sum(dim=1).clamp(-1, 1)
    return torch.rad2deg(torch.acos(cosines)).cpu()


def both_angles(features: Tensor, labels: Labels, num_classes: int) -> dict[str, Tensor]:
    """`class_angles` as `angle`, and the centred ones as `angle_centred`."""
    return {
        name: class_angles(features, labels, num_classes, centred=centred)
        for name, centred in (("angle", False), ("angle_centred", True))
    }


def angle_summary(encoders: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Mean and median over pairs of classes, of all encoders together, each given as `both_angles`.

    Gives `angle_mean`, `angle_median` and the centred ones; without those that have no pair.
    """
    metrics = {}
    for name in dict.fromkeys(name for angles in encoders for name in angles):
        pairs = torch.cat([angles[name] for angles in encoders]).numpy()
        if len(pairs):
            metrics[f"{name}_mean"] = float(np.mean(pairs))
            metrics[f"{name}_median"] = float(np.median(pairs))
    return metrics


def histogram(angles: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Edges in degrees, (37,), and pairs per bin, (36,)."""
    edges = np.arange(0.0, 180.0 + BIN_DEGREES, BIN_DEGREES)
    counts, _ = np.histogram(angles.numpy(), bins=edges)
    return edges, counts.astype(np.int64)
