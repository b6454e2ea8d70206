"""Probes that SGD trains: Orchestra's linear one, and fine-tuning on few labels."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.evaluation import sgd, suite
from fedbench.bench.evaluation.features import Encode, NonFiniteFeaturesError
from fedbench.bench.evaluation.probes import Encoded, Splits
from fedbench.bench.evaluation.protocols import Probe
from fedbench.bench.evaluation.sgd import FRACTIONS, finetune, finetune_accuracies, finetuned_images
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import Net
from fedbench.bench.nn import optimizers
from fedbench.bench.system import seeding
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.setup import Setup
from tests.specs import measured

CPU = torch.device("cpu")


def coloured(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise whose brightest channel is its class, which crops and flips do not change."""
    rng = seeding.numpy_generator(seed, "coloured")
    labels = rng.integers(0, 3, size)
    images = rng.integers(0, 120, (size, 3, 8, 8), dtype=np.uint8)
    images[np.arange(size), labels] += 90
    return images, labels


def channel_means(images: torch.Tensor) -> torch.Tensor:
    return images.mean(dim=(2, 3))


def setup_of(images: np.ndarray, labels: np.ndarray, seed: int) -> Any:
    """What the probes read of a setup: all images are labelled, and 45 others are for the test."""
    test_images, test_labels = coloured(45, 2)
    dataset = SimpleNamespace(
        train_labels=labels, test_images=test_images, test_labels=test_labels, num_classes=3
    )
    return SimpleNamespace(
        dataset=dataset, images=images, config=SimpleNamespace(seed=seed),
        method=SimpleNamespace(encode=encode),
    )  # fmt: skip


def probe(
    encode: Encode = channel_means,
    *,
    train: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
    epochs: int = 5,
    batch_size: int = 16,
) -> float:
    images, labels = train or coloured(70, 1)
    setup = setup_of(images, labels, seed)
    splits = Splits(setup.dataset, images, np.arange(len(images)), 3, CPU)
    encoded = Encoded(setup, Net({}), encode, splits, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sgd, "EPOCHS", epochs)
        patch.setattr(sgd, "BATCH_SIZE", batch_size)
        return sgd.linear_probe_paper(encoded, ())["linear_paper_acc"]


