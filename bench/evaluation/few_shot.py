"""Linear probes on a few labelled images of each class, over repeated draws."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from fedbench.bench.evaluation.metrics import PROBES, Metric, accuracy, register
from fedbench.bench.evaluation.probes import Encoded, fit_logistic
from fedbench.bench.system.seeding import numpy_generator

SHOTS = (1, 5, 10)
DRAWS = 10

for _shots in SHOTS:
    accuracy(f"few_shot_{_shots}_acc", f"{_shots}-shot %")
    register(Metric(f"few_shot_{_shots}_half", "", "fraction", "lower", PROBES, True))


def few_shot(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Accuracy on all test images of a linear probe that saw 1, 5 or 10 images of each class.

    Gives for each number of shots the mean over ten draws, `few_shot_5_acc`, and half of its 95 %
    t-interval, `few_shot_5_half`, which tells of the draws alone: encoder and test images are the
    same in all of them. A draw of more shots includes that of fewer; a class with fewer images
    gives all of them. The probe is `fit_logistic` with a penalty of |W|^2 / 2 beside the sum of the
    losses, since a share of the number of images would be nothing with so few.
    """
    from scipy import stats  # imported here: it takes half a second

    labels, classes = encoded.splits.train_labels, encoded.splits.num_classes
    truth = torch.from_numpy(np.array(encoded.splits.test_labels))
    shares = np.empty((len(SHOTS), DRAWS))
    for draw in range(DRAWS):
        order = numpy_generator(encoded.setup.config.seed, "few-shot", draw).permutation(
            len(labels)
        )
        of_class = [order[labels[order] == c] for c in range(classes)]
        for at, shots in enumerate(SHOTS):
            rows = np.concatenate([mine[:shots] for mine in of_class])
            chosen = torch.from_numpy(rows).to(encoded.train.device)
            fit = fit_logistic(
                encoded.train[chosen], labels[rows], num_classes=classes, l2=1 / len(rows)
            )
            right = fit.predict(encoded.test).cpu() == truth
            shares[at, draw] = right.double().mean().item()
    half = stats.t.ppf(0.975, DRAWS - 1) * stats.sem(shares, axis=1)
    named = zip(SHOTS, shares.mean(axis=1), half, strict=True)
    return {
        f"few_shot_{shots}_{name}": float(value)
        for shots, mean, width in named
        for name, value in (("acc", mean), ("half", width))
    }
