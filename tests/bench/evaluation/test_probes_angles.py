"""Angles between classes: closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedbench.bench.evaluation.probes import angle_summary, both_angles, class_angles, histogram
from fedbench.bench.system.seeding import generator

LABELS = np.arange(5).repeat(4)


def test_orthogonal_means_are_90_degrees_apart() -> None:
    angles = class_angles(torch.eye(5)[LABELS] * 7, LABELS, 5)
    assert angles.shape == (10,)
    assert angles.tolist() == pytest.approx([90.0] * 10)


def test_centred_means_of_a_simplex() -> None:
    """C points at equal distances seen from their centre: cos = -1 / (C - 1)."""
    features = torch.eye(5)[LABELS] + 100  # a large common mean shrinks the plain angles
    assert float(class_angles(features, LABELS, 5).max()) < 1
    expected = math.degrees(math.acos(-1 / 4))
    centred = class_angles(features.double(), LABELS, 5, centred=True)
    assert centred.tolist() == pytest.approx([expected] * 10)


def test_against_a_loop() -> None:
    features = torch.randn(20, 3, generator=generator(0, "x"))
    order = torch.randperm(20, generator=generator(0, "order"))
    means = [features[c == LABELS].double().mean(0) for c in range(5)]
    expected = []
    for i in range(5):
        for j in range(i + 1, 5):
            cosine = float(means[i] @ means[j] / means[i].norm() / means[j].norm())
            expected.append(math.degrees(math.acos(cosine)))
    angles = class_angles(features[order], LABELS[order.numpy()], 5)
    assert angles.tolist() == pytest.approx(expected)
    pairs = both_angles(features, LABELS, 5)
    summary = angle_summary([pairs])
    assert summary["angle_mean"] == pytest.approx(np.mean(expected))
    assert summary["angle_median"] == pytest.approx(np.median(expected))
    other = {"angle": torch.tensor([5.0, 7.0]), "angle_centred": pairs["angle_centred"]}
    together = angle_summary([pairs, other])  # not the mean of two medians
    assert together["angle_median"] == pytest.approx(np.median([*expected, 5.0, 7.0]))


def test_classes_without_images_or_direction_are_left_out() -> None:
    features = torch.eye(5)[LABELS]
    features[LABELS == 4] = 0
    assert len(class_angles(features, LABELS, 9)) == 6  # four of nine classes are left
    same = torch.ones(20, 3)
    assert class_angles(same, LABELS, 5).tolist() == pytest.approx([0.0] * 10, abs=1e-5)
    assert len(class_angles(same, LABELS, 5, centred=True)) == 0
    assert set(angle_summary([both_angles(same, LABELS, 5)])) == {"angle_mean", "angle_median"}


def test_histogram() -> None:
    edges, counts = histogram(torch.tensor([0.0, 4.9, 5.0, 90.0, 180.0]))
    assert edges.tolist() == [5.0 * i for i in range(37)]
    assert counts.sum() == 5
    assert (counts[0], counts[1], counts[18], counts[35]) == (2, 1, 1, 1)
