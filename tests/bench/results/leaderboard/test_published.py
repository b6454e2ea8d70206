from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedbench.bench.config import ClientConfig, DataConfig, ModelConfig, RunConfig, ServerConfig
from fedbench.bench.config.schema import FederationConfig, PrivacyConfig
from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.leaderboard.published import (
    METHODS,
    Published,
    _cell_at,
    dataset_name,
    published_number,
)
from fedbench.bench.results.store.row import Row

MakeRow = Callable[..., Row]


def device(spec: str = "simclr", num_rounds: int = 100, **data: Any) -> RunConfig:
    given: dict[str, Any] = {"name": "cifar10", "num_clients": 100, **data}
    return RunConfig(
        spec=spec,
        data=DataConfig(**given),
        model=ModelConfig(backbone="resnet18", norm="batch"),
        client=ClientConfig(batch_size=16, local_epochs=10),
        federation=FederationConfig(num_rounds=num_rounds, participation=0.5),
    )


def mutual(spec: str, name: str, partition: Any, clients: int, **data: Any) -> RunConfig:
    tiny = name == "tiny-imagenet"
    return RunConfig(
        spec=spec,
        data=DataConfig(name=name, partition=partition, num_clients=clients, **data),
        model=ModelConfig(backbone="cct" if tiny else "resnet18", norm="group"),
        client=ClientConfig(batch_size=128, local_epochs=1, lr=0.1, momentum=0, weight_decay=0),
        federation=FederationConfig(num_rounds=50_000, participation=10 / clients),
        server=ServerConfig(optimizer="adam"),
    )


def test_orchestra_cell_with_its_spread(make_row: MakeRow) -> None:
    row = make_row(device(), preset="cross-device")
    number = published_number(row, "linear_paper_acc")
    # Table 5, f-SimCLR, CIFAR-10, cross-device: 58.36 ± 0.19 over 3 seeds.
    assert number == Published(
        value=58.36 / 100,
        spread=0.19 / 100,
        spread_kind="standard deviation",
        n_seeds=3,
        source="orchestra_table5",
        setting="cross_device",
        note="",
    )
    cached = published_number(row, "linear_acc")
    assert cached is not None
    assert cached.value == pytest.approx(0.5836)
    assert "50-epoch probe" in cached.note
    assert published_number(row, "knn_acc") is None


def test_hub_folders_count_by_their_name(make_row: MakeRow) -> None:
    row = make_row(device(name="hub:data/cifar10"), preset="cross-device")
    assert published_number(row, "linear_acc") is not None
    assert dataset_name("folder:x/Tiny-ImageNet/") == "tinyimagenet"


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (device(), "demo"),
        (device(), "laptop"),
        (device(), "cross-silo"),
        (device(num_rounds=99), "cross-device"),
        (device(alpha=1.0), "cross-device"),
        (device(train_subset=1000), "cross-device"),
        (device(held_out=0.1), "cross-device"),
        (device("supervised", label_fraction=0.1), "cross-device"),
        (mutual("supervised", "cifar10", "hsu", 100, label_fraction=0.1), "mi"),
        (device(spec="simclr+uv"), "cross-device"),
        (device(name="svhn"), "cross-device"),
    ],
)
def test_nothing_is_shown_outside_the_published_setting(
    config: RunConfig, preset: str, make_row: MakeRow
) -> None:
    assert published_number(make_row(config, preset=preset), "linear_acc") is None


@pytest.mark.parametrize(
    ("spec", "name", "partition", "clients", "value", "spread"),
    [
        ("simclr", "cifar10", "hsu", 100, 0.794, 0.002),  # M table 1
        ("simclr", "cifar10", "rotation", 100, 0.743, 0.003),
        ("simclr", "cifar10", "joint", 100, 0.710, 0.004),
        ("simclr", "tiny-imagenet", "hsu", 100, 0.333, None),  # M table 4
    ],
)
def test_mutual_information_cells(
    spec: str,
    name: str,
    partition: str,
    clients: int,
    value: float,
    spread: float | None,
    make_row: MakeRow,
) -> None:
    number = published_number(
        make_row(mutual(spec, name, partition, clients), preset="mi"), "linear_acc"
    )
    assert number is not None
    assert number.value == pytest.approx(value)
    assert number.spread == (None if spread is None else pytest.approx(spread))


