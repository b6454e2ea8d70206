"""Stores whose ids are of the earlier form: their runs get new ids, and old ids still find them."""

import json
from pathlib import Path

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.method.ids import config_id, row_id, training_id
from fedbench.bench.results.store.former import FORMER, current_ids
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tests.bench.results.conftest import build_row

OLD = {0: "a" * 20, 1: "a" * 19 + "b"}


def former_row(seed: int, **fields: object) -> Row:
    """Row of the third schema, whose ids were hashes of all settings."""
    ids = {"row_id": OLD[seed], "config_id": "c" * 20, "training_id": "d" * 20}
    return build_row(RunConfig(seed=seed), schema_version=3, **(ids | fields))


@pytest.fixture
def former(tmp_path: Path) -> Store:
    store = Store(tmp_path / "former")
    for row in (former_row(0), former_row(1, measured_from=OLD[0], linear_acc=0.5)):
        store.write_row(row)
        store.write_curve(row.row_id, [{"round_index": 0, "loss": 1.0}])
    state = {"row_id": "d" * 20, "more": 1}
    save_checkpoint(store.cell_dir(OLD[0]), Checkpoint(3, {}, state))
    return store


def test_a_merge_renews_ids_curves_and_checkpoints(former: Store, tmp_path: Path) -> None:
    target = Store(tmp_path / "new")
    assert merge([former], target).rows_added == 2
    first, second = target.rows()
    config, revision = RunConfig(), first.dataset_revision
    assert first.row_id == row_id(config, revision) not in OLD.values()
    assert first.config_id == second.config_id == config_id(config, revision)
    assert second.measured_from == first.row_id
    assert (second.linear_acc, second.schema_version) == (0.5, 5)
    assert target.curve(second.row_id) == [{"round_index": 0, "loss": 1.0}]
    assert first.training_id == training_id(config, revision)
    checkpoint = load_checkpoint(target.cell_dir(first.row_id), first.training_id)
    assert checkpoint is not None
    assert (checkpoint.rounds_done, checkpoint.state["more"]) == (3, 1)
    assert former.rows()[0].row_id == OLD[0]  # the source stays as it is
    assert merge([former], target).rows_same == 2


def test_an_old_id_finds_its_run(former: Store, tmp_path: Path) -> None:
    target = Store(tmp_path / "new")
    merge([former], target)
    merge([target], copy := Store(tmp_path / "copy"))
    for store in (target, copy):
        assert store.find(OLD[1]).seed == 1
        assert store.find(OLD[1] + "@").seed == 1
        with pytest.raises(ConfigError, match="2 runs begin with 'aaaa'"):
            store.find("aaaa")


def test_ids_of_the_results_that_ship_are_followed_in_any_store(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[4] / "leaderboards" / FORMER
    old, new = next(iter(json.loads(shipped.read_text()).items()))
    assert current_ids(old, tmp_path) == current_ids(old[:12], tmp_path) == [new]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}'])
def test_a_damaged_file_of_old_ids_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FORMER).write_text(text)
    with pytest.raises(StoreError, match=FORMER):
        current_ids("0123", tmp_path)


def test_a_store_with_old_ids_takes_no_new_rows(former: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.write_row(build_row())
    with pytest.raises(StoreError, match="earlier fedbench"):
        merge([other], former)


def test_a_run_of_a_method_that_is_not_installed_is_named(tmp_path: Path) -> None:
    store, config = Store(tmp_path / "former"), RunConfig(spec="gone")
    row = former_row(0, method="gone", settings=config.model_dump(mode="json"))
    store.write_row(row)
    with pytest.raises(StoreError, match=OLD[0]):
        merge([store], tmp_path / "new")
    assert not (tmp_path / "new").exists()
