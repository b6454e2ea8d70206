"""Visible labels of a run, and class-balanced subsets."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.system.seeding import numpy_generator

HIDDEN = -1
WITHOUT_LABELS = "data.partition=iid and evaluation.protocols=[]"
"""What a run on images without labels sets."""


def visible_labels(
    labels: npt.NDArray[np.int64],
    client_indices: Sequence[npt.NDArray[Any]],
    fraction: float,
    seed: int,
) -> npt.NDArray[np.int64]:
    """Return the labels (N,) of a seeded random share of each client's examples; hide the others.

    The choice depends on the seed, the client's number and its disjoint positions (n_k,) alone, so
    it stays the same for the whole run. The fraction in [0, 1] is of its labelled examples, rounded
    half up, and at least one when it is above 0 and the client has any.
    """
    seen = hide_all(labels)
    for client, indices in enumerate(client_indices):
        held = np.sort(np.asarray(indices, dtype=np.int64))
        held = held[labels[held] != HIDDEN]
        count = num_visible(len(held), fraction)
        order = numpy_generator(seed, "visible-labels", client).permutation(len(held))
        shown = held[order[:count]]
        seen[shown] = labels[shown]
    return seen


def num_visible(num_examples: int, fraction: float) -> int:
    """Return how many labels a client sees that holds so many labelled examples.

    >>> [num_visible(50, 0.29), num_visible(3, 0.1), num_visible(0, 0.1), num_visible(50, 0.0)]
    [15, 1, 0, 0]
    """
    # The small term undoes 0.29 * 50 = 14.499999999999998.
    count = math.floor(fraction * num_examples + 0.5 + 1e-9)
    return max(1, count) if fraction > 0 and num_examples else count


def hide_all(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return an array (N,) of `HIDDEN` (-1) as long as `labels`."""
    return np.full(len(labels), HIDDEN, dtype=np.int64)


def held_out(labels: npt.NDArray[np.int64], fraction: float, seed: int) -> npt.NDArray[np.int64]:
    """Draw the examples that no client gets, each class in proportion; sorted positions.

    `fraction` is a share in [0, 1) of all examples; at least one is drawn when it is above 0.
    """
    if fraction == 0:
        return np.zeros(0, dtype=np.int64)
    return balanced_subset(labels, max(1, round(fraction * len(labels))), "held-out", seed)


def few_per_class(
    labels: npt.NDArray[np.int64], fraction: float, num_classes: int, seed: int
) -> npt.NDArray[np.int64]:
    """Draw equally many examples of each class, for fine-tuning; sorted positions.

    Each class has ceil(fraction * N / C) of its labelled examples, or all if these are fewer; a
    larger fraction in (0, 1] includes the examples of a smaller one.
    """
    # The small term undoes 0.07 * 100 = 7.000000000000001.
    count = math.ceil(fraction * len(labels) / num_classes - 1e-9)
    order = numpy_generator(seed, "few-per-class").permutation(len(labels))
    chosen = [order[labels[order] == c][:count] for c in range(num_classes)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def majority(labels: npt.NDArray[np.int64], num_classes: int) -> tuple[int, float] | None:
    """Return the class of most test images and its share, where an accuracy has to be read by it.

    There it has a tenth of them or more, and at least three times the odds of one of equal classes.

    >>> majority(np.array([0, 1, 1, 1]), 2), majority(np.array([0, 0, 1, 1, 1]), 2)
    ((1, 0.75), None)
    """
    counts = np.bincount(labels[labels != HIDDEN], minlength=max(1, num_classes))
    label, total = int(counts.argmax()), int(counts.sum())
    most = int(counts[label])
    far = 10 * most >= total and most * (num_classes - 1) >= 3 * (total - most)
    return (label, most / total) if far and total and num_classes > 1 else None


def balanced_subset(
    labels: npt.NDArray[np.int64], size: int, purpose: str, seed: int = 0
) -> npt.NDArray[np.int64]:
    """Draw `size` examples of 1..N, each class with its share of the whole; sorted positions.

    Sizes per class come from the largest remainder, ties going to the lower class; `HIDDEN` labels
    count as one class more. By default the draw is fixed by its `purpose`, and a class's examples
    in a smaller subset are among those in a larger one that has as many of it.
    """
    labels = labels - min(0, int(labels.min()))
    counts = np.bincount(labels)
    # Whole numbers throughout, so that equal remainders are equal.
    quotas, remainders = np.divmod(counts * size, len(labels))
    largest = np.argsort(-remainders, kind="stable")[: size - quotas.sum()]
    quotas[largest] += 1
    order = numpy_generator(seed, purpose).permutation(len(labels))
    chosen = [order[labels[order] == c][:quota] for c, quota in enumerate(quotas)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
