"""Probes that SGD trains on augmented images: Orchestra's linear probe, and fine-tuning."""

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.data.labels import few_per_class, hide_all
from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import (
    Images,
    check_finite,
    class_tensor,
    encode_batch,
    extract,
    take_images,
)
from fedbench.bench.evaluation.metrics import accuracy
from fedbench.bench.evaluation.probes import Encoded
from fedbench.bench.method import Net
from fedbench.bench.nn import optimizers
from fedbench.bench.nn.freezing import thaw
from fedbench.bench.system import seeding
from fedbench.bench.system.compute import all_finite
from fedbench.bench.training.setup import Setup

VIEW, MOMENTUM = "base", 0.9
EPOCHS, BATCH_SIZE, LR = 50, 256, 30.0
"""Length, batches and rate per 256 examples of Orchestra's probe."""

FINETUNE = tuple(accuracy(f"finetune_{n}pct_acc", f"fine-tuned {n} %") for n in (1, 10))
FINETUNE_LR = 0.05  # per 256 examples
FRACTIONS = {0.01: (60, 64, 60 * 7), 0.1: (30, 256, 30 * 19)}
"""Least epochs, batch size and least steps of fine-tuning, by the share of the training set's size
that has labels. The steps are those of the epochs on 50,000 images. In 30 steps, one per epoch for
1,201 digits, a trained encoder does not even fit its 130 images (81 % of them are right), and ends
below one at random init, which fits them sooner."""


def train_on_views(
    optimizer: optimizers.SGD,
    logits: Callable[[Tensor], Tensor],
    images: Images,
    classes: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    purpose: str,
    device: torch.device | str,
) -> None:
    """Take a step of cross-entropy per batch: one view per image and epoch, shuffled.

    The optimizer's learning rate falls to 0 along half a cosine, step by step. Incomplete batches
    are left out. Images are uint8 (N, C, H, W), classes int64 (N,), `batch_size` at most N;
    `logits` maps views (B, C, H, W) to (B, C). `purpose` begins the names of the draws,
    `<purpose>-order` and `<purpose>-view`.
    """
    peak, num_batches = optimizer.param_groups[0]["lr"], len(images) // batch_size
    place = images.device if isinstance(images, Tensor) else "cpu"
    classes = classes.to(place)
    for epoch in range(epochs):
        shuffle = seeding.generator(seed, f"{purpose}-order", epoch)
        draws = seeding.generator(seed, f"{purpose}-view", epoch)
        order = torch.randperm(len(images), generator=shuffle).to(place)
        batches = order[: num_batches * batch_size].split(batch_size)
        for step, rows in enumerate(batches, epoch * num_batches):
            progress = step / (epochs * num_batches)
            optimizer.param_groups[0]["lr"] = 0.5 * peak * (1.0 + math.cos(math.pi * progress))
            views = make_view(VIEW, take_images(images, rows).to(device), draws)
            optimizer.zero_grad()
            F.cross_entropy(logits(views), classes[rows].to(device)).backward()
            optimizer.step()


