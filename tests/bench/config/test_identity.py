"""Identity of runs and configurations."""

import json
from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from fedbench.bench.config import (
    BENCHMARK_VERSION,
    DataConfig,
    EvaluationConfig,
    RunConfig,
    training_settings,
)
from fedbench.bench.config.identity import section_defaults
from fedbench.bench.method import registry
from fedbench.bench.method.ids import config_id, counted, row_id, training_id
from fedbench.bench.system.identity import content_id
from fedbench.methods.simclr import SimCLR
from tests.defaults import FILE, current, with_new_fields

REVISION = "f" * 64


def config(**data: object) -> RunConfig:
    return RunConfig(data=DataConfig.model_validate(data))


def test_the_folder_of_a_data_set_does_not_matter_but_its_revision_does() -> None:
    here, there = config(name="hub:/a/cifar10"), config(name="hub:b/cifar-10")
    assert row_id(here, REVISION) == row_id(there, REVISION)
    assert config_id(here, REVISION) == config_id(there, REVISION)
    assert row_id(here, REVISION) != row_id(here, "e" * 64)
    assert here.data.public_name == "hub:cifar10"
    assert config().data.public_name == "digits"


@pytest.mark.parametrize(
    ("partition", "field", "value", "matters"),
    [
        ("iid", "alpha", 5.0, False),
        ("pathological", "alpha", 5.0, False),
        ("rotation", "alpha", 5.0, True),
        ("dirichlet", "alpha", 5.0, True),
        ("dirichlet-balanced", "legacy", True, True),
        ("hsu", "legacy", True, False),
        ("hsu", "multiply_prior", False, True),
        ("dirichlet", "multiply_prior", False, False),
        ("pathological", "classes_per_client", 3, True),
        ("iid", "classes_per_client", 3, False),
        ("joint", "rotation_alpha", 3.0, True),
        ("rotation", "rotation_alpha", 3.0, False),
        ("rotation", "rotation_bins", 3, True),
        ("iid", "num_clients", 3, True),
    ],
)
def test_a_field_counts_where_the_partitioner_reads_it(
    partition: str, field: str, value: object, matters: bool
) -> None:
    plain, changed = config(partition=partition), config(partition=partition, **{field: value})
    assert (row_id(plain, REVISION) != row_id(changed, REVISION)) is matters


def test_privacy_that_is_off_does_not_count() -> None:
    plain = RunConfig()
    off = RunConfig.model_validate({"privacy": {"delta": 1e-3}})
    on = RunConfig.model_validate({"privacy": {"clip": 1.0}})
    assert row_id(plain, "r") == row_id(off, "r") != row_id(on, "r")


def test_measuring_differently_is_another_run_of_the_same_training() -> None:
    """Every field of the evaluation counts in the row alone."""
    plain = RunConfig(seed=3)
    other: dict[str, Any] = {
        "protocols": ["knn"],
        "labels_from": "held-out",
        "objective_on": "encoder",
        "objective_clients": 3,
        "objective_noise": 1.0,
        "objective_view": "simclr-strong",
        "objectives": ["rankme"],
        "probe_fractions": [0.1],
        "rounds": [2],
        "transfer": ["digits"],
        "untrained": False,
        "unseen_alpha": 1.0,
    }
    for name, info in EvaluationConfig.model_fields.items():
        value = other.get(name, info.default)
        changed = value if name in other else value + 1
        config = RunConfig.model_validate({"seed": 3, "evaluation": {name: changed}})
        assert row_id(config, REVISION) != row_id(plain, REVISION), name
        assert training_id(config, REVISION) == training_id(plain, REVISION), name
        assert config_id(config, REVISION) == config_id(plain, REVISION), name
    reseeded = RunConfig(seed=4)
    assert training_id(reseeded, REVISION) != training_id(plain, REVISION)
    slower = RunConfig.model_validate({"seed": 3, "client": {"lr": 0.01}})
    assert training_id(slower, REVISION) != training_id(plain, REVISION)


def test_code_of_an_encoder_trains_and_that_of_a_probe_measures() -> None:
    plain = RunConfig()
    for name, trains in ((f"backbones:{plain.model.backbone}", True), ("probes:p", False)):
        coded = plain.model_copy(update={"code": {name: "0"}})
        assert (training_id(coded, REVISION) != training_id(plain, REVISION)) is trains
        assert row_id(coded, REVISION) != row_id(plain, REVISION)


