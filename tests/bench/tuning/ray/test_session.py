"""Ray is loaded when cells run; the death of its processes ends a session."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fedbench.bench.system.errors import ResourceError
from fedbench.bench.tuning.ray.session import Interrupted, Session, ray_session

SCRIPT = """
import sys, threading, time
from pathlib import Path
from fedbench.bench.tuning.ray import session as module
module._SECONDS_BETWEEN_CHECKS = 0.05
module._SECONDS_TO_EXIT_LOST = 0.3 if sys.argv[3] == "hangs" else 600
session = module.Session(Path(sys.argv[1]))
session._addresses["raylet"] = ("127.0.0.1", int(sys.argv[2]))
if sys.argv[3] == "starts":
    session.begin_start()
with module._watch(session) as end_watch:
    (watch,) = set(threading.enumerate()) - {threading.main_thread()}
    if sys.argv[3] == "ends":
        end_watch()
        watch.join()
    print("watching", flush=True)
    sys.stdin.readline()  # the raylet has gone
    while sys.argv[3] in ("hangs", "starts"):
        time.sleep(60)
    while sys.argv[3] == "sees" and not session.ending:
        time.sleep(0.01)
watch.join()
print("left", session.lost, flush=True)
"""


@pytest.mark.parametrize(
    ("what", "code", "out", "err"),
    [
        ("hangs", 3, "", "error: Ray's raylet"),
        ("starts", 3, "", "error: Ray's raylet"),
        ("sees", 0, "left raylet\n", ""),
        ("ends", 0, "left \n", ""),
    ],
)
def test_a_death_ends_the_process_unless_it_ends_in_time(
    tmp_path: Path, what: str, code: int, out: str, err: str
) -> None:
    folder = tmp_path / "fb-session"
    folder.mkdir()
    (folder / ".fedbench").write_text("")
    with (
        socket.create_server(("127.0.0.1", 0)) as raylet,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder), str(raylet.getsockname()[1]), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])},
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        raylet.close()
        said = process.communicate("\n", timeout=60)
        assert (said[0], said[1][: len(err) or None]) == (out, err)
    assert process.returncode == code
    assert folder.exists() == (code == 0)


def test_a_part_of_a_joined_cluster_that_listens_no_more_has_died(tmp_path: Path) -> None:
    session = Session(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        session._addresses["raylet"] = server.getsockname()
        session.check_parts()
        assert not session.ending
    with pytest.raises(ResourceError, match="raylet"):
        session.check_parts()
    assert session.lost == "raylet"
    session.received.append(signal.SIGTERM)  # the whole cluster was asked to end
    with pytest.raises(Interrupted, match="SIGTERM"):
        session.raise_if_ending()


FATAL = """\
[2026-11-28 13:58:46,702 I 22150 22150] (raylet) main.cc:283: Setting cluster ID to: 17
[2026-11-28 13:58:46,733 C 22150 22150] (raylet) node_manager.cc:3576:  An unexpected system state \
has occurred. Check failed: status3576.has_value() """  # as Ray 2.60 writes them
LATE = "Timed out waiting for file metrics_agent_port"


def write_log(folder: Path, last: str) -> None:
    log = folder / "session_2026-11-28" / "logs" / "raylet.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"{FATAL}{last}\n*** StackTrace Information ***\n", encoding="utf-8")


def test_a_death_is_told_with_the_last_error_of_its_log(tmp_path: Path) -> None:
    session = Session(tmp_path)
    write_log(tmp_path, LATE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        session._addresses["raylet"] = server.getsockname()
    with pytest.raises(ResourceError, match=LATE) as raised:
        session.check_parts()
    assert "unexpected" not in str(raised.value)


@contextmanager
def part(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that has the name of a part of Ray, and reap it after the block."""
    with TemporaryDirectory() as folder:
        program = Path(folder, name)
        program.symlink_to(shutil.which("sleep") or "")
        with subprocess.Popen(["sleep", "600"], executable=program) as child:
            try:
                yield child
            finally:
                child.kill()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and wait till it has died; it is not reaped, as `child.kill()` might do."""
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_part_that_is_killed_while_ray_starts_is_seen(tmp_path: Path) -> None:
    session = Session(tmp_path)
    with part("gcs_server") as before, part("sleep") as other:
        kill(before)
        session.begin_start()
        with part("gcs_server") as child:
            kill(other)
            session.check_parts()
            kill(child)
            with pytest.raises(ResourceError, match="gcs_server"):
                session.check_parts()
            assert session.starting


def test_a_part_that_was_late_is_left_to_the_next_start(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.begin_start()
    with part("raylet") as child:
        kill(child)
        write_log(tmp_path, LATE)
        session.check_parts()
        assert not session.ending
        write_log(tmp_path, "No space left")
        with pytest.raises(ResourceError, match="No space left"):
            session.check_parts()


DEATH = """
import os, sys, time
import psutil
from fedbench.bench.tuning.ray.session import ray_session
with ray_session(1) as session:
    for process in psutil.Process().children(recursive=True):
        if os.path.basename(process.cmdline()[0]) == sys.argv[1]:
            process.kill()
    while not session.ending:
        time.sleep(0.05)
    time.sleep(1.0)
    sys.stderr.write(session.reason)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "named"), [("raylet", ""), ("ray::DashboardAgent", "dashboard_agent")]
)
def test_a_dead_raylet_leaves_its_reason_and_nothing_on_stdout(killed: str, named: str) -> None:
    """The log of a killed one has no reason; Ray's own report of it is for stdout.

    A disk that Ray takes for full, as any is here, is no reason.
    """
    environment = os.environ | {"RAY_local_fs_capacity_threshold": "0.05"}
    command = [sys.executable, "-c", DEATH, killed]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout == ""
    assert named in ended.stderr
    assert bool(named) == bool(ended.stderr)


