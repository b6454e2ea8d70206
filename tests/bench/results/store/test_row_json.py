"""JSON in the records of a stranger's store: refused in one line, and the other rows are read."""

import json
import math
from copy import deepcopy
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from fedbench import leaderboard
from fedbench.bench.config import RunConfig
from fedbench.bench.results.leaderboard.studies import studies
from fedbench.bench.results.store.row import Row, Trial
from fedbench.bench.results.store.schema import encode, read_table, table_bytes
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from tests.bench.results.conftest import build_row

DEEP = "[" * 5000 + "]" * 5000
CONFIG = RunConfig().model_dump(mode="json")


@pytest.mark.parametrize(
    ("column", "value", "where"),
    [
        ("config_json", "{", "config_json"),
        ("config_json", "[1]", "config_json"),
        ("config_json", 5, "config_json"),
        ("config_json", DEEP, "config_json"),
        ("config_json", json.dumps({"data": 1}), "data holds a value"),
        ("config.data.test_subset", "9", "data.test_subset: "),
        ("config.client.lr", math.inf, "settings"),
        ("config.client.lr.x", 1.0, "config.client.lr.x"),
        ("config.client.at", datetime(2026, 1, 1), "settings"),
        ("metric.mlp_acc", "0.5", "further.mlp_acc"),
        ("metric.mlp_acc", math.nan, "further.mlp_acc"),
        ("metrics_json", '{"mlp_acc": ' + "9" * 400 + "}", "further.mlp_acc"),
        ("env_json", '{"a": ' * 5000 + "1" + "}" * 5000, "env_json"),
        ("scaled_json", '{"client.lr": 1e999}', "scaled_json"),
        ("future.name", 1.0, "future.name"),
        ("schema_version", 3, "schema_version"),
    ],
)
def test_a_row_with_other_values_is_named_and_the_others_are_read(
    store: Store, column: str, value: Any, where: str
) -> None:
    good, bad = build_row(linear_acc=0.5), build_row(RunConfig(seed=1))
    store.write_row(good)
    table = read_table(encode([bad], Row))
    table = table.drop_columns([name for name in table.schema.names if name == column])
    file = store.root / "rows" / f"{bad.row_id}.parquet"
    file.write_bytes(table_bytes(table.append_column(column, pa.array([value]))))
    assert [row.row_id for row in store.rows()] == [good.row_id]
    (problem,) = store.problems()
    assert file.name in problem
    assert where in problem
    assert "\n" not in problem


def test_strange_names_break_no_board(store: Store) -> None:
    """A metric has the name of a column, and a grid scaled what no grid can."""
    store.write_row(build_row(linear_acc=0.5))
    names = ("row_id", "seed", "place", "wall_seconds", "config.client.lr", "mean", "label")
    row = build_row(RunConfig(seed=1), further=dict.fromkeys(names, 0.5), scaled={"spec": None})
    store.write_row(row)
    assert store.frame()["metric.seed"].dropna().tolist() == [0.5]
    (row, *_) = leaderboard(store, reach=0.1).as_dict()["rows"]
    assert row["n_seeds"] == 1


def test_configurations_of_other_versions_pass() -> None:
    """An older one lacks a field and a section, a newer one has more."""
    config = deepcopy(CONFIG)
    del config["client"]["precision"], config["privacy"]
    config["data"]["further"], config["section"] = [1], {"field": None}
    assert build_row(settings=config)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("client.precision", {"client": {"precision": {}}}),
        ("client.compile", {"client": {"compile": [1]}}),
        ("data.label_fraction", {"data": CONFIG["data"] | {"label_fraction": "x"}}),
        ("devices.failure", {"devices": {"failure": "x"}}),
        ("devices.profile_sha256", {"devices": {"profile_sha256": 5}}),
        ("evaluation.transfer", {"evaluation": {"transfer": [1]}}),
        ("model.weights_sha256", {"model": {"weights_sha256": 5}}),
        ("data.name", {"data.name": "given twice"}),
    ],
)
def test_a_setting_that_boards_cannot_read(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=name):
        build_row(settings=CONFIG | settings)


def test_a_configuration_that_this_version_does_not_take() -> None:
    row = build_row(settings={**CONFIG, "section": {}})
    with pytest.raises(StoreError, match="section"):
        _ = row.config


@pytest.mark.parametrize("column", ["params_json", "watched_json", "extra_json"])
def test_a_trial_with_other_json(store: Store, column: str) -> None:
    store.write_trial("s", 0, {"status": "ok", "params": {"client.lr": 0.1}, "objective": 0.5})
    bad = Trial.model_construct(
        **{**dict(Trial(study_id="s", number=1, status="ok")), column: DEEP}
    )
    (store.root / "trials" / "s" / "1.parquet").write_bytes(encode([bad], Trial))
    (view,) = found = studies(store)
    assert [trial["number"] for trial in view.trials] == [0]
    (problem,) = found.problems
    assert "1.parquet" in problem