def test_depends_on_the_seed_and_on_nothing_else() -> None:
    def noisy(images: torch.Tensor) -> torch.Tensor:
        return images[:, :, 0, 0]

    state = torch.get_rng_state()
    accuracies = [probe(noisy, seed=seed, epochs=1) for seed in (0, 0, 1, 2, 3)]
    assert accuracies[0] == accuracies[1]
    assert len(set(accuracies)) > 1
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("peak", "nesterov"), [(30, False), (0.05, True)])
def test_equals_the_protocol_written_out(
    peak: float, nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One full batch per epoch and constant images make order and views irrelevant.

    Of fine-tuning the net has no parameter, so that the linear layer alone is trained.
    """
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

    if nesterov:
        setup = setup_of(images, labels, 0)
        setup.method.encode = lambda net, batch: encode(batch)
        finetune(setup, Net({}), images, labels, 3, 12, CPU)
        del seen[0], seen[-1]  # one test image for the dimension, and all at the end
    else:
        probe(encode, train=(images, labels), epochs=3, batch_size=12)
        del seen[0]
    for batch in seen:
        torch.testing.assert_close(batch, torch.full_like(batch, 128 / 127.5 - 1))

    # lr = peak * 12 / 256 * (1 + cos(pi t / 3)) / 2; momentum 0.9, no decay.
    layer = [torch.from_numpy(value).requires_grad_() for value in steps[0][:2]]
    plain = torch.optim.SGD(layer, lr=1.0, momentum=0.9, nesterov=nesterov)
    features = torch.tensor([[0.5, -0.25]], dtype=torch.float64).expand(12, 2)
    for index, step in enumerate(steps):
        plain.param_groups[0]["lr"] = peak * 12 / 256 * (1 + math.cos(math.pi * index / 3)) / 2
        plain.zero_grad()
        F.cross_entropy(F.linear(features, *layer), torch.from_numpy(labels)).backward()
        plain.step()
        for found, expected in zip(step[2:], layer, strict=True):
            np.testing.assert_allclose(found, expected.detach(), atol=1e-6 if nesterov else 1e-5)
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


def blind_net() -> Net:
    """An encoder whose features say nothing about the class before it is trained."""
    with seeding.scope(0, "init"):
        linear = nn.Linear(192, 4)
        nn.init.zeros_(linear.weight)
        encoder = nn.Sequential(nn.Flatten(), linear, nn.BatchNorm1d(4), nn.Tanh())
    return Net({"encoder": encoder})


def encode(net: Net, images: Tensor) -> Tensor:
    features: Tensor = net(images, "encoder")
    return features


def tuned(net: Net, *, lr: float = 2.0) -> float:
    images, labels = coloured(60, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sgd, "FINETUNE_LR", lr)
        return finetune(setup_of(images, labels, 0), net, images, labels, 20, 16, CPU)


def test_the_encoder_is_trained_as_well() -> None:
    """A linear layer on constant features reaches a third; only a trained encoder exceeds it."""
    net = blind_net()
    mean = net.tensor("encoder.2.running_mean").clone()
    assert tuned(net) > 0.9
    assert net.tensor("encoder.1.weight").any()
    assert not torch.equal(net.tensor("encoder.2.running_mean"), mean)  # in training mode


def test_a_training_that_diverges_is_not_a_number() -> None:
    plain = Net({"encoder": nn.Sequential(nn.Flatten(), nn.Linear(192, 4))})
    assert math.isnan(tuned(plain, lr=1e30))


def test_a_run_is_fine_tuned_on_both_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The net has a part that lives for one round, which no state_dict holds."""
    for fraction in FRACTIONS:
        monkeypatch.setitem(FRACTIONS, fraction, (2, 8, 1))
    setup = tiny_setup(tiny_config("featarc", evaluation__protocols=["finetune"]))
    trainer = train(setup, tmp_path)
    before = trainer.vector.clone()
    metrics = evaluate(setup, trainer.binding, lambda k: None, ["finetune"], CPU)
    assert {"finetune_1pct_acc", "finetune_10pct_acc"} <= set(metrics)
    assert torch.equal(trainer.vector, before)
    encoded: Any = SimpleNamespace(setup=setup, net=trainer.binding.net, device=CPU)
    again = finetune_accuracies(encoded, ())
    assert {name: metrics[name] for name in again} == again


@pytest.mark.parametrize(
    ("size", "epochs", "images"),
    # Batches of 64 and 256 in 1 % and 10 %: 7 and 19 (420 and 570 steps), 1 and 3, 15 and 39.
    [
        (50_000, [60, 30], 420 * 64 + 570 * 256),
        (10_000, [420, 190], 420 * 64 + 570 * 256),
        (100_000, [60, 30], 900 * 64 + 1170 * 256),
    ],
)
def test_few_images_are_seen_in_as_many_steps_as_a_hundredth_and_a_tenth_of_cifar10(
    size: int, epochs: list[int], images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def record(setup: Any, net: Any, images: Any, labels: Any, epochs: int, *_: Any) -> float:
        given.append(epochs)
        return 0.5

    monkeypatch.setattr(sgd, "finetune", record)
    setup = setup_of(np.zeros((size, 1, 1, 1), np.uint8), np.arange(size) % 3, 0)
    setup.make_net, setup.probed = blind_net, np.arange(size)
    encoded: Any = SimpleNamespace(setup=setup, net=blind_net(), device=CPU)
    assert finetune_accuracies(encoded, ()) == dict.fromkeys(
        ("finetune_1pct_acc", "finetune_10pct_acc"), 0.5
    )
    assert given == epochs
    assert finetuned_images(setup) == images


def given_to_probes(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Splits:
    seen: list[Splits] = []

    def measure(encoded: Encoded, _: Any) -> dict[str, float]:
        seen.append(encoded.splits)
        return {}

    monkeypatch.setattr(suite, "probes", lambda: [Probe(("knn",), measure)])
    measured(setup, ["knn"])
    return seen[0]


@pytest.mark.parametrize(
    ("values", "probed"),
    [
        ({}, 80),
        ({"data__label_fraction": 0.25}, 20),
        ({"data__held_out": 0.2}, 64),
        ({"data__held_out": 0.2, "evaluation__labels_from": "held-out"}, 16),
    ],
)
def test_every_protocol_learns_from_the_same_images(
    values: dict[str, Any], probed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = tiny_setup(tiny_config("supervised", data__partition="joint", **values))
    assert len(setup.probed) == probed
    held = np.setdiff1d(np.arange(80), setup.partition.indices)
    if "evaluation__labels_from" in values:
        np.testing.assert_array_equal(setup.probed, held)
    else:
        assert not set(setup.probed) & set(held)
    splits = given_to_probes(setup, monkeypatch)
    np.testing.assert_array_equal(splits.train, setup.images[setup.probed])
    np.testing.assert_array_equal(splits.train_labels, setup.dataset.train_labels[setup.probed])


def test_probes_learn_from_turned_images_and_are_tested_on_upright_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = tiny_setup(tiny_config("simclr", data__partition="rotation", data__label_fraction=0.5))
    splits = given_to_probes(setup, monkeypatch)
    np.testing.assert_array_equal(splits.test, setup.dataset.test_images)
    learnt, known = np.asarray(splits.train), setup.known_labels >= 0  # half of every client's
    np.testing.assert_array_equal(learnt, setup.images[known])
    assert len(learnt) == 40
    assert (learnt != setup.dataset.train_images[known]).any(axis=(1, 2, 3)).mean() > 0.5
