"""JSON in the records of a stranger's store: refused in one line, and the other rows are read."""

import json

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.leaderboard.studies import studies
from fedbench.bench.results.store.row import Row, Trial
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from tests.bench.results.conftest import build_row

DEEP = "[" * 5000 + "]" * 5000
CONFIG = RunConfig().model_dump(mode="json")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("config_json", "{"),
        ("config_json", DEEP),
        ("config_json", json.dumps({**CONFIG, "data": 1})),
        ("config_json", json.dumps({**CONFIG, "data": {**CONFIG["data"], "test_subset": "9"}})),
        ("metrics_json", '{"mlp_acc": "0.5"}'),
        ("metrics_json", '{"mlp_acc": NaN}'),
        ("metrics_json", '{"mlp_acc": ' + "9" * 400 + "}"),
        ("env_json", '{"a": ' * 5000 + "1" + "}" * 5000),
        ("scaled_json", '{"client.lr": 1e999}'),
    ],
)
def test_a_row_with_other_json_is_named_and_the_others_are_read(
    store: Store, column: str, text: str
) -> None:
    good = build_row(linear_acc=0.5)
    store.write_row(good)
    bad = Row.model_construct(**{**dict(build_row(RunConfig(seed=1))), column: text})
    (store.root / "rows" / f"{bad.row_id}.parquet").write_bytes(encode([bad], Row))
    assert [row.row_id for row in store.rows()] == [good.row_id]
    (problem,) = store.problems()
    assert f"{bad.row_id}.parquet" in problem
    assert f"{column}: " in problem
    assert "\n" not in problem


def test_configurations_of_other_versions_pass() -> None:
    """An older one lacks a field and a section, a newer one has more."""
    config = json.loads(json.dumps(CONFIG))
    del config["client"]["precision"], config["privacy"]
    config["data"]["further"], config["section"] = [1], {"field": None}
    assert build_row(config_json=json.dumps(config))


def test_a_configuration_that_this_version_does_not_take() -> None:
    row = build_row(config_json=json.dumps({**CONFIG, "section": {}}))
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
