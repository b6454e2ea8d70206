"""Packed runs are read like those with files of their own, and new ones go beside them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from fedbench.bench.config import ClientConfig, RunConfig
from fedbench.bench.results.store import files
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import read_table, table_bytes
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from fedbench.leaderboards import pack
from fedbench.leaderboards.pack import packs, write
from tests.bench.results.conftest import build_row

POINTS = [{"round_index": 0, "loss": 1.5, "metrics.knn_acc": None}]


@pytest.fixture
def rows() -> list[Row]:
    """Two runs and a replica of the first, whose target is text in one and a number in another."""
    config = RunConfig(method={"target": "ema", "layers": [1, 2]})
    first = build_row(config, linear_acc=0.25, platform="one")
    later = first.finished_at + timedelta(hours=1)
    replica = first.model_copy(
        update={"linear_acc": 0.5, "platform": "another", "finished_at": later}
    )
    second = build_row(RunConfig(spec="spectral", method={"target": 2}), further={"sep": 1.0})
    return [first, replica, second]


@pytest.fixture
def packed(store: Store, rows: list[Row]) -> Store:
    for row in rows:
        if not store.write_row(row):
            store.write_replica(row)
        store.write_curve(store.key(row), POINTS)
    write(store.root, packs(store)[0])
    assert sorted(path.name for path in store.root.iterdir()) == ["cells", "packed"]
    return Store(store.root)


def test_packed_runs_read_as_before(packed: Store, rows: list[Row]) -> None:
    first, replica, second = rows
    assert packed.rows() == rows
    assert packed.frame()["config_json"].tolist() == [row.config_json for row in rows]
    assert packed.replicas(first.row_id) == [first, replica]
    assert packed.find(first.row_id[:8]) == first
    assert packed.find(packed.key(replica)) == replica
    assert [packed.curve(packed.key(row)) for row in rows] == [POINTS] * 3
    assert packed.finished(second.row_id) == second
    assert packs(packed)[0] == packs(Store(packed.root))[0]
    (file,) = (packed.root / "packed").iterdir()
    names = read_table(file.read_bytes()).schema.names
    assert "config.client.lr" in names
    assert "config.method.target" not in names  # text and number stay JSON


def test_files_in_which_a_setting_has_two_types_are_read_together(
    store: Store, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "RUNS", 1)
    for row in (rows[0], rows[2]):
        store.write_row(row)
        store.write_curve(store.key(row), POINTS)
    parts, schema = pack.packs(store)
    assert len(parts) == 2
    pack.write(store.root, parts)
    assert Store(store.root).rows() == [rows[0], rows[2]]
    for data in parts.values():
        assert set(read_table(data).schema.names) <= set(schema.names)


def test_rows_whose_curves_stayed_behind_are_not_packed(store: Store, rows: list[Row]) -> None:
    store.write_row(rows[0].model_copy(update={"rounds_done": 2}))
    with pytest.raises(SystemExit, match=rf"1 runs have no curve, such as {rows[0].row_id}; copy"):
        packs(store)


def test_new_runs_go_beside_packed_ones(packed: Store, rows: list[Row]) -> None:
    new = build_row(RunConfig(seed=2))
    assert packed.rows() == rows
    assert not packed.write_row(rows[0])
    assert packed.write_row(new)
    assert {row.row_id for row in packed.rows()} == {row.row_id for row in [*rows, new]}
    assert [path.stem for path in (packed.root / "rows").iterdir()] == [new.row_id]
    packed.drop(new.row_id)
    assert packed.rows() == rows
    with pytest.raises(StoreError, match="packed"):
        packed.drop(rows[0].row_id)


def test_packed_runs_are_merged_with_their_curves(
    packed: Store, rows: list[Row], tmp_path: Path
) -> None:
    target, checkpoint = Store(tmp_path / "target"), "round-00000001-a.safetensors"
    packed.cell_dir(rows[2].row_id).mkdir(parents=True)
    (packed.cell_dir(rows[2].row_id) / checkpoint).write_bytes(b"weights")
    done = merge([packed], target)
    assert (target.cell_dir(rows[2].row_id) / checkpoint).exists()
    assert (done.rows_added, done.replicas_added) == (2, 1)
    assert target.rows() == rows
    assert [target.curve(target.key(row)) for row in rows] == [POINTS] * 3
    assert merge([packed], target).rows_same == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda table: table_bytes(table)[:-9],
        lambda table: table_bytes(table.drop_columns(["num_rounds"])),
        lambda table: table_bytes(table.drop_columns(["row_id"])),
        lambda table: table_bytes(table.set_column(0, "row_id", [[1, 2, 3]])),
        lambda table: table_bytes(table.set_column(0, "row_id", [["a", None, "b"]])),
    ],
)
def test_a_damaged_file_of_packed_runs_is_named(
    packed: Store, damage: Callable[[pa.Table], bytes]
) -> None:
    (file,) = (packed.root / "packed").iterdir()
    file.write_bytes(damage(read_table(file.read_bytes())))
    packed.write_row(new := build_row(RunConfig(seed=2)))
    assert Store(packed.root).rows() == [new]
    (problem,) = Store(packed.root).problems()
    assert str(file) in problem


def test_rounds_without_end_are_refused(packed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_TEXT", 10)
    files.read_pack.cache_clear()
    (problem,) = Store(packed.root).problems()
    assert "10 characters" in problem


def test_whole_and_broken_numbers_share_a_column(store: Store) -> None:
    whole = build_row(RunConfig(method={"t": 2}))
    broken = build_row(RunConfig(seed=1, method={"t": 2.5}, client=ClientConfig(lr=0.5)))
    store.write_row(whole)
    assert store.frame()["config.method.t"].tolist() == [2]
    store.write_row(broken)
    assert sorted(store.frame()["config.method.t"]) == [2.0, 2.5]
    assert sorted(store.rows(), key=lambda row: row.seed) == [whole, broken]
