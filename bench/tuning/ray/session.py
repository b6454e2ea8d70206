"""Ray for the length of a command: quiet, private, checked before it starts, gone afterwards."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from fedbench.bench.system.compute import physical_cores
from fedbench.bench.system.errors import ConfigError, FedbenchError, ResourceError

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # Ray's own setting comes too late where modules are preloaded
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
_TOKEN, _TOKEN_PATH, _AUTH_MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
_USUAL_TOKEN = Path(".ray", "auth_token")  # below the home folder; `ray get-auth-token --generate`
_LONGEST_BASE = 40  # AF_UNIX names end at 103 (macOS) or 107 bytes; Ray's own part is about 60
_OBJECT_STORE_BYTES = 80 * 2**20  # the minimum is 75 MiB; only configurations and rows travel
_WORKERS = {
    # Trial processes begin with what they need; those that Ray starts beforehand are not ready
    # when Tune asks for some, and would only compete with these.
    "preload_python_modules": ["fedbench.bench.tuning.ray.remote", "ray.tune"],
    "prestart_worker_first_driver": False,
}
_LOGGERS = ("ray", "ray.tune", "ray.tune.tune", "ray.tune.execution.tune_controller")
_START_ERRORS = (ConnectionError, TimeoutError, RuntimeError, ValueError, OSError)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS_TO_DIE = 5.0
_SECONDS_TO_EXIT, _SECONDS_TO_EXIT_CLUSTER = 60.0, 20.0
_SECONDS_TO_ANSWER = 5.0
_log = logging.getLogger(__name__)


class Interrupted(FedbenchError):  # noqa: N818
    """A signal ended the command; finished work is stored, and the same command continues."""

    def __init__(self, signum: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(signum).name}; the same command continues"
        )
        self.exit_code = 128 + signum


@dataclass
class Session:
    """A running Ray.

    Attributes:
        folder: for Tune's files; deleted after the session.
        received: signals so far.
    """

    folder: Path
    received: list[int] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """True after a signal."""
        return bool(self.received)

    def raise_if_interrupted(self) -> None:
        """Raise Interrupted after a signal."""
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
        ConfigError: for an address of another form.
        ResourceError: if Ray does not start, or the cluster does not answer.
        Interrupted: if a signal arrived while it started.
    """
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir=short_folder()))
    session = Session(folder)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    seconds = _SECONDS_TO_EXIT if address is None else _SECONDS_TO_EXIT_CLUSTER
    with (
        exit_deadline(seconds),
        ray_environment(folder, private=address is None),
        _signal_handlers(session) as install_handlers,
    ):
        import ray

        for name in _LOGGERS:  # fedbench reports the events that matter itself
            logging.getLogger(name).setLevel(logging.CRITICAL)
        foreign = ray.is_initialized()
        try:
            if not foreign:
                _init(folder, num_cpus or physical_cores(), address)
                install_handlers()  # Ray has installed one of its own
            session.raise_if_interrupted()
            yield session
        finally:
            if not foreign:
                children = psutil.Process().children(recursive=True)
                ray.shutdown()
                _reap([child for child in children if child.pid not in before], folder)
            shutil.rmtree(folder, ignore_errors=True)


def has_token() -> bool:
    """Return True if a token lies in one of the places where Ray looks for it."""
    return bool({_TOKEN_PATH, _TOKEN} & set(os.environ)) or (Path.home() / _USUAL_TOKEN).exists()


def auth_state() -> str:
    """Describe the token that a cluster may demand, and the settings of this process."""
    mode = os.environ.get(_AUTH_MODE, "not set")
    return (
        f"a cluster with a token wants {_AUTH_MODE}=token and the same {_TOKEN_PATH} here"
        f" ({_AUTH_MODE} is {mode}, {'a' if has_token() else 'no'} token is set)"
    )


def short_folder() -> Path:
    """Return a folder for temporary files whose name is short enough for the sockets below it.

    Raises:
        ResourceError: if there is none.
    """
    places = [os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), str(Path(os.sep, "tmp"))]
    for place in places:
        if place and len(os.fsencode(place)) <= _LONGEST_BASE and os.access(place, os.W_OK):
            return Path(place)
    raise ResourceError(
        f"the temporary folder {tempfile.gettempdir()!r} is too long for Ray's sockets"
        f" (at most {_LONGEST_BASE} bytes); set TMPDIR to a shorter one"
    )


