"""Runs on a store with outdated derived files, torn rows, or rows that must be preserved."""

from pathlib import Path

import pytest

from fedbench.bench.execution.result import RunResult
from fedbench.bench.execution.run import run
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from fedbench.bench.testing import tiny_config

CONFIG = tiny_config("supervised", federation__num_rounds=1, evaluation__protocols=())


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
