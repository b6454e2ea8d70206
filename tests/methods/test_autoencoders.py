"""Plain autoencoders: averaged, alone, and pooled with labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.data.batches import Batch
from fedbench.bench.data.views.views import normalise
from fedbench.bench.method import Method, RoundPlan
from fedbench.bench.nn.autoencoder import ImageDecoder
from fedbench.bench.nn.backbones import Backbone, make_backbone
from fedbench.bench.system.seeding import generator, single_thread
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from tests.specs import client, setup_of

CPU = torch.device("cpu")
X = torch.rand(5, 1, 8, 8, generator=generator(0, "images"))
LABELS = torch.tensor([0, 9, 3, 3, 1])


def resnet18(norm: str = "batch") -> Backbone:
    return make_backbone(ModelConfig.model_validate({"backbone": "resnet18", "norm": norm}), 3)


@pytest.mark.parametrize("spec", ["fedavg-ae", "single-ae", "central-ae"])
def test_the_loss_is_the_mean_squared_error_of_the_reconstruction(spec: str) -> None:
    setup = setup_of(spec)
    assert setup.needs.views == ("unit",)
    net = setup.make_net()
    out = setup.method.loss(net, Batch((X,), LABELS), client())
    z = net["encoder"](X)
    assert torch.equal(out.features[0], z)
    made = net["decoder"](z).flatten().tolist()
    squares = [(a - b) ** 2 for a, b in zip(made, X.flatten().tolist(), strict=True)]
    assert out.total.item() == pytest.approx(sum(squares) / len(squares), rel=1e-4)


@pytest.mark.parametrize("spec", ["fedavg-ae", "single-ae", "central-ae", "pfedae"])
def test_evaluation_shows_the_encoder_what_it_was_trained_on(spec: str) -> None:
    """`encode` gets normalised images, and the encoder images in [0, 1]."""
    setup = setup_of(spec)
    net = setup.make_net().eval()
    expected = net["encoder"](X)
    for features in (setup.method.encode(net, normalise(X)), setup.method.embed(net, normalise(X))):
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "first_map"),
    [
        ((3, 32, 32), (256, 4, 4)),
        ((1, 8, 8), (64, 4, 4)),
        ((3, 96, 96), (512, 6, 6)),
        ((1, 17, 17), (32, 17, 17)),
        ((3, 16, 32), (128, 4, 8)),
    ],
)
def test_decoders_fit_images_of_any_shape(
    shape: tuple[int, int, int], first_map: tuple[int, int, int]
) -> None:
    """The first map has half the side, and twice 32 channels, as often as no side ends below 4."""
    decoder = ImageDecoder(resnet18("group"), 12, shape, 32)
    assert decoder.first_map == first_map
    images = decoder(torch.randn(2, 12, generator=generator(0, "z")))
    assert images.shape == (2, *shape)
    assert 0 <= images.min() <= images.max() <= 1
    unbounded = ImageDecoder(resnet18("group"), 12, shape, 32, bounded=False)
    assert isinstance(unbounded.layers[-1], nn.Conv2d)
    assert not unbounded.bounded


def test_single_clients_share_nothing_and_train_on(tmp_path: Path) -> None:
    """One client's encoder is the same whatever the others hold, and rounds are one training."""
    config = tiny_config("single-ae", client__optimizer="adam", client__lr=0.01)
    shares = [[0, 1, 2, 3], list(range(10, 30)), [40, 41]]
    other = [[0, 1, 2, 3], list(range(50, 60)), [70, 71, 72]]
    runs = [
        train(tiny_setup(config, shares=variant), tmp_path / str(index))
        for index, variant in enumerate((shares, other))
    ]
    assert all(trainer.ledger.bytes_up == trainer.ledger.bytes_down == 0 for trainer in runs)
    first, second = (PersonalStore(trainer.folder / "clients").load(0, 1) for trainer in runs)
    assert torch.equal(first, second)
    state = PersonalStore(runs[0].folder / "clients").load_optimizer(0, 1, "Adam")
    assert state[0]["step"].item() == 2.0  # one batch a round, two rounds