@contextmanager
def ray_environment(folder: Path, *, private: bool) -> Iterator[None]:
    """Set Ray's environment variables for the length of the session; those already set stay.

    A private Ray gets its token in a file of `folder`: Ray would write one to the home folder. A
    cluster is joined with the user's token, if there is one, which Ray itself uses only when told.
    """
    names = [*_ENVIRONMENT, _TOKEN_PATH, _AUTH_MODE]
    before = {name: os.environ.get(name) for name in names}
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if private and not {_TOKEN_PATH, _AUTH_MODE, _TOKEN} & set(os.environ):
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text(_private_token(), encoding="utf-8")
        os.environ[_TOKEN_PATH] = str(file)  # `ray.init` then sets the mode, here and in its core
    elif not private and _AUTH_MODE not in os.environ and has_token():
        os.environ[_AUTH_MODE] = "token"
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


@cache
def _private_token() -> str:
    """Draw one token for all sessions of a process, since Ray's core keeps the first it reads."""
    return secrets.token_hex(32)


@contextmanager
def exit_deadline(seconds: float) -> Iterator[None]:
    """End this process if the block is not left so many seconds after SIGINT or SIGTERM.

    When a whole cluster is taken down, its head may be gone before the driver has asked it for
    anything: calls into Ray then wait for a minute, in which Python runs no signal handler, and end
    the process with an exit code like that of a crash. All finished work is on the disk, so ending
    here loses nothing that an orderly end would keep.

    Only the main thread can do this; in others it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inner, outer = socket.socketpair()
    outer.setblocking(False)
    before = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_await_deadline, args=(inner, seconds), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        outer.close()


def _await_deadline(inner: socket.socket, seconds: float) -> None:
    """Wait for a signal's number, then for the end of the block; exit if it does not come."""
    with inner:
        while (data := inner.recv(1)) and data[0] not in _SIGNALS:
            continue
        if not data:
            return
        inner.settimeout(seconds)
        with suppress(TimeoutError):
            while inner.recv(64):
                continue
            return
    interrupted = Interrupted(data[0])
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{interrupted}\n")
        sys.stderr.flush()
    os._exit(interrupted.exit_code)


@contextmanager
def _signal_handlers(session: Session) -> Iterator[Callable[[], None]]:
    """Record signals in the session; yields a function that installs the handlers once more."""
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


def _init(folder: Path, num_cpus: int, address: str | None) -> None:
    import ray
    from ray._private import worker

    if address is not None:
        address = _check_reachable(address)
    # Ray prints what happens to nodes on stdout, which is for results; we look at nodes ourselves.
    worker.print_to_stdstream = _log_node_events
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
            _system_config=_WORKERS,
            **common,
        )
    except Exception as err:
        # A node that is too slow to start raises Exception itself (ray/_private/node.py).
        if type(err) is not Exception and not isinstance(err, _START_ERRORS):
            raise
        reason = " ".join(str(err).split())[:300]
        if address is None:
            raise ResourceError(
                f"Ray does not start: {reason}; `fedbench doctor` looks for the cause, and"
                " the same command begins again"
            ) from err
        silent = isinstance(err, ConnectionError | TimeoutError)
        problem = "no Ray cluster answers at" if silent else "cannot join the Ray cluster at"
        hint = f"; {auth_state()}" if silent else ""
        raise ResourceError(f"{problem} {address!r}: {reason}{hint}") from err


def _log_node_events(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    _log.debug("%s", " ".join(data["lines"]))


def _check_reachable(address: str) -> str:
    """Return the address, `auto` replaced by its meaning; Ray itself would try for minutes.

    A killed cluster leaves processes behind that `auto` takes for a cluster.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"--address {address}: results go to a folder of the machine that fedbench runs on, and"
            " it must be a node of the cluster; start it there, for example with `ray job submit`"
        )
    if address == "auto":
        address = _find_cluster()
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ConfigError(f"--address: must be HOST:PORT or auto (got {address!r})")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except OSError as err:
        raise ResourceError(
            f"no Ray cluster answers at {address!r}: {err.strerror or err}; check --address and"
            " `ray status`"
        ) from err
    return address


def _find_cluster() -> str:
    from ray._private import services

    try:
        return str(services.canonicalize_bootstrap_address("auto"))
    except (ConnectionError, ValueError, OSError) as err:
        raise ResourceError(
            "no Ray cluster is found for --address auto, on this machine or in RAY_ADDRESS; start"
            " one with `ray start --head`, or name it: --address HOST:PORT"
        ) from err


def _reap(started: list[psutil.Process], folder: Path) -> None:
    """Wait for Ray's processes to end, and kill those that do not."""
    _, alive = psutil.wait_procs([p for p in started if _is_rays(p, folder)], _SECONDS_TO_DIE)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, _SECONDS_TO_DIE)


def _is_rays(process: psutil.Process, folder: Path) -> bool:
    """Return False for others, say a data loader that the calling program started meanwhile."""
    try:
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return False
    return str(folder) in command or command.startswith("ray::")
