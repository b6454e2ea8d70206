"""Stores of many rows: only rows of unchanged files come from `leaderboard.parquet`."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.store import files
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import encode, read_table, table_bytes
from fedbench.bench.results.store.store import Store
from tests.bench.results.conftest import build_row, rows_in
from tests.specs import rewrite


def test_many_rows_are_read_from_one_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store.root / "rows"
    folder.mkdir(parents=True)
    rows = [build_row(RunConfig(seed=seed), linear_acc=seed / 100) for seed in range(70)]
    for row in rows:
        (folder / f"{row.row_id}.parquet").write_bytes(encode([row], Row))
    store.refresh()
    whole = (copies := store.root / "leaderboard.parquet").read_bytes()
    assert rows_in(copies) == store.rows()

    opened: list[str] = []
    parse = files.parse_record

    def counted(path: Path, data: bytes, model: Any) -> Any:
        opened.append(path.stem)
        return parse(path, data, model)

    monkeypatch.setattr(files, "parse_record", counted)

    def read() -> list[Row]:
        opened.clear()
        files._load.cache_clear()
        return sorted(Store(store.root).rows(), key=lambda row: row.seed)

    assert read() == rows
    assert opened == []
    # A file that has changed since is read itself, and so is a new one.
    changed = rows[3].model_copy(update={"linear_acc": 0.5})
    rewrite(folder / f"{rows[3].row_id}.parquet", encode([changed], Row))
    new = build_row(RunConfig(seed=70))
    (folder / f"{new.row_id}.parquet").write_bytes(encode([new], Row))
    (folder / f"{rows[4].row_id}.parquet").unlink()
    loaded = read()
    assert loaded == [*rows[:3], changed, *rows[5:], new]
    assert sorted(opened) == sorted([changed.row_id, new.row_id])
    # The next refresh takes the new rows up; a torn file, or one without marks, is as good as none.
    Store(store.root).refresh()
    assert rows_in(copies) == loaded
    assert read() == loaded
    assert opened == []
    for useless in (whole[:-40], encode(loaded, Row), b""):
        copies.write_bytes(useless)
        assert read() == loaded
        assert len(opened) == 70


def test_a_frame_has_every_metric_and_is_kept(store: Store) -> None:
    metrics: tuple[dict[str, float], ...] = ({"mlp_acc": 0.25, "sep": 1.0}, {}, {"mim.loss": 0.1})
    rows = [build_row(RunConfig(seed=s), further=each) for s, each in enumerate(metrics)]
    for row in rows:
        store.write_row(row)
    frame = store.frame()
    assert frame.row_id.tolist() == [row.row_id for row in rows]
    assert frame.mlp_acc.dropna().tolist() == [0.25]
    assert frame["mim.loss"].dropna().tolist() == [0.1]
    assert frame.linear_acc.isna().all()
    assert frame["config.client.lr"].tolist() == [0.03] * 3
    assert frame.task.nunique() == 1
    kept = store.root / "leaderboard.parquet"
    assert rows_in(kept) == rows
    # A table that other code derived is made again.
    table = read_table(kept.read_bytes())
    other = {**(table.schema.metadata or {}), b"fedbench.derived_by": b"other"}
    index = table.schema.names.index("task")
    table = table.set_column(index, "task", pa.array(["x"] * 3))
    kept.write_bytes(table_bytes(table.replace_schema_metadata(other)))
    assert Store(store.root).frame().equals(frame)


def test_a_setting_may_be_text_in_one_method_and_a_truth_value_in_another(store: Store) -> None:
    """As `method.target` of byol and of orchestra; the kept file is read again after each run."""
    runs = [
        RunConfig(seed=0, method={"name": "byol", "target": "averaged"}),
        RunConfig(seed=1, method={"name": "orchestra", "target": True}),
        RunConfig(seed=2, method={"name": "byol", "target": "personal"}),
        RunConfig(seed=3, method={"name": "orchestra", "target": False}),
    ]
    for count, run in enumerate(runs, 1):
        store.write_row(build_row(run))
        for each in (store, Store(store.root)):
            assert len(each.frame()) == count
            found = {row.seed: row.settings["method"]["target"] for row in each.rows()}
            assert found == {run.seed: run.method["target"] for run in runs[:count]}
    names = read_table((store.root / "leaderboard.parquet").read_bytes()).schema.names
    assert "config.method.target" not in names  # else the column of half of the runs
