"""Orchestra's linear probe: 50 epochs of SGD on augmented images over a frozen backbone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import (
    Encode,
    EvaluationError,
    Images,
    Labels,
    check_finite,
    check_labels,
    check_positive,
    encode_batch,
    extract,
    take_images,
)
from fedbench.bench.nn import optimizers
from fedbench.bench.system import seeding

MOMENTUM = 0.9


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
    without warm-up; momentum 0.9, no weight decay. Features are not standardised.

    Source: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, and its released evaluation code.
    Two deliberate deviations: the training images are shuffled, and all test images count (the
    release goes through the training set in stored order and drops the incomplete last test batch,
    16 of 10,000 images). As there, an incomplete last training batch is dropped; where that would
    leave none, the few images are one batch.

    Args:
        encode: the backbone; the caller puts it into eval mode and on `device`.
        train_images: uint8 (N, C, H, W).
        train_labels: (N,), each in [0, num_classes).
        test_images: uint8 (M, C, H, W).
        test_labels: (M,), each in [0, num_classes).
        num_classes: at least 1.
        seed: the run's; names the draws of the layer's initial weights, of the order and the views.
        device: where everything is computed.
        epochs: passes over the training images, at least 1.
        batch_size: examples per step.
        lr: learning rate at a batch size of 256, positive.
        view: augmentation of the training images.

    Returns:
        Accuracy on all test images, in [0, 1].

    Raises:
        EvaluationError: if images, labels and settings do not fit together.
        NonFiniteFeaturesError: if a feature is NaN or infinite.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("lr", lr)):
        check_positive(name, value)
    if len(train_images) == 0 or len(test_images) == 0:
        raise EvaluationError(
            f"paper probe: {len(train_images)} training and {len(test_images)} test images; "
            "at least 1 of each is needed"
        )
    targets = check_labels("paper probe, training", train_labels, len(train_images), num_classes)
    truth = check_labels("paper probe, test", test_labels, len(test_images), num_classes)

    # Before the training, so that a diverged encoder is found out in seconds.
    test = extract(encode, test_images, device=device)  # (M, D)
    check_finite("paper probe, test features", test)

    weight, bias = initial_layer(test.shape[1], num_classes, seed)
    weight, bias = weight.to(device).requires_grad_(), bias.to(device).requires_grad_()
    optimizer = optimizers.SGD([weight, bias], lr=lr, momentum=MOMENTUM)
    batch_size = min(batch_size, len(train_images))
    num_batches = len(train_images) // batch_size
    for epoch in range(epochs):
        order = torch.randperm(
            len(train_images), generator=seeding.generator(seed, "linear-paper-order", epoch)
        )
        views = seeding.generator(seed, "linear-paper-view", epoch)
        for index, chosen in enumerate(order[: num_batches * batch_size].split(batch_size)):
            images = make_view(view, take_images(train_images, chosen).to(device), views)
            features = encode_batch(encode, images, device)
            check_finite("paper probe, training features", features)
            progress = (epoch * num_batches + index) / (epochs * num_batches)
            optimizer.param_groups[0]["lr"] = cosine(lr * batch_size / 256, progress)
            optimizer.zero_grad()
            # A copy: tensors made in inference mode may not enter a backward pass.
            logits = F.linear(features.clone().to(device), weight, bias)  # (B, C)
            F.cross_entropy(logits, targets[chosen].to(device)).backward()
            optimizer.step()
    with torch.no_grad():
        predicted = F.linear(test.to(device), weight, bias).argmax(dim=1).cpu()
    return (predicted == truth).double().mean().item()


def cosine(peak: float, progress: float) -> float:
    """Half a cosine from `peak` at progress 0 to 0 at progress 1."""
    return 0.5 * peak * (1.0 + math.cos(math.pi * progress))


def initial_layer(num_inputs: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weights (C, D) and bias (C,) as torch's Linear draws them, from a generator of our own."""
    draws = seeding.generator(seed, "linear-paper-init")
    bound = 1.0 / math.sqrt(num_inputs)
    weight = torch.empty(num_classes, num_inputs).uniform_(-bound, bound, generator=draws)
    return weight, torch.empty(num_classes).uniform_(-bound, bound, generator=draws)
