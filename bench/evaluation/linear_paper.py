"""Orchestra's linear probe: 50 epochs of SGD on augmented images over a frozen backbone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.features import (
    Encode,
    Images,
    Labels,
    check_finite,
    class_tensor,
    encode_batch,
    extract,
)
from fedbench.bench.evaluation.sgd import (
    MOMENTUM,
    initial_layer,
    layer_accuracy,
    train_on_views,
)
from fedbench.bench.nn import optimizers


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
    Deliberate deviations: the training images are shuffled, and all test images count (the release
    goes through the training set in stored order and drops the incomplete last test batch, 16 of
    10,000 images); the schedule begins with the first step (the release's first has rate 0.1, and
    every later one the scheduled rate of the step before). As there, an incomplete last training
    batch is dropped; where that would leave none, the few images are one batch.

    Args:
        encode: the backbone; the caller puts it into eval mode and on `device`.
        train_images: uint8 (N, C, H, W); a tensor on `device` saves a copy of each batch.
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
        NonFiniteFeaturesError: if a feature is NaN or infinite.
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