def test_an_id_is_a_hash_of_what_differs_from_the_pinned_defaults() -> None:
    """By hand; a field at its default counts as one that is not there, in every section."""
    given = {"spec": "simclr+fedprox", "method": {"temperature": 0.5}, "server": {"lr": 0.5}}
    config = RunConfig.model_validate({**given, "seed": 3, "evaluation": {"knn_neighbours": 10}})
    counted = {"spec": "simclr+fedprox", "method.temperature": 0.5, "server.lr": 0.5}

    def expected(**more: object) -> str:
        settings = {**counted, **more}
        body = {"benchmark": BENCHMARK_VERSION, "data": REVISION, "config": settings}
        return content_id(body)

    assert config_id(config, REVISION) == expected()
    assert training_id(config, REVISION) == expected(seed=3)
    assert row_id(config, REVISION) == expected(seed=3, **{"evaluation.knn_neighbours": 10})
    full = registry.dump(registry.create(config.spec, config.method))
    assert full["fedprox"]
    assert row_id(config.model_copy(update={"method": full}), REVISION) == row_id(config, REVISION)


class Knob(SimCLR):
    """SimCLR with one more field."""

    margin: float = 0.0


class Changed(SimCLR):
    """SimCLR with another default."""

    temperature: float = 0.7


def as_simclr(cls: type[SimCLR], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a class take SimCLR's place, as an edit of its file would."""
    monkeypatch.setattr(cls, "__module__", SimCLR.__module__)
    entry = registry.entries()["simclr"]
    defaults = cls.model_construct().model_dump(mode="json")
    monkeypatch.setitem(registry._ENTRIES, "simclr", replace(entry, cls=cls, defaults=defaults))


def made(**fields: object) -> RunConfig:
    return RunConfig(method=registry.dump(registry.create("simclr", fields)))


def test_a_new_knob_keeps_the_ids_of_its_default_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = row_id(made(), REVISION)
    as_simclr(Knob, monkeypatch)
    assert made().method["margin"] == 0.0
    assert row_id(made(), REVISION) == before != row_id(made(margin=0.5), REVISION)


def test_a_new_field_of_a_section_keeps_every_id(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig()
    before = row_id(config, REVISION), config_id(config, REVISION)
    body = config.model_dump(mode="json")
    for section in ("data", "model", "client", "federation", "server", "evaluation"):
        body[section]["knob"] = None

    def dump(self: RunConfig, *, mode: str, exclude: Collection[str] = ()) -> dict[str, Any]:
        return {k: v for k, v in deepcopy(body).items() if k not in exclude}

    monkeypatch.setattr(RunConfig, "model_dump", dump)
    section_defaults.cache_clear()
    try:
        assert (row_id(config, REVISION), config_id(config, REVISION)) == before
        assert counted({**body, "server": {"knob": 1}})["server.knob"] == 1
    finally:
        section_defaults.cache_clear()


def test_a_changed_default_of_this_version_is_another_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = row_id(made(), REVISION)
    as_simclr(Changed, monkeypatch)
    assert row_id(made(), REVISION) != before == row_id(made(temperature=0.1), REVISION)


def test_defaults_are_those_of_the_version() -> None:
    """A field may be added; a default changes with BENCHMARK_VERSION, and `tests/defaults.py`."""
    pinned, now = json.loads(FILE.read_text("utf-8")), current()
    assert pinned["benchmark"] == now["benchmark"]
    assert pinned["config"].items() <= now["config"].items()
    for name, fields in pinned["methods"].items():
        assert fields.items() <= now["methods"][name].items(), name


def test_defaults_are_pinned_once() -> None:
    now = current()
    old = deepcopy(now)
    del old["config"]["client.lr"], old["methods"]["simclr"]["temperature"]
    old["config"]["server.lr"] = 7.0
    merged = with_new_fields(old, now)
    assert merged["config"]["client.lr"] == now["config"]["client.lr"]
    assert merged["methods"]["simclr"] == now["methods"]["simclr"]
    assert merged["config"]["server.lr"] == 7.0
    assert with_new_fields({**old, "benchmark": "0"}, now) == now


@pytest.mark.parametrize(
    "reading",
    [
        {"label_column": "coarse_label"},
        {"test_rows": "fold=5"},
        {"image_size": 32},
        {"natural_column": "writer"},
        {"partition_file": "clients.json"},
    ],
)
def test_how_a_data_set_is_read_counts_by_its_revision_alone(reading: dict[str, object]) -> None:
    assert training_settings(config(**reading).model_dump(mode="json")) == training_settings(
        config().model_dump(mode="json")
    )
    assert row_id(config(**reading), REVISION) == row_id(config(), REVISION)