def test_semi_supervised_cells_need_their_share_of_labels(make_row: MakeRow) -> None:
    config = mutual("semifed+uv", "cifar10", "hsu", 100, label_fraction=0.1)
    number = published_number(make_row(config, preset="mi-semi"), "linear_acc")
    assert number is not None
    assert number.value == pytest.approx(0.767)
    assert number.source == "mi_table5"
    assert published_number(make_row(config, preset="mi"), "linear_acc") is None
    other = mutual("semifed+uv", "cifar10", "hsu", 100, label_fraction=0.2)
    assert published_number(make_row(other, preset="mi-semi"), "linear_acc") is None


def test_autoencoder_cells(make_row: MakeRow) -> None:
    config = RunConfig(
        spec="pfedae",
        data=DataConfig(name="cifar10", num_clients=10),
        client=ClientConfig(batch_size=256, optimizer="adam", lr=0.01),
        federation=FederationConfig(num_rounds=100),
    )
    row = make_row(config, preset="pfedae")
    values = {m: published_number(row, m) for m in ("mlp_acc", "mlp_local_acc", "linear_acc")}
    assert values["linear_acc"] is None  # the thesis has a two-layer probe only
    assert values["mlp_acc"] is not None
    assert values["mlp_acc"].value == pytest.approx(0.8238)
    assert values["mlp_local_acc"] is not None
    assert values["mlp_local_acc"].value == pytest.approx(0.8316)
    shares = {
        "mlp_10pct_acc": 0.6850, "mlp_1pct_acc": 0.6512,
        "mlp_10pct_local_acc": 0.7124, "mlp_1pct_local_acc": 0.6587,
    }  # fmt: skip
    for metric, value in shares.items():
        number = published_number(row, metric)
        assert number is not None
        assert number.value == pytest.approx(value)
    assert published_number(row, "mlp_5pct_acc") is None
    pathological = DataConfig(name="cifar10", num_clients=10, partition="pathological")
    two = make_row(config.model_copy(update={"data": pathological}), preset="pfedae")
    number = published_number(two, "mlp_1pct_local_acc")
    assert number is not None
    assert number.value == pytest.approx(0.6503)
    assert "does not say global or local" in number.note


def test_every_mapped_name_is_printed_somewhere() -> None:
    prefixes = {"orchestra": "orchestra_", "mi": "mi_", "pfedae": "pfedae_"}
    for paper, names in METHODS.items():
        printed = {key[3] for key in _cell_at() if key[0].startswith(prefixes[paper])}
        assert set(names.values()) <= printed


def test_the_line_has_the_difference(make_row: MakeRow) -> None:
    rows = [make_row(device(), preset="cross-device", linear_acc=0.6)]
    line = leaderboard(rows).lines[0]
    assert line.difference == pytest.approx(0.6 - 0.5836)
    assert leaderboard(rows, published=False).lines[0].published is None


@pytest.mark.parametrize(
    ("sent", "value", "source"),
    [
        ({}, 0.7158, "orchestra_table5"),
        ({"representations": "memory"}, 0.7195, "orchestra_table7"),
        ({"representations": "private", "epsilon": 0.8, "delta": 1e-3}, 0.6946, "orchestra_table7"),
        (
            {"representations": "private", "epsilon": 10.0, "delta": 1e-3},
            0.6963,
            "orchestra_table7",
        ),
        ({"representations": "private", "epsilon": 2.0, "delta": 1e-3}, None, ""),
        ({"representations": "private", "epsilon": 1.0, "delta": 1e-5}, None, ""),
        ({"representations": "random"}, None, ""),
    ],
)
def test_what_orchestras_clients_send_is_compared_with_its_own_row(
    make_row: MakeRow, sent: dict[str, Any], value: float | None, source: str
) -> None:
    config = device("orchestra").model_copy(update={"method": sent})
    number = published_number(make_row(config, preset="cross-device"), "linear_paper_acc")
    assert (None if number is None else number.value) == pytest.approx(value)
    assert number is None or number.source == source


def test_clipped_runs_have_no_published_counterpart(make_row: MakeRow) -> None:
    config = device().model_copy(update={"privacy": PrivacyConfig(clip=1.0)})
    assert published_number(make_row(config, preset="cross-device"), "linear_paper_acc") is None
