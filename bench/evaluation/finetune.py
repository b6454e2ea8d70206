"""Fine-tuning accuracy: the whole encoder trained on a few labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.data.labels import few_per_class, hide_all
from fedbench.bench.evaluation.features import Images, Labels, class_tensor, extract
from fedbench.bench.evaluation.metrics import accuracy
from fedbench.bench.evaluation.sgd import (
    MOMENTUM,
    initial_layer,
    layer_accuracy,
    train_on_views,
)
from fedbench.bench.method import Net
from fedbench.bench.nn import optimizers
from fedbench.bench.system.compute import all_finite
from fedbench.bench.training.setup import Setup


@dataclass(frozen=True)
class FinetuneSettings:
    """Length, batches and augmentation of a training; the learning rate is per 256 examples."""

    epochs: int
    batch_size: int
    lr: float = 0.05
    view: str = "base"


FINETUNE_1PCT = accuracy("finetune_1pct_acc", "fine-tuned 1 %")
FINETUNE_10PCT = accuracy("finetune_10pct_acc", "fine-tuned 10 %")
FRACTIONS = {
    0.01: FinetuneSettings(epochs=60, batch_size=64),
    0.1: FinetuneSettings(epochs=30, batch_size=256),
}
"""Settings by the share of the training set's size that is labelled."""


def finetune_accuracies(setup: Setup, net: Net, device: torch.device) -> dict[str, float]:
    """Accuracies on the test set after fine-tuning on 1 % and on 10 % of the labels.

    The labelled images are equally many of each class, drawn by the run's seed from those that
    protocols learn from (`Setup.probed`); the smaller set lies within the larger one.

    Args:
        setup: the run.
        net: with the weights to start from; not changed.
        device: where to train.

    Returns:
        `finetune_1pct_acc` and `finetune_10pct_acc`, NaN where the training diverged.
    """
    dataset, seed = setup.dataset, setup.config.seed
    labels = hide_all(dataset.train_labels)
    labels[setup.probed] = dataset.train_labels[setup.probed]
    accuracies = {}
    for fraction, settings in FRACTIONS.items():
        chosen = few_per_class(labels, fraction, dataset.num_classes, seed)
        copy = setup.make_net()
        # Parts that live for one client's round are in no state_dict, and no encoder needs them.
        copy.load_state_dict(net.state_dict(), strict=False)
        accuracies[f"finetune_{fraction:.0%}_acc".replace("%", "pct")] = finetune(
            copy.to(device),
            setup.method.encode,
            setup.images[chosen],
            labels[chosen],
            dataset.test_images,
            dataset.test_labels,
            num_classes=dataset.num_classes,
            seed=seed,
            device=device,
            settings=settings,
        )
    return accuracies


def finetune(
    net: Net,
    encode: Callable[[Net, Tensor], Tensor],
    images: Images,
    labels: Labels,
    test_images: Images,
    test_labels: Labels,
    *,
    num_classes: int,
    seed: int,
    device: torch.device | str,
    settings: FinetuneSettings,
) -> float:
    """Accuracy of an encoder and a linear layer that were trained together by SGD.

    Nesterov momentum 0.9, no weight decay, batch norm in training mode; the learning rate is
    lr * batch_size / 256, taken to 0 along half a cosine, step by step. An incomplete last batch is
    left out; where that would leave none, the few images are one batch.

    Source: ours. Lubana et al. 2022, https://arxiv.org/abs/2205.11506, fine-tunes with 1 % and 10 %
    of the labels without giving settings, on images that were not pre-trained on; so does this with
    `data.held_out` and `evaluation.labels_from`. The script of its release, which lacks a module,
    trains the linear layer alone while batch norms are in training mode.

    Args:
        net: trained in place.
        encode: (net, normalised images (B, C, H, W)) -> features (B, D).
        images: uint8 (N, C, H, W).
        labels: (N,), each in [0, num_classes).
        test_images: uint8 (M, C, H, W).
        test_labels: (M,), each in [0, num_classes).
        num_classes: at least 1.
        seed: the run's; names the draws of the layer's initial weights, of the order and the views.
        device: where the net is.
        settings: length, batch size, learning rate, augmentation.

    Returns:
        Accuracy on all test images, in [0, 1]; NaN if the training diverged.
    """
    dim = extract(lambda x: encode(net.eval(), x), test_images[:1], device=device).shape[1]
    weight, bias = initial_layer(dim, num_classes, seed, device)
    trained = [p for p in net.parameters() if p.requires_grad]
    lr, batch_size = settings.lr * settings.batch_size / 256, min(settings.batch_size, len(images))
    optimizer = optimizers.SGD([*trained, weight, bias], lr=lr, momentum=MOMENTUM, nesterov=True)
    net.train()
    train_on_views(
        optimizer,
        lambda x: F.linear(encode(net, x), weight, bias),  # (B, C)
        images,
        class_tensor(labels, "cpu"),
        view=settings.view,
        epochs=settings.epochs,
        batch_size=batch_size,
        seed=seed,
        purpose="finetune",
        device=device,
    )
    net.eval()
    test = extract(lambda x: encode(net, x), test_images, device=device)  # (M, D)
    if not all_finite(test) or not all_finite(weight):
        return math.nan
    return layer_accuracy(test, weight, bias, class_tensor(test_labels, "cpu"))
