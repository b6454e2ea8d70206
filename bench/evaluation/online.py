"""A linear probe after every round, cheap enough to watch a training by."""

from contextlib import suppress
from functools import partial

import numpy as np
import torch

from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.evaluation.features import (
    NonFiniteFeaturesError,
    check_finite,
    class_tensor,
    extract,
    take_images,
)
from fedbench.bench.evaluation.metrics import accuracy, register
from fedbench.bench.evaluation.probes import fit_logistic
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.setup import Setup

ONLINE = register(accuracy("online_acc", "linear, online %", ("linear_l2",)))
_TRAIN, _TEST = 2048, 2000


def online_accuracy(setup: Setup, binding: Binding, device: torch.device) -> dict[str, float]:
    """Accuracy of `fit_logistic` on at most 2,000 test images, from at most 2,048 labelled ones.

    Both are class-balanced draws, the same in every round and run of a data set and seed. Other
    libraries train such a layer along with the encoder, so that it lags behind; this one is fitted
    anew, and needs no state. Nothing where encoders differ between clients, or if one diverged.
    """
    if setup.evaluate_on_clients:
        return {}
    dataset, probed = setup.dataset, setup.probed
    classes, truth = dataset.train_labels[probed], np.asarray(dataset.test_labels, np.int64)
    learnt = balanced_subset(classes, min(_TRAIN, len(classes)), f"online-{setup.config.seed}")
    scored = balanced_subset(truth, min(_TEST, len(truth)), "online-test")
    binding.net.eval()
    encode = partial(setup.method.encode, binding.net)
    with suppress(NonFiniteFeaturesError):
        train, test = (
            extract(encode, take_images(images, rows), device=device)
            for images, rows in ((setup.images, probed[learnt]), (dataset.test_images, scored))
        )
        check_finite("images", train)
        l2, count = setup.config.evaluation.linear_l2, dataset.num_classes
        fit = fit_logistic(train, classes[learnt], num_classes=count, l2=l2)
        right = fit.predict(test) == class_tensor(truth[scored], test.device)
        return {"online_acc": right.double().mean().item()}
    return {}
