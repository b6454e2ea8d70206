"""Ray for the length of a command: quiet, private, checked beforehand, and gone afterwards."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from fedbench.bench import registry
from fedbench.bench.devices import physical_cores
from fedbench.bench.errors import FedbenchError, ResourceError

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` every worker would rebuild its venv
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours stops the same way, and knows that it did
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # our store is the truth; Tune's snapshots are not read
    "TUNE_FORCE_TRIAL_CLEANUP_S": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
_TOKEN_PATH, _AUTH_MODE = "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
_OBJECT_STORE_BYTES = 80 * 2**20  # the minimum is 75 MiB; only configurations and rows travel
_LONGEST_BASE = 40  # AF_UNIX names end at 103 (macOS) or 107 bytes; Ray's own part is about 60
_SECONDS_TO_DIE = 5.0
_SECONDS_TO_ANSWER = 5.0
_POLL_SECONDS = 0.2
_WARM_UP_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOGGERS = ("ray", "ray.tune", "ray.tune.tune", "ray.tune.execution.tune_controller")
_TOKEN: list[str] = []


class Interrupted(FedbenchError):  # noqa: N818
    """A signal ended the command; what is finished is kept, and the same command continues."""

    def __init__(self, signum: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(signum).name}; the same command continues"
        )
        self.exit_code = 128 + signum


@dataclass
class Session:
    """A running Ray.

    Attributes:
        folder: for what Tune writes; gone after the session.
        address: of a cluster; None = this machine.
        received: signals so far.
    """

    folder: Path
    address: str | None
    received: list[int] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked us to stop."""
        return bool(self.received)

    def raise_if_interrupted(self) -> None:
        """Raises Interrupted if a signal has arrived."""
        if self.received:
            raise Interrupted(self.received[0])


@contextmanager
def ray_session(num_cpus: int | None = None, address: str | None = None) -> Iterator[Session]:
    """Start Ray on this machine, or join a cluster; nothing of it is left when the block ends.

    A Ray that the calling program had started itself is used, and left running. The first SIGINT
    or SIGTERM sets `Session.interrupted`; a second SIGINT raises KeyboardInterrupt.

    Args:
        num_cpus: processes at a time; None = physical cores. Only without `address`.
        address: of a running cluster, `HOST:PORT` or `auto`.

    Raises:
        ResourceError: if Ray does not start, or the cluster does not answer.
        Interrupted: if a signal arrived while it started.
    """
    base = _short_folder()
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir=base))
    session = Session(folder, address)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with _environment(folder, private=address is None), _signals(session) as again:
        import ray

        quiet()
        foreign = ray.is_initialized()
        try:
            if not foreign:
                _init(folder, num_cpus or physical_cores(), address)
                again()  # Ray has installed a handler of its own
            session.raise_if_interrupted()
            yield session
        finally:
            if not foreign:
                started = _descendants(before)
                ray.shutdown()
                _reap(started, folder)
            shutil.rmtree(folder, ignore_errors=True)


def _init(folder: Path, num_cpus: int, address: str | None) -> None:
    import ray

    if address is not None:
        _check_reachable(address)
    common: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address is not None:
            ray.init(address=address, **common)
            return
        ray.init(
            address="local",  # not whatever RAY_ADDRESS names
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            **common,
        )
    except (ConnectionError, TimeoutError, RuntimeError, ValueError, OSError) as err:
        reason = " ".join(str(err).split())[:300]
        where = f"no Ray cluster answers at {address!r}" if address else "Ray does not start"
        raise ResourceError(f"{where}: {reason}") from err


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except OSError as err:
        raise ResourceError(
            f"no Ray cluster answers at {address!r}: {err.strerror or err}; check --address and"
            " `ray status`"
        ) from err


def quiet() -> None:
    """Silence Ray's and Tune's loggers; what matters is reported by fedbench."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def warm_up(session: Session, count: int) -> None:
    """Import what trials need in that many processes at once, for Ray Tune to take them over.

    Without it, short cells end before a second process is up, and Tune then drops that process:
    it would keep importing and never run two cells at a time.

    Raises:
        Interrupted: after a signal.
    """
    import ray

    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(count)
    task = ray.remote(num_cpus=1, max_retries=0)(_import_all)
    waiting = [task.remote(_WARM_UP_SECONDS) for _ in range(count)]
    while waiting:
        session.raise_if_interrupted()
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_SECONDS)


def _import_all(at_least_seconds: float) -> None:
    began = time.monotonic()
    for name in ("fedbench.bench.tuning.trial", "ray.tune"):
        importlib.import_module(name)
    registry.entries()
    # A process that is done too early would be given the next task as well.
    time.sleep(max(0.0, at_least_seconds - (time.monotonic() - began)))


def _short_folder() -> Path:
    """A folder for temporary files whose name is short enough for the sockets below it."""
    places = [os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), str(Path(os.sep, "tmp"))]
    for place in places:
        if place and len(os.fsencode(place)) <= _LONGEST_BASE and os.access(place, os.W_OK):
            return Path(place)
    raise ResourceError(
        f"the temporary folder {tempfile.gettempdir()!r} is too long for Ray's sockets"
        f" (at most {_LONGEST_BASE} bytes); set TMPDIR to a shorter one"
    )


@contextmanager
def _environment(folder: Path, *, private: bool) -> Iterator[None]:
    """Ray's settings for the length of the session; those that are already set stay.

    A private Ray gets a token file of its own: Ray would write one to the home folder otherwise.
    The token is the same for all sessions of a process, since Ray's core keeps the first it reads.
    """
    names = [*_ENVIRONMENT, _TOKEN_PATH, _AUTH_MODE]
    before = {name: os.environ.get(name) for name in names}
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    own_token = private and not {_TOKEN_PATH, _AUTH_MODE, "RAY_AUTH_TOKEN"} & set(os.environ)
    if own_token:
        if not _TOKEN:
            _TOKEN.append(secrets.token_hex(32))
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(_TOKEN[0], encoding="utf-8")
        os.environ[_TOKEN_PATH] = str(token)  # `ray.init` then sets the mode, here and in its core
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


@contextmanager
def _signals(session: Session) -> Iterator[Any]:
    """Handlers that take note; yields a function that installs them once more."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT and session.received:
            raise KeyboardInterrupt
        session.received.append(signum)

    def install() -> None:
        for signum in _SIGNALS:
            signal.signal(signum, handle)

    before = {signum: signal.getsignal(signum) for signum in (*_SIGNALS, signal.SIGUSR1)}
    install()
    try:
        yield install
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


def _descendants(before: set[int]) -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [process for process in children if process.pid not in before]


def _reap(started: list[psutil.Process], folder: Path) -> None:
    """Wait for Ray's processes to end, and end those that do not."""
    _, alive = psutil.wait_procs([p for p in started if _is_rays(p, folder)], _SECONDS_TO_DIE)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, _SECONDS_TO_DIE)


def _is_rays(process: psutil.Process, folder: Path) -> bool:
    """Not, say, a data loader that the calling program started meanwhile."""
    try:
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return False
    return str(folder) in command or command.startswith("ray::")
