"""Identity of runs and configurations."""

import json
from typing import Any

import pytest

from fedbench.bench.config import (
    BENCHMARK_VERSION,
    DataConfig,
    EvaluationConfig,
    RunConfig,
    config_id,
    row_id,
    training_id,
    training_settings,
)
from fedbench.bench.system.identity import content_id

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


def test_the_seed_is_in_the_run_and_not_in_the_configuration() -> None:
    one, two = RunConfig(seed=1), RunConfig(seed=2)
    assert row_id(one, REVISION) != row_id(two, REVISION)
    assert config_id(one, REVISION) == config_id(two, REVISION)


def test_precision_counts_where_it_is_narrow() -> None:
    """Rows written before the field existed keep their id."""
    settings = training_settings(RunConfig().model_dump(mode="json"))
    assert "precision" not in settings["client"]
    narrow = RunConfig.model_validate({"client": {"precision": "bf16"}})
    assert row_id(narrow, "r") != row_id(RunConfig(), "r")


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


def test_settings_of_an_older_version_lack_fields_and_stay_comparable() -> None:
    """Before version 4 there was no `client.precision`, no `privacy` and no `model.init`."""
    now = RunConfig().model_dump(mode="json")
    then = json.loads(json.dumps(now))
    del then["client"]["precision"], then["privacy"]
    assert training_settings(then) == training_settings(now)
    assert "name" not in training_settings(now)["data"]
    assert {"seed", "evaluation"} & set(training_settings(now)) == set()


@pytest.mark.parametrize(
    "reading",
    [
        {"label_column": "coarse_label"},
        {"image_size": 32},
        {"natural_column": "writer"},
        {"partition_file": "clients.json"},
    ],
)
def test_how_a_data_set_is_read_counts_by_its_revision_alone(reading: dict[str, object]) -> None:
    """Runs from before these fields keep their ids, since the settings do not have them."""
    assert training_settings(config(**reading).model_dump(mode="json")) == training_settings(
        config().model_dump(mode="json")
    )
    assert row_id(config(**reading), REVISION) == row_id(config(), REVISION)


@pytest.mark.parametrize(
    ("spec", "fields", "corrected"),
    [
        ("lejepa", {"method": {"statistics": "local"}}, None),
        ("lejepa+fedprox", {"method": {"statistics": "global"}}, {"lejepa": 1}),
        ("simclr+scaffold", {}, None),
        ("simclr+scaffold", {"server": {"weighting": "examples"}}, {"scaffold": 1}),
        ("simclr", {"server": {"weighting": "examples"}}, None),
        ("byol+fedu2", {"method": {"target": "averaged"}}, {"fedu2": 1}),
        ("simclr+fedu2", {}, None),
    ],
)
def test_corrected_variants_alone_have_other_ids_than_before(
    spec: str, fields: dict[str, Any], corrected: dict[str, int] | None
) -> None:
    """A row from before the correction is not taken for one of the same settings from after it."""
    made = RunConfig.model_validate({"spec": spec, **fields})
    settings = training_settings(made.model_dump(mode="json"))
    body = {"benchmark": BENCHMARK_VERSION, "data": REVISION, "config": settings}
    before = content_id(body)
    assert (config_id(made, REVISION) == before) is (corrected is None)
    if corrected:
        assert config_id(made, REVISION) == content_id({**body, "corrected": corrected})
