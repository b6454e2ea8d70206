from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.bench.evaluation.features import Encode, NonFiniteFeaturesError
from fedbench.bench.evaluation.sgd import linear_probe_paper
from fedbench.bench.nn import optimizers
from tests.bench.evaluation.coloured import coloured


def channel_means(images: torch.Tensor) -> torch.Tensor:
    return images.mean(dim=(2, 3))


def probe(
    encode: Encode = channel_means,
    *,
    train: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
    **options: Any,
) -> float:
    images, labels = train or coloured(70, 1)
    test_images, test_labels = coloured(45, 2)
    settings = {"epochs": 5, "batch_size": 16, **options}
    return linear_probe_paper(
        encode, images, labels, test_images, test_labels,
        num_classes=3, seed=seed, device="cpu", **settings,
    )  # fmt: skip


def test_learns_what_is_separable_and_not_what_is_not() -> None:
    assert probe() == 1.0
    # Without information every test image gets the same class.
    _, truth = coloured(45, 2)
    blind = probe(lambda images: torch.ones(len(images), 4))
    assert blind in [float((truth == label).mean()) for label in range(3)]


def test_depends_on_the_seed_and_on_nothing_else() -> None:
    def noisy(images: torch.Tensor) -> torch.Tensor:
        return images[:, :, 0, 0]

    state = torch.get_rng_state()
    accuracies = [probe(noisy, seed=seed, epochs=1) for seed in (0, 0, 1, 2, 3)]
    assert accuracies[0] == accuracies[1]
    assert len(set(accuracies)) > 1
    assert torch.equal(torch.get_rng_state(), state)


def test_equals_the_protocol_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One full batch per epoch and constant images make order and views irrelevant."""
    images, labels = coloured(12, 3)
    images[:] = 128  # crops and flips of a constant image are that image
    steps: list[list[np.ndarray]] = []

    class Recorder(optimizers.SGD):
        def step(self) -> None:
            before = [p.detach().double().numpy().copy() for p in self.param_groups[0]["params"]]
            super().step()
            after = [p.detach().double().numpy().copy() for p in self.param_groups[0]["params"]]
            steps.append(before + after)

    monkeypatch.setattr(optimizers, "SGD", Recorder)
    seen: list[torch.Tensor] = []

    def encode(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch)
        return torch.tensor([[0.5, -0.25]]).expand(len(batch), 2)

    probe(encode, train=(images, labels), epochs=3, batch_size=12)
    for batch in seen[1:]:
        torch.testing.assert_close(batch, torch.full_like(batch, 128 / 127.5 - 1))

    # v <- 0.9 v + gradient, w <- w - lr v, no decay; lr = 30 * 12 / 256 * (1 + cos(pi t / 3)) / 2.
    weight, bias = steps[0][0], steps[0][1]
    features, onehot = np.tile([0.5, -0.25], (12, 1)), np.eye(3)[labels]
    speed_weight, speed_bias = np.zeros_like(weight), np.zeros_like(bias)
    for index, step in enumerate(steps):
        logits = features @ weight.T + bias
        error = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - onehot
        speed_weight = 0.9 * speed_weight + error.T @ features / 12
        speed_bias = 0.9 * speed_bias + error.mean(0)
        lr = 30 * 12 / 256 * (1 + math.cos(math.pi * index / 3)) / 2
        weight, bias = weight - lr * speed_weight, bias - lr * speed_bias
        np.testing.assert_allclose(step[2], weight, atol=1e-5)
        np.testing.assert_allclose(step[3], bias, atol=1e-5)
    assert len(steps) == 3


@pytest.mark.parametrize(("size", "batches"), [(35, [16, 16]), (16, [16]), (10, [10])])
def test_incomplete_batches_are_dropped_unless_they_are_all_there_is(
    size: int, batches: list[int]
) -> None:
    sizes: list[int] = []

    def encode(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return channel_means(images)

    probe(encode, train=coloured(size, 1), epochs=1)
    assert sizes == [45, *batches]  # all test images first


def test_an_encoder_that_diverged_is_noticed() -> None:
    with pytest.raises(NonFiniteFeaturesError, match="45 of 45"):
        probe(lambda images: channel_means(images) * math.nan)
