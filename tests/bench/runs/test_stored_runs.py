"""Runs on a store with outdated derived files, torn rows, or rows that must be preserved."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import Origin, facts
from fedbench.bench.runs.result import RunResult
from fedbench.bench.runs.run import run, store_run
from fedbench.bench.system.errors import StoreError
from fedbench.bench.testing import tiny_config

CONFIG = tiny_config("supervised", federation__num_rounds=1, evaluation__protocols=())
STARTED = datetime(2026, 1, 2, tzinfo=UTC)


def again(store: Store, data_dir: Path) -> RunResult:
    return run(CONFIG, store=store, data_dir=data_dir, workers=1, device="cpu")


def test_a_leaderboard_that_a_killed_process_left_behind_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    row = again(store, tmp_path).row
    board = tmp_path / "store" / "leaderboard.parquet"
    whole = board.read_bytes()
    for content in (None, b"stale"):
        board.unlink()
        if content is not None:
            board.write_bytes(content)
        assert again(store, tmp_path).stored_before
        assert board.read_bytes() == whole

    def read_only(*_: object) -> None:
        raise StoreError("the file system is read-only")

    board.unlink()
    monkeypatch.setattr(Store, "_write", read_only)
    assert again(store, tmp_path).row == row


def test_a_torn_row_is_run_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "store")
    row = again(store, tmp_path).row
    path = tmp_path / "store" / "rows" / f"{row.row_id}.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    anew = again(store, tmp_path)
    assert not anew.stored_before
    assert store.row(row.row_id) == anew.row
    assert "torn or altered" in caplog.text


def row_of(config: RunConfig, status: str, **fields: Any) -> Row:
    known = facts(config, "r", "", Origin(), dataset="digits", started_at=STARTED, device="cpu")
    return Row(**{**known, "status": status, "finished_at": STARTED, **fields})


def test_a_failed_run_never_takes_the_place_of_a_finished_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = row_of(CONFIG, "ok", objective=0.5)
    for row in (row_of(CONFIG, "error", error="boom"), good, row_of(CONFIG, "error", error="late")):
        store_run(store, row)
    assert store.rows() == [good]


def test_rows_know_their_task_however_the_run_ended(tmp_path: Path) -> None:
    ended = again(Store(tmp_path / "store"), tmp_path).row
    origin = Origin("custom", argv=ended.argv)
    known = facts(
        CONFIG, ended.dataset_revision, ended.partition_hash, origin,
        dataset="digits", started_at=ended.started_at, device="cpu",
    )  # fmt: skip
    assert known.items() <= ended.model_dump().items()
