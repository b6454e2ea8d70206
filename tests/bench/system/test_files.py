"""Atomic writes, locks, temporary files, and errors that are limits of the system."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedbench.bench.system.errors import ResourceError, StoreError, exhausted
from fedbench.bench.system.files import (
    atomic_write_bytes,
    atomic_write_text,
    copy_folder,
    file_lock,
    lock_file,
    release_lock,
    sweep_temporary,
    write_error,
)


def test_writes_create_folders_and_replace(tmp_path: Path) -> None:
    path = tmp_path / "ü b" / "c" / "file.txt"
    atomic_write_text(path, "first\n")
    atomic_write_text(path, "zweite Größe\r\n")
    assert path.read_bytes() == "zweite Größe\r\n".encode()
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_kill_at_any_moment_leaves_an_old_or_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    code = (
        "import sys; from pathlib import Path\n"
        "from fedbench.bench.system.files import atomic_write_bytes\n"
        "for i in range(10**6):\n"
        "    atomic_write_bytes(Path(sys.argv[1]), bytes([i % 256]) * 300_000)\n"
    )
    for delay in (0.01, 0.03, 0.07):
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        while not path.exists():
            time.sleep(0.005)
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 300_000
        assert len(set(content)) == 1
        path.unlink()


def test_sweeping_spares_what_a_living_process_writes_and_the_rest(tmp_path: Path) -> None:
    for name in (".dead.tmp", ".written.tmp", "old.tmp", ".old.parquet"):
        (tmp_path / name).write_text("")
    with file_lock(tmp_path / ".written.tmp") as locked:
        assert locked
        sweep_temporary(tmp_path)
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == [".old.parquet", ".written.tmp", "old.tmp"]
    sweep_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".old.parquet", "old.tmp"]
    sweep_temporary(tmp_path / "absent")


def test_a_file_that_is_being_written_is_locked_and_a_swept_one_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync, spared = tmp_path / "file", os.fsync, list[bool]()

    def sweep_meanwhile(descriptor: int) -> None:
        fsync(descriptor)
        before = {*tmp_path.iterdir()}
        sweep_temporary(tmp_path)
        spared.append({*tmp_path.iterdir()} == before)
        if len(spared) == 1:  # between creation and lock
            for temporary in tmp_path.glob(".*.tmp"):
                temporary.unlink()

    monkeypatch.setattr(os, "fsync", sweep_meanwhile)
    atomic_write_bytes(path, b"all of it")
    assert spared == [True, True, True]  # two writes, one folder
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"all of it"


def test_locks_say_no_at_once_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "cells" / "lock"
    with file_lock(path) as first, file_lock(path) as second:
        assert (first, second) == (True, False)
    with file_lock(path) as again:
        assert again
    with pytest.raises(StoreError, match="cannot write"), file_lock(path / "below"):
        pass


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell cannot be claimed there; a file is written all the same, and a rest of one is left."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StoreError, match="no locks"), file_lock(tmp_path / "lock"):
        pass
    atomic_write_bytes(tmp_path / "file", b"all of it")
    (tmp_path / ".rest.tmp").touch()
    sweep_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".rest.tmp", "file", "lock"]


def test_waiting_for_a_lock_ends_when_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from fedbench.bench.system.files import lock_file\n"
        "print(lock_file(Path(sys.argv[1])), flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert lock_file(path) is None
    threading.Timer(0.1, holder.kill).start()
    descriptor = lock_file(path, wait=True)
    assert descriptor is not None
    assert lock_file(path) is None
    release_lock(descriptor)
    release_lock(None)
    holder.communicate()
    with file_lock(path) as locked:
        assert locked


def test_a_copied_folder_shares_no_file_with_another(tmp_path: Path) -> None:
    """Files of the target may be links to those of the source, or to those of a third folder."""
    source, target, third = (tmp_path / name for name in ("source", "target", "third"))
    for folder in (source, target, third):
        folder.mkdir()
    (source / "weights").write_text("new")
    (source / "rounds").write_text("new")
    (third / "rounds").write_text("old")
    os.link(source / "weights", target / "weights")
    os.link(third / "rounds", target / "rounds")
    copy_folder(source, target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "weights": "new",
        "rounds": "new",
    }
    assert (third / "rounds").read_text() == "old"
    assert all(path.stat().st_nlink == 1 for path in target.iterdir())


@pytest.mark.parametrize(
    ("cause", "limit"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "open files"),
        (OSError(errno.ENFILE, "File table overflow"), "whole system"),
        (OSError(errno.EAGAIN, "Resource unavailable"), "processes and threads"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("can't start new thread"), "processes and threads"),  # as CPython says it
        (MemoryError(), "memory"),
    ],
)
def test_limits_are_named(cause: Exception, limit: str) -> None:
    error = exhausted(cause)
    assert isinstance(error, ResourceError)
    assert limit in str(error)


def test_a_write_without_descriptors_is_no_problem_of_the_store() -> None:
    for number, kind in ((errno.EMFILE, ResourceError), (errno.EIO, StoreError)):
        assert type(write_error(Path("file"), OSError(number, os.strerror(number)))) is kind
