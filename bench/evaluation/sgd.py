"""SGD on labelled examples: the training loop of the probes and of fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import Images, take_images
from fedbench.bench.nn import optimizers
from fedbench.bench.system import seeding

MOMENTUM = 0.9
"""Momentum of the protocols that train on augmented images."""


def run_sgd(
    optimizer: optimizers.SGD,
    logits: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    num_steps: int | None = None,
) -> None:
    """Take one step of cross-entropy per batch.

    Args:
        optimizer: holds the trained tensors and the first learning rate.
        logits: inputs of a batch, (B, …), to (B, C).
        batches: inputs and classes (B,), on one device.
        num_steps: length of the half cosine along which the learning rate falls to 0, step by step;
            None keeps it constant.
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

    Args:
        optimizer: see `run_sgd`; its learning rate is the peak of the half cosine.
        logits: see `run_sgd`.
        images: uint8 (N, C, H, W).
        classes: int64 (N,).
        view: a key of `VIEWS`.
        epochs: passes over the images.
        batch_size: examples per step, at most N.
        seed: the run's.
        purpose: begins the names of the draws, `<purpose>-order` and `<purpose>-view`.
        device: where the batches are needed.
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
