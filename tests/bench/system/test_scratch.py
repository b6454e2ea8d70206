"""Temporary folders of living and of dead processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedbench.bench.system.errors import ResourceError, StoreError
from fedbench.bench.system.files import atomic_write_bytes
from fedbench.bench.system.scratch import (
    end_processes,
    end_workers,
    sweep_folders,
    temporary_folder,
)

OWNER = """
import sys, time
from pathlib import Path
from fedbench.bench.system.scratch import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("data")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_lives_as_long_as_its_owner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().rstrip())
        with temporary_folder(tmp_path) as other:
            assert (folder / "deep" / "file").read_text() == "data"
        assert not other.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert folder.exists()
    with temporary_folder(tmp_path) as other:
        assert list(tmp_path.iterdir()) == [other]
    assert not list(tmp_path.iterdir())


def test_only_folders_of_ours_are_swept(tmp_path: Path) -> None:
    (tmp_path / "fb-foreign").mkdir()
    (tmp_path / "fb-foreign" / "file").write_text("data")
    (tmp_path / "fb-link").symlink_to(tmp_path / "fb-foreign")
    (tmp_path / "other").mkdir()
    (tmp_path / "fb-again" / "session_1").mkdir(parents=True)  # by a process of Ray, too late
    os.utime(tmp_path / "fb-again", (0, 0))
    sweep_folders(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fb-foreign", "fb-link", "other"]
    assert (tmp_path / "fb-foreign" / "file").read_text() == "data"


def test_processes_that_ray_left_in_a_folder_are_ended(tmp_path: Path) -> None:
    folder = tmp_path / "fb-12345678"
    folder.mkdir()
    (folder / "log").write_text("")
    # The first names the folder, the second holds a file of it, the others only look like these.
    sleep = "import time; time.sleep(600)"
    opened = f"file = open({str(folder / 'log')!r}); print('open', flush=True); {sleep}"
    commands = [
        [sys.executable, "-c", sleep, f"--logs-dir={folder}/logs"],
        ["ray::Agent", "-c", opened],
        [sys.executable, "-c", sleep, f"{folder}9/logs"],
        ["ray::Agent", "-c", sleep],
    ]
    processes = [
        subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
        for command in commands
    ]
    try:
        assert processes[1].stdout is not None
        assert processes[1].stdout.readline() == b"open\n"
        end_processes(folder, 0.0)
        alive = [psutil.pid_exists(process.pid) for process in processes]
        assert alive == [False, False, True, True]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_agents_of_ray_outlive_the_end_of_its_workers(tmp_path: Path) -> None:
    folder = tmp_path / "fb-12345678"
    folder.mkdir()
    (folder / "log").write_text("")
    opened = f"file = open({str(folder / 'log')!r}); print('open', flush=True); input()"
    titles = ["ray::ImplicitFunc.train", "ray::DashboardAgent", "ray::RuntimeEnvAgent"]
    processes = [
        subprocess.Popen(
            [title, "-c", opened],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for title in titles
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
    end_workers(folder)
    for process in processes:
        process.communicate(b"\n")
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0]


KILLED = """
import os, subprocess, sys
from pathlib import Path
from fedbench.bench.system.scratch import cleared_up_if_killed, temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder, cleared_up_if_killed(folder):
    command = [sys.executable, "-c", "import time; time.sleep(600)", f"{folder}/logs"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(child.pid, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_what_a_killed_process_left_is_gone_without_another_command(
    tmp_path: Path, how: str
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), how]
    child = int(subprocess.run(command, capture_output=True, check=False).stdout)
    if how == "killed":
        while psutil.pid_exists(child) or any(tmp_path.iterdir()):
            time.sleep(0.05)
    else:
        assert not any(tmp_path.iterdir())
        os.kill(child, signal.SIGKILL)


def test_a_folder_that_cannot_be_made_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(ResourceError, match=r"^cannot make a temporary folder: .*; set TMPDIR to"),
        temporary_folder(tmp_path / "absent"),
    ):
        pass

    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.gettempdir", refuse)
        with pytest.raises(ResourceError, match="set TMPDIR"), temporary_folder():
            pass
    monkeypatch.setattr(os, "fsync", refuse)
    with (
        pytest.raises(ResourceError, match=r"the disk is full .* \(TMPDIR\)$"),
        temporary_folder(tmp_path) as folder,
    ):
        atomic_write_bytes(folder / "file", b"data")
    with pytest.raises(StoreError, match="the disk is full"), temporary_folder(tmp_path):
        atomic_write_bytes(tmp_path / "file", b"data")
    assert not list(tmp_path.iterdir())