def initial_layer(
    num_inputs: int, num_classes: int, seed: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Trainable weights (C, D) and bias (C,), drawn on the CPU as torch's Linear draws them."""
    draws = seeding.generator(seed, "linear-paper-init")
    bound = 1.0 / math.sqrt(num_inputs)
    weight = torch.empty(num_classes, num_inputs).uniform_(-bound, bound, generator=draws)
    bias = torch.empty(num_classes).uniform_(-bound, bound, generator=draws)
    return weight.to(device).requires_grad_(), bias.to(device).requires_grad_()


def layer_accuracy(features: Tensor, weight: Tensor, bias: Tensor, classes: Tensor) -> float:
    """Share of the features (M, D) whose most probable class is the right one of `classes` (M,)."""
    with torch.no_grad():
        predicted = F.linear(features.to(weight.device), weight, bias).argmax(dim=1).cpu()
    return (predicted == classes).double().mean().item()


def linear_probe_paper(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Accuracy of a linear layer trained by SGD on features of freshly augmented images.

    The learning rate is 30 * batch_size / 256, taken to 0 along half a cosine, step by step and
    without warm-up; momentum 0.9, no weight decay. Features are not standardised. The accuracy is
    that on all test images. Raises `NonFiniteFeaturesError` if a feature is NaN or infinite.

    Source: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, and its released evaluation code.
    Deliberate deviations: the training images are shuffled, and all test images count (the release
    goes through the training set in stored order and drops the incomplete last test batch, 16 of
    10,000 images); the schedule begins with the first step (the release's first has rate 0.1, and
    every later one the scheduled rate of the step before). As there, an incomplete last training
    batch is dropped; where that would leave none, the few images are one batch.
    """
    splits, seed, device = encoded.splits, encoded.setup.config.seed, encoded.device
    test = encoded.test  # (M, D), before the training: a diverged encoder is noticed in seconds
    weight, bias = initial_layer(test.shape[1], splits.num_classes, seed, device)
    batch_size = min(BATCH_SIZE, len(splits.train))
    optimizer = optimizers.SGD([weight, bias], lr=LR * batch_size / 256, momentum=MOMENTUM)

    def logits(images: Tensor) -> Tensor:
        features = encode_batch(encoded.encode, images, device)
        check_finite("paper probe, training features", features)
        # A copy: tensors made in inference mode may not enter a backward pass.
        return F.linear(features.clone(), weight, bias)  # (B, C)

    train_on_views(
        optimizer,
        logits,
        splits.train,
        class_tensor(splits.train_labels, "cpu"),
        epochs=EPOCHS,
        batch_size=batch_size,
        seed=seed,
        purpose="linear-paper",
        device=device,
    )
    truth = class_tensor(splits.test_labels, "cpu")
    return {"linear_paper_acc": layer_accuracy(test, weight, bias, truth)}


def finetune_accuracies(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Accuracies on the test set after fine-tuning on labels of 1 % and 10 % of the images.

    The labelled images are equally many of each class, drawn by the run's seed from those that
    protocols learn from (`Setup.probed`); the smaller set lies within the larger one. The net,
    whose weights are the first ones, does not change; what was frozen in its encoder is tuned as
    well. NaN where the training diverged.
    """
    setup, labels = encoded.setup, encoded.setup.dataset.train_labels
    accuracies = {}
    for fraction, chosen, epochs, batch_size in _tunings(setup):
        net = setup.make_net()
        # Parts that live for one client's round are in no state_dict, and no encoder needs them.
        net.load_state_dict(encoded.net.state_dict(), strict=False)
        net.to(encoded.device)
        thaw(net["encoder"])  # as the plain encoder that `fedbench export` writes
        accuracies[f"finetune_{fraction:.0%}_acc".replace("%", "pct")] = finetune(
            setup, net, setup.images[chosen], labels[chosen], epochs, batch_size, encoded.device
        )
    return accuracies


def _tunings(setup: Setup) -> Iterator[tuple[float, NDArray[np.int64], int, int]]:
    """Yield each share, the positions of its images, and the epochs and batch size for them."""
    dataset = setup.dataset
    labels = hide_all(dataset.train_labels)
    labels[setup.probed] = dataset.train_labels[setup.probed]
    for fraction, (epochs, batch_size, steps) in FRACTIONS.items():
        chosen = few_per_class(labels, fraction, dataset.num_classes, setup.config.seed)
        least = math.ceil(steps / max(1, len(chosen) // batch_size))
        yield fraction, chosen, max(epochs, least), batch_size


def finetuned_images(setup: Setup) -> int:
    """Return how many images the fine-tuning of one encoder takes, forward and back."""
    sizes = [(len(c), epochs, min(batch, len(c))) for _, c, epochs, batch in _tunings(setup)]
    return sum(epochs * (count // batch) * batch for count, epochs, batch in sizes)


def finetune(
    setup: Setup,
    net: Net,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    epochs: int,
    batch_size: int,
    device: torch.device,
) -> float:
    """Accuracy of an encoder and a linear layer that were trained together by SGD.

    Nesterov momentum 0.9, no weight decay, batch norm in training mode; the learning rate is 0.05 *
    batch_size / 256, taken to 0 along half a cosine, step by step. An incomplete last batch is left
    out; where that would leave none, the few images are one batch. The net is trained in place, on
    images uint8 (N, C, H, W) and labels (N,). Returns the accuracy on all test images, in [0, 1];
    NaN if the training diverged.

    Source: ours. Lubana et al. 2022, https://arxiv.org/abs/2205.11506, fine-tunes with 1 % and 10 %
    of the labels without giving settings, on images that were not pre-trained on; so does this with
    `data.held_out` and `evaluation.labels_from`. The script of its release, which lacks a module,
    trains the linear layer alone while batch norms are in training mode.
    """
    dataset, seed, encode = setup.dataset, setup.config.seed, partial(setup.method.encode, net)
    net.eval()
    dim = extract(encode, dataset.test_images[:1], device=device).shape[1]
    weight, bias = initial_layer(dim, dataset.num_classes, seed, device)
    trained = [p for p in net.parameters() if p.requires_grad]
    lr = FINETUNE_LR * batch_size / 256
    optimizer = optimizers.SGD([*trained, weight, bias], lr=lr, momentum=MOMENTUM, nesterov=True)
    net.train()
    train_on_views(
        optimizer,
        lambda views: F.linear(encode(views), weight, bias),  # (B, C)
        images,
        class_tensor(labels, "cpu"),
        epochs=epochs,
        batch_size=min(batch_size, len(images)),
        seed=seed,
        purpose="finetune",
        device=device,
    )
    net.eval()
    test = extract(encode, dataset.test_images, device=device)  # (M, D)
    if not all_finite(test) or not all_finite(weight):
        return math.nan
    return layer_accuracy(test, weight, bias, class_tensor(dataset.test_labels, "cpu"))