def adam_by_hand(setup: Setup, rounds: int) -> torch.Tensor:
    """Return the only client's tensors after rounds of one epoch under one persistent Adam."""
    method: Method = setup.method
    binding = setup.bound()
    adam = torch.optim.Adam(binding.trained(0), lr=setup.config.client.lr)
    for index in range(rounds):
        for batch in setup.client_data(0, CPU).batches(
            ("unit",), 1, 16, keep_last=True, min_batch=1,
            order=generator(0, "order", index, 0), augment=generator(0, "views", index, 0),
        ):  # fmt: skip
            binding.zero_grad()
            method.loss(binding.net.train(), batch, client(0, index)).total.backward()
            adam.step()
    return binding.personal.data


def test_the_optimizer_lives_on_between_rounds(tmp_path: Path) -> None:
    config = tiny_config(
        "single-ae", client__optimizer="adam", client__lr=0.01, client__weight_decay=0.0,
        federation__num_rounds=3,
    )  # fmt: skip
    setup = tiny_setup(config, shares=[list(range(40))])
    trainer = train(setup, tmp_path)
    tensors = PersonalStore(trainer.folder / "clients").load(0, 2)
    with single_thread():  # as clients train
        expected = adam_by_hand(setup, 3)
    torch.testing.assert_close(tensors, expected, rtol=1e-5, atol=1e-6)


def central(**values: Any) -> Setup:
    fields = {"method__pretrain_rounds": 2, "client__momentum": 0.0, "client__optimizer": "adam"}
    return setup_of("central-ae", **{**fields, **values})


def test_the_reference_holds_what_all_clients_hold() -> None:
    setup = central(data__partition="pathological", data__num_clients=3)
    assert setup.partition.num_clients == setup.spec.num_clients == 1
    assert setup.client_partition.num_clients == 3
    assert (
        0 < len(setup.client_partition.indices) < 80
    )  # six of ten classes: only what clients hold counts
    assert np.array_equal(setup.partition.client(0), np.sort(setup.client_partition.indices))
    assert len(setup.client_data(0, CPU)) == len(setup.client_partition.indices)


def test_the_reference_reconstructs_then_classifies(tmp_path: Path) -> None:
    setup = central(data__label_fraction=0.5)
    method, net = setup.method, setup.make_net()
    plans = [method.plan_round(index, RoundPlan(1)) for index in (1, 2)]
    assert [(plan.optimizer, plan.lr) for plan in plans] == [(None, None), ("sgd", 0.1)]
    data = setup.client_data(0, CPU)
    assert len(method.before_local(net, data, client(0, 1))) == 80
    assert len(method.before_local(net, data, client(0, 2))) == 40
    out = method.loss(net, Batch((X,), LABELS), client(0, 2))
    logits = net["classifier"](net["encoder"](X))
    torch.testing.assert_close(out.total, F.cross_entropy(logits, LABELS))
    trainer = train(setup, tmp_path)
    assert [record.cohort_size for record in trainer.history] == [1] * 4
    assert trainer.ledger.bytes_up == trainer.ledger.bytes_down == 0


def test_the_reference_has_two_learning_rates(tmp_path: Path) -> None:
    """One step of SGD moves the classifier by 0.1 x its gradient, the encoder by 0.01 x its own."""
    setup = central(method__pretrain_rounds=0, client__batch_size=80, client__weight_decay=0.0)
    net = setup.make_net().train()
    images = torch.from_numpy(setup.images[setup.partition.client(0)].copy()).float() / 255
    labels = torch.from_numpy(setup.labels[setup.partition.client(0)].copy())
    F.cross_entropy(net["classifier"](net["encoder"](images)), labels).backward()
    runner = ClientRunner(setup, CPU, tmp_path)
    plan = setup.method.plan_round(0, RoundPlan(1))
    runner.run(Task(0, 0, plan), torch.empty(0), torch.empty(0))
    for name, before in net.named_parameters():
        rate = {"encoder": 0.01, "classifier": 0.1, "decoder": 0.0}[name.split(".")[0]]
        gradient = torch.zeros_like(before) if before.grad is None else before.grad
        moved = runner.binding.net.tensor(name)
        torch.testing.assert_close(moved, before - rate * gradient, rtol=1e-4, atol=1e-6)
