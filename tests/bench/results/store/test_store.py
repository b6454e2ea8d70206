import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import file_lock
from tests.bench.results.conftest import build_row, rows_in


def test_runs_by_the_beginning_of_their_id(store: Store) -> None:
    for start in ("abcd0", "abcd1", "bcde0"):
        store.write_row(build_row(row_id=start + 15 * "0"))
    assert store.find("bcde").row_id == "bcde0" + 15 * "0"
    assert store.find("abcd1" + 15 * "0").row_id == "abcd1" + 15 * "0"
    for unknown in ("bcd", "ffff", "a/b"):
        with pytest.raises(StoreError, match=unknown):
            store.find(unknown)
    for start, match in (("abcd", r"abcd00+, abcd10+"), ("", "empty")):
        with pytest.raises(ConfigError, match=match):
            store.find(start)


def test_rows_are_kept_sorted_and_found(store: Store) -> None:
    rows = [build_row(RunConfig(seed=seed), linear_acc=0.1 * seed) for seed in (2, 0, 1)]
    assert all(store.write_row(row) for row in rows)
    assert [row.seed for row in store.rows()] == [0, 1, 2]
    assert store.row(rows[0].row_id) == rows[0]
    assert Store(store.root).rows() == store.rows()
    assert sorted(p.name for p in store.root.iterdir()) == ["rows"]


def test_a_finished_row_stays_and_a_failed_one_gives_way(store: Store) -> None:
    failed = build_row(status="error", error="worker died")
    good, other = build_row(linear_acc=0.5), build_row(linear_acc=0.6)
    assert store.write_row(failed)
    assert (store.row(failed.row_id), store.finished(failed.row_id)) == (failed, None)
    assert store.write_row(good)
    assert not store.write_row(other)
    assert not store.write_row(failed)
    assert store.row(good.row_id) == store.finished(good.row_id) == good


def test_unreadable_files_are_skipped_and_named(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    good, torn, copied = (build_row(RunConfig(seed=seed)) for seed in range(3))
    for row in (good, torn, copied):
        store.write_row(row)
    folder = store.root / "rows"
    path = folder / f"{torn.row_id}.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    (folder / f"{copied.row_id}.parquet").rename(folder / "copy.parquet")
    (folder / "notes.txt").write_text("not ours, not read")
    (folder / "folder.parquet").mkdir()
    (folder / "two.parquet").write_bytes(encode([good, copied], Row))
    assert store.rows() == [good]
    whys = {path: "torn or altered", folder / "copy.parquet": copied.row_id}
    whys |= {folder / "folder.parquet": "directory", folder / "two.parquet": "holds 2 rows"}
    for file, why in whys.items():
        (problem,) = [line for line in store.problems() if str(file) in line]
        assert why in problem
    with pytest.raises(StoreError, match="delete the file to run this cell again"):
        store.row(torn.row_id)
    assert store.finished(torn.row_id) is None
    assert not caplog.messages
    assert store.write_row(torn)  # an unreadable file gives way
    assert store.rows() == [good, torn]
    assert [str(path) in message for message in caplog.messages] == [True]
    for name in ("x" * 300, "absent"):
        with pytest.raises(StoreError, match=name):
            Store(store.root / name).require()
    with pytest.raises(StoreError, match="xxx"):
        Store(store.root / ("x" * 300)).finished(good.row_id)


def test_a_killed_writer_leaves_nothing_that_is_read(store: Store) -> None:
    store.write_row(build_row())
    folder = store.root / "rows"
    living, killed = folder / ".x.parquet.1234abcd.tmp", folder / ".y.parquet.1234abcd.tmp"
    for path in (living, killed):
        path.write_bytes(b"PAR1 half a row")
    with file_lock(living) as locked:  # as a writer does until its file has its name
        assert locked
        later = Store(store.root)
        assert len(later.rows()) == 1
        assert later.problems() == []
        later.write_row(build_row(RunConfig(seed=1)))
        assert living.exists()
        assert not killed.exists()


def _write_rows(root: Path, rows: list[Row]) -> None:
    store = Store(root)
    for number, row in enumerate(rows):
        store.write_row(row)
        if number % 10 == 9:
            store.refresh()


def test_two_processes_write_at_once(store: Store) -> None:
    rows = [build_row(RunConfig(seed=seed), linear_acc=seed / 100) for seed in range(75)]
    spawn = multiprocessing.get_context("spawn")
    parts = (rows[:50], rows[25:])  # 25 rows are written by both
    writers = [spawn.Process(target=_write_rows, args=(store.root, part)) for part in parts]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        reader = Store(store.root)
        assert len(reader.rows()) >= seen
        assert reader.problems() == []
        seen = len(reader.rows())
        time.sleep(0.02)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert store.rows() == rows
    assert not list(store.root.rglob("*.tmp"))


def test_refresh_touches_nothing_without_need(store: Store) -> None:
    rows = [build_row(RunConfig(seed=seed), linear_acc=seed / 10) for seed in range(5)]
    for row in rows[::-1]:
        store.write_row(row)
    path = store.root / "leaderboard.parquet"
    assert store.refresh() == path
    assert rows_in(path) == rows
    before = path.stat().st_mtime_ns
    assert Store(store.root).refresh() == path
    assert len(Store(store.root).frame()) == 5
    assert path.stat().st_mtime_ns == before


def test_refresh_loses_no_row_that_another_process_writes_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (build_row(RunConfig(seed=seed)) for seed in range(2))
    store.write_row(first)
    write, other = Store._write, Store(store.root)

    def overtaken(self: Store, path: Path, data: bytes) -> None:
        if self is store and other.finished(second.row_id) is None:
            other.write_row(second)
            other.refresh()
        write(self, path, data)

    monkeypatch.setattr(Store, "_write", overtaken)
    store.refresh()
    assert rows_in(store.root / "leaderboard.parquet") == [first, second]


def test_a_failed_write_leaves_the_old_file_and_no_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build_row(status="error", error="worker died")
    store.write_row(old)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError):
            store.write_row(build_row(linear_acc=0.9))
        with pytest.raises(StoreError):
            store.check_writable()
    assert store.row(old.row_id) == old
    assert not list(store.root.rglob("*.tmp"))
