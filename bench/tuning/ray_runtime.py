"""Ray for the length of a command: quiet, private, checked beforehand, and gone afterwards."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from fedbench.bench.devices import physical_cores
from fedbench.bench.errors import ConfigError, FedbenchError, ResourceError
from fedbench.bench.tuning.ray_environment import auth_state, ray_environment, short_folder
from fedbench.bench.tuning.way_out import SIGNALS, way_out

_log = logging.getLogger(__name__)
_OBJECT_STORE_BYTES = 80 * 2**20  # the minimum is 75 MiB; only configurations and rows travel
_SECONDS_TO_DIE = 5.0
_SECONDS_TO_LEAVE, _SECONDS_TO_LEAVE_A_CLUSTER = 60.0, 20.0
_SECONDS_TO_ANSWER = 5.0
_WORKERS = {
    # Trial processes begin with what they need; those that Ray starts beforehand are not ready
    # when Tune asks for some, and would only compete with these.
    "preload_python_modules": ["fedbench.bench.tuning.trial", "ray.tune"],
    "prestart_worker_first_driver": False,
}
_LOGGERS = ("ray", "ray.tune", "ray.tune.tune", "ray.tune.execution.tune_controller")


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
        ConfigError: for an address that is none.
        ResourceError: if Ray does not start, or the cluster does not answer.
        Interrupted: if a signal arrived while it started.
    """
    base = short_folder()
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir=base))
    session = Session(folder, address)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    patience = _SECONDS_TO_LEAVE if address is None else _SECONDS_TO_LEAVE_A_CLUSTER
    with (
        way_out(patience),
        ray_environment(folder, private=address is None),
        _signals(session) as again,
    ):
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


_NO_START = (ConnectionError, TimeoutError, RuntimeError, ValueError, OSError)


def _init(folder: Path, num_cpus: int, address: str | None) -> None:
    import ray
    from ray._private import worker

    if address is not None:
        address = _check_reachable(address)
    # Ray prints what happens to nodes on stdout, which is for results; we look at nodes ourselves.
    worker.print_to_stdstream = _drop
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
        if type(err) is not Exception and not isinstance(err, _NO_START):
            raise
        reason = " ".join(str(err).split())[:300]
        if address is None:
            raise ResourceError(
                f"Ray does not start: {reason}; `fedbench doctor` looks for the cause, and"
                " the same command begins again"
            ) from err
        silent = isinstance(err, ConnectionError | TimeoutError)
        what = "no Ray cluster answers at" if silent else "cannot join the Ray cluster at"
        hint = f"; {auth_state()}" if silent else ""
        raise ResourceError(f"{what} {address!r}: {reason}{hint}") from err


def _check_reachable(address: str) -> str:
    """The address, `auto` replaced by what it stands for; Ray itself would try for minutes.

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


def _drop(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    _log.debug("%s", " ".join(data["lines"]))


def quiet() -> None:
    """Silence Ray's and Tune's loggers; what matters is reported by fedbench."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


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
        for signum in SIGNALS:
            signal.signal(signum, handle)

    before = {signum: signal.getsignal(signum) for signum in (*SIGNALS, signal.SIGUSR1)}
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
