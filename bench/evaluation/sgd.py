"""Probes that SGD trains on augmented images: Orchestra's linear probe, and fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.data.labels import few_per_class, hide_all
from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import (
    Encode,
    Images,
    Labels,
    check_finite,
    class_tensor,
    encode_batch,
    extract,
    take_images,
)
from fedbench.bench.evaluation.metrics import accuracy
from fedbench.bench.method import Net
from fedbench.bench.nn import optimizers
from fedbench.bench.system import seeding
from fedbench.bench.system.compute import all_finite
from fedbench.bench.training.setup import Setup

MOMENTUM = 0.9
"""Momentum of the protocols that train on augmented images."""


def run_sgd(
    optimizer: optimizers.SGD,
    logits: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    num_steps: int | None = None,
) -> None:
    """Take one step of cross-entropy per batch of inputs and classes (B,), on one device.

    The optimizer has the first learning rate, which falls to 0 along half a cosine of `num_steps`,
    step by step; None keeps it constant. `logits` maps inputs (B, …) to (B, C).
    """
    peak = optimizer.param_groups[0]["lr"]
    for step, (inputs, classes) in enumerate(batches):
        if num_steps is not None:
            optimizer.param_groups[0]["lr"] = cosine(peak, step / num_steps)
        optimizer.zero_grad()
        F.cross_entropy(logits(inputs), classes).backward()
        optimizer.step()


def cosine(peak: float, progress: float) -> float:
    """Half a cosine from `peak` at progress 0 to 0 at progress 1."""
    return 0.5 * peak * (1.0 + math.cos(math.pi * progress))


def train_on_views(
    optimizer: optimizers.SGD,
    logits: Callable[[Tensor], Tensor],
    images: Images,
    classes: Tensor,
    *,
    view: str,
    epochs: int,
    batch_size: int,
    seed: int,
    purpose: str,
    device: torch.device | str,
) -> None:
    """`run_sgd` on one view per image and epoch, shuffled, without incomplete batches.

    The optimizer's learning rate is the peak of the half cosine. Images are uint8 (N, C, H, W),
    classes int64 (N,), `batch_size` at most N. `purpose` begins the names of the draws,
    `<purpose>-order` and `<purpose>-view`.
    """
    num_batches = len(images) // batch_size
    place = images.device if isinstance(images, Tensor) else "cpu"
    classes = classes.to(place)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in range(epochs):
            shuffle = seeding.generator(seed, f"{purpose}-order", epoch)
            draws = seeding.generator(seed, f"{purpose}-view", epoch)
            order = torch.randperm(len(images), generator=shuffle).to(place)
            for rows in order[: num_batches * batch_size].split(batch_size):
                batch = make_view(view, take_images(images, rows).to(device), draws)
                yield batch, classes[rows].to(device)

    run_sgd(optimizer, logits, batches(), epochs * num_batches)


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


def linear_probe_paper(
    encode: Encode,
    train_images: Images,
    train_labels: Labels,
    test_images: Images,
    test_labels: Labels,
    *,
    num_classes: int,
    seed: int,
    device: torch.device | str,
    epochs: int = 50,
    batch_size: int = 256,
    lr: float = 30.0,
    view: str = "base",
) -> float:
    """Accuracy of a linear layer trained by SGD on features of freshly augmented images.

    The learning rate is lr * batch_size / 256, taken to 0 along half a cosine, step by step and
    without warm-up; momentum 0.9, no weight decay. Features are not standardised. Images are uint8
    (N, C, H, W); a tensor on `device` saves a copy of each batch. The caller puts the backbone
    `encode` into eval mode and on `device`; the seed names the draws of weights, order and views.
    Returns the accuracy on all test images, in [0, 1]. Raises `NonFiniteFeaturesError` if a feature
    is NaN or infinite.

    Source: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, and its released evaluation code.
    Deliberate deviations: the training images are shuffled, and all test images count (the release
    goes through the training set in stored order and drops the incomplete last test batch, 16 of
    10,000 images); the schedule begins with the first step (the release's first has rate 0.1, and
    every later one the scheduled rate of the step before). As there, an incomplete last training
    batch is dropped; where that would leave none, the few images are one batch.
    """
    # Before the training, so that a diverged encoder is noticed in seconds.
    test = extract(encode, test_images, device=device)  # (M, D)
    check_finite("paper probe, test features", test)

    weight, bias = initial_layer(test.shape[1], num_classes, seed, device)
    batch_size = min(batch_size, len(train_images))
    optimizer = optimizers.SGD([weight, bias], lr=lr * batch_size / 256, momentum=MOMENTUM)

    def logits(images: Tensor) -> Tensor:
        features = encode_batch(encode, images, device)
        check_finite("paper probe, training features", features)
        # A copy: tensors made in inference mode may not enter a backward pass.
        return F.linear(features.clone(), weight, bias)  # (B, C)

    train_on_views(
        optimizer,
        logits,
        train_images,
        class_tensor(train_labels, "cpu"),
        view=view,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        purpose="linear-paper",
        device=device,
    )
    return layer_accuracy(test, weight, bias, class_tensor(test_labels, "cpu"))


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
    protocols learn from (`Setup.probed`); the smaller set lies within the larger one. The net,
    whose weights are the first ones, does not change. NaN where the training diverged.
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

    Nesterov momentum 0.9, no weight decay, batch norm in training mode; the learning rate is lr *
    batch_size / 256, taken to 0 along half a cosine, step by step. An incomplete last batch is left
    out; where that would leave none, the few images are one batch. The net is trained in place;
    `encode` maps it and normalised images (B, C, H, W) to features (B, D). Images are uint8
    (N, C, H, W), labels (N,); the seed names the draws of the layer's weights, of order and views.
    Returns the accuracy on all test images, in [0, 1]; NaN if the training diverged.

    Source: ours. Lubana et al. 2022, https://arxiv.org/abs/2205.11506, fine-tunes with 1 % and 10 %
    of the labels without giving settings, on images that were not pre-trained on; so does this with
    `data.held_out` and `evaluation.labels_from`. The script of its release, which lacks a module,
    trains the linear layer alone while batch norms are in training mode.
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