KILL = """
import sys, threading
from contextlib import suppress
import psutil
from fedbench.bench.tuning.ray.session import ray_session
def kill():
    parts = {}
    while "raylet" not in parts:
        with suppress(psutil.NoSuchProcess):
            parts = {child.name(): child for child in psutil.Process().children()}
    parts[sys.argv[1]].kill()
threading.Thread(target=kill, daemon=True).start()
with ray_session(1):
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["raylet", "gcs_server"])
def test_a_part_that_is_killed_as_it_starts_ends_the_command(killed: str) -> None:
    """Ray waits half a minute for a raylet, its core a minute for the other, and exits with 1."""
    command = [sys.executable, "-c", KILL, killed]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f"Ray's {killed}" in ended.stderr
    assert ended.stdout == ""


ORPHAN = """
import os, time
import psutil
first = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == first:  # the system adopts this process then
    time.sleep(0.01)
from fedbench.bench.tuning.ray.session import ray_session
with ray_session(1):
    import ray
    value = ray.put(0)
    for child in psutil.Process().children():
        if child.name() == "raylet":
            child.kill()
            child.wait()
    task = ray.remote(lambda: 0).remote()
    ray.wait([value, task], num_returns=2, timeout=1)  # OSError: Broken pipe
"""


@pytest.mark.slow
def test_a_dead_raylet_is_told_by_a_process_without_a_parent() -> None:
    command = [sys.executable, "-c", ORPHAN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Ray's raylet" in ended.stderr


def test_what_ray_raises_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise Exception("The current node timed out during startup.")  # as ray/_private/node.py

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ResourceError, match="timed out"), ray_session():
        raise AssertionError("it has started")


def test_ray_logs_what_the_caller_does_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr("ray.init", lambda **options: logging.getLogger("ray").setLevel(40))
    monkeypatch.setattr(Session, "find_addresses", lambda session: None)
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune")]
    for level, logger in zip((logging.INFO, logging.WARNING), loggers, strict=True):
        monkeypatch.setattr(logger, "level", level)
    with ray_session():
        assert not ray.is_initialized()
        assert [logger.level for logger in loggers] == [logging.ERROR, logging.CRITICAL]
    assert [logger.level for logger in loggers] == [logging.INFO, logging.WARNING]


@pytest.mark.parametrize(("last", "again"), [(LATE, True), ("No space left", False)])
def test_ray_starts_once_more_only_if_it_was_late(
    monkeypatch: pytest.MonkeyPatch, last: str, again: bool
) -> None:
    started = []

    def init(*, _temp_dir: str, **options: Any) -> None:
        started.append(_temp_dir)
        write_log(Path(_temp_dir), last)
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ResourceError, match=last), ray_session():
        raise AssertionError("it has started")
    assert (len(started) > 1) == again


def test_what_is_ended_between_two_starts_has_not_died(monkeypatch: pytest.MonkeyPatch) -> None:
    with part("gcs_server") as before, ExitStack() as stack:
        children = [before]

        def init(*, _temp_dir: str, **options: Any) -> None:
            write_log(Path(_temp_dir), LATE if len(children) == 1 else "No space left")
            children.append(stack.enter_context(part("gcs_server")))
            raise Exception("The current node timed out during startup.")

        monkeypatch.setattr("ray.init", init)
        monkeypatch.setattr(f"{Session.__module__}.end_processes", lambda *_: kill(children[1]))
        with pytest.raises(ResourceError, match=r"does not start.*No space left"), ray_session():
            raise AssertionError("it has started")
    assert len(children) == 3


def test_a_sigterm_while_ray_starts_has_our_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        # As `ray.init` does before anything else.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(Interrupted) as raised, ray_session():
        raise AssertionError("it goes on")
    assert raised.value.exit_code == 143


def test_nothing_private_of_ray_is_used() -> None:
    package = Path(sys.modules[Session.__module__].__file__ or "").parents[2]
    for file in package.rglob("*.py"):
        assert "ray._private" not in file.read_text(encoding="utf-8"), file
