"""Start or join Ray for the length of one command, watch it, and always shut it down."""

import logging
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

import psutil

from fedbench.bench.system.errors import ConfigError, FedbenchError, ResourceError
from fedbench.bench.system.files import home_folder
from fedbench.bench.system.scratch import (
    cleared_up_if_killed,
    delete_folder,
    end_processes,
    temporary_folder,
    temporary_place,
)
from fedbench.bench.system.signals import STOP_SIGNALS, stop_signals

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # Ray's own setting comes too late where modules are preloaded
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a banner in spite of verbose=0
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` every worker would rebuild its venv
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths would mean other files in a trial
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours stops the same way, and knows that it did
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a run has an objective at its end alone
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # our store is the truth; Tune's snapshots are not read
    "TUNE_FORCE_TRIAL_CLEANUP_S": "1",  # a trial that must end has a second, not ten minutes
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
_TOKEN, _TOKEN_PATH, _AUTH_MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
_PRIVATE = secrets.token_hex(32)  # of all sessions: Ray's core keeps the first that it reads
_USUAL_TOKEN = Path(".ray", "auth_token")  # below the home folder; `ray get-auth-token --generate`
_LONGEST_BASE = 40  # AF_UNIX names end at 103 (macOS) or 107 bytes; Ray's own part is about 60
_OBJECT_STORE_BYTES = 80 * 2**20  # the minimum is 75 MiB; only configurations and rows travel
_WORKERS = {
    # Trial processes begin with what they need; those that Ray starts beforehand are not ready
    # when Tune asks for some, and would only compete with these.
    "preload_python_modules": ["fedbench.bench.tuning.ray.process", "ray.tune"],
    "prestart_worker_first_driver": False,
    "worker_niceness": 0,  # with Ray's 15 a trial has 3 % of a core beside any other program
}
_LOGGERS = ("ray", "ray.tune", "ray.tune.tune", "ray.tune.execution.tune_controller")
_SECONDS_TO_DIE = 5.0  # of Ray's processes, after its shutdown; then they are killed
_SECONDS_TO_EXIT_LOST = 12.0  # of a block after the death of a part of Ray
_SECONDS_BETWEEN_CHECKS = 1.0
_PARTS = {"gcs_server": "the cluster's control process", "raylet": "this node's scheduler"}
_ERROR = re.compile(
    r"\[[^]]* [EC] [^]]*\] \(\w+\) \S+: +(?!.* is over \d+% full)(?:.* Check failed: )?(.*)"
)
"""A line of a log of Ray's core that is an error, or the fatal one, and its text.

A disk that is nearly full is told every ten seconds and ends nothing.
"""
_LINES_OF_AN_END, _LONGEST_REASON = 300, 300  # a raylet that begins writes 160 of its state
_LATE = re.compile("[Tt]imed out")
"""What a start of Ray says on a busy machine: its raylet waits 15 s for each of two agents, and
`ray.init` 30 s for the raylet. No setting raises these; the next start may find a quieter moment.
"""
_STARTS = 3
_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_FIND = 20.0
_FIND = """
import ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
print(ray.get_runtime_context().gcs_address)
"""
_log = logging.getLogger(__name__)
_Address = tuple[str, int]


class _Results:
    """Stdout without what Ray prints there of nodes; we look at nodes ourselves.

    It prints in threads of its own and, what it held back till then, in its shutdown.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.shutdown = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if not (self.shutdown or threading.current_thread().name.startswith("ray_")):
            return self._stream.write(text)
        if text.strip():
            _log.debug("%s", text.strip())
        return len(text)


class Interrupted(FedbenchError):  # noqa: N818
    """A signal ended the command; finished work is stored, and the same command continues."""

    def __init__(self, signum: int, stored: str) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"interrupted by {name}; {stored}the same command continues")
        self.exit_code = 130 if signum == signal.SIGINT else 143


@dataclass
class Session:
    """A running Ray."""

    folder: Path  # of Tune's files; deleted after the session
    received: list[int] = field(default_factory=list)  # signals
    lost: str = ""  # name of the part of Ray that has died
    reason: str = ""  # what its log says of that
    stored: str = "finished work is stored, and "  # what is safe, as a part of a sentence
    _addresses: dict[str, _Address] = field(default_factory=dict)
    _others: set[int] | None = None  # processes that are no part of the Ray that starts

    @property
    def ending(self) -> bool:
        """True after a signal, or if Ray has died."""
        return bool(self.received or self.lost)

    def raise_if_ending(self) -> None:
        """Raise Interrupted after a signal, and ResourceError if Ray has died."""
        if self.received:
            raise Interrupted(self.received[0], self.stored)
        if self.lost:
            why = self.reason or "killed, or out of memory or temporary space"
            raise ResourceError(
                f"Ray's {self.lost}, {_PARTS[self.lost]}, has died ({why});"
                f" {self.stored}the same command continues"
            )

    def find_addresses(self) -> None:
        """Note where the parts of Ray listen."""
        import ray

        context = ray.get_runtime_context()
        host, _, port = str(context.gcs_address).rpartition(":")
        places = {"gcs_server": (host.strip("[]"), int(port))}
        for node in ray.nodes():
            if node["NodeID"] == context.get_node_id():
                place = (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
                places["raylet"] = place
        self._addresses, self._others = places, None

    @property
    def starting(self) -> bool:
        """True until it is known where the parts listen."""
        return self._others is not None

    def begin_start(self) -> None:
        """Take the children that this process gets from now on for the parts of Ray."""
        self._others = {child.pid for child in psutil.Process().children()}

    def check_parts(self) -> None:
        """Look after the parts of Ray without which nothing goes on; see `raise_if_ending`."""
        dead = [name for name, place in self._addresses.items() if not _answers(place)]
        if (dead := dead or self._dead_children()) and not self.lost:
            reason = last_error(self.folder, dead[0])
            if not (self.starting and _LATE.search(reason)):  # of which `ray.init` tells in time
                self.reason, self.lost = reason, dead[0]
        self.raise_if_ending()

    def _dead_children(self) -> list[str]:
        """Return the names of the parts that have died while Ray starts."""
        dead: list[str] = []
        for child in psutil.Process().children() if self.starting else ():
            with suppress(psutil.NoSuchProcess):
                is_dead = child.status() == psutil.STATUS_ZOMBIE
                others = self._others  # read after that, since a new start sets it before it kills
                if is_dead and others is not None and child.pid not in others:
                    dead += {child.name()} & _PARTS.keys()
        return dead


def last_error(folder: Path, part: str) -> str:
    """Return the error with which the log of a part of this Ray ends; empty after a kill.

    The ends of all logs go to our own, since the folder is deleted.
    """
    ends: dict[str, list[str]] = {}
    for log in filter(Path.is_file, sorted(folder.glob("session_2*/logs/*.*"))):
        ends[log.name] = log.read_text("utf-8", "replace").splitlines()[-_LINES_OF_AN_END:]
        _log.debug("%s: %s", log.name, "\n".join(ends[log.name]))
    errors = [match[1] for line in ends.get(f"{part}.out", ()) if (match := _ERROR.match(line))]
    said = errors[-1:]
    for agent in re.findall(r"agent_name = (\w+)", "".join(said)):
        said += [line for line in ends.get(f"{agent}.log", ())[-1:] if "INFO" not in line]
    return ": ".join(said)[:_LONGEST_REASON].rstrip(" .")


def _answers(place: _Address) -> bool:
    """Return False if nobody listens, as after a death; a process that is only slow answers."""
    try:
        socket.create_connection(place, timeout=_SECONDS_TO_ANSWER).close()
    except (ConnectionRefusedError, ConnectionResetError, TimeoutError):
        return False
    except OSError as err:  # this process has no descriptor left, say
        _log.debug("%s: %s", place, err)
    return True


@contextmanager
def ray_session(num_cpus: int | None = None, address: str | None = None) -> Iterator[Session]:
    """Start Ray on this machine, or join a cluster; nothing of it is left when the block ends.

    A Ray that the calling program had started itself is used, and left running. The first signal to
    stop (SIGINT, SIGTERM, SIGHUP) sets `Session.ending`; a second SIGINT raises KeyboardInterrupt.
    So does the death of Ray's processes, seen within seconds: Ray itself waits for a minute or two.
    `num_cpus` processes run at a time on this machine; a cluster has its own number.
    """
    with temporary_folder(short_folder()) as folder:
        session = Session(folder)
        with (
            cleared_up_if_killed(folder),
            _watch(session) as end_watch,
            ray_environment(folder, private=address is None),
            _signal_handlers(session) as install_handlers,
            redirect_stdout(cast(TextIO, results := _Results(sys.stdout))),
        ):
            # In a notebook the import asks for ipywidgets.
            logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
            import ray

            levels = {logger: logger.level for logger in map(logging.getLogger, _LOGGERS)}
            for logger in levels:  # fedbench reports the events that matter itself
                logger.setLevel(logging.CRITICAL)
            foreign = ray.is_initialized()
            try:
                if not foreign:
                    try:
                        with _hangup_blocked():
                            _init(session, num_cpus, address)
                    except SystemExit:  # Ray's own handler of SIGTERM, which it has installed
                        session.received.append(signal.SIGTERM)
                    install_handlers()  # in place of Ray's
                session.raise_if_ending()
                session.find_addresses()
                yield session
            except FedbenchError:
                raise
            except Exception:
                session.check_parts()  # says more than what a call into a dead Ray raises
                raise
            finally:
                with suppress(FedbenchError):
                    session.check_parts()
                if not session.lost:  # else it ends this process, should Ray's shutdown hang
                    end_watch()
                if not foreign:
                    results.shutdown = True
                    ray.shutdown()
                    install_handlers()  # Ray has left SIGTERM to the system
                    end_processes(folder, 0.0 if session.lost else _SECONDS_TO_DIE)
                for logger, level in levels.items():  # the caller may use Ray too
                    logger.setLevel(level)


def has_token() -> bool:
    """Return True if a token lies in one of the places where Ray looks for it."""
    home = home_folder()
    at_home = home is not None and (home / _USUAL_TOKEN).exists()
    return at_home or bool({_TOKEN_PATH, _TOKEN} & set(os.environ))


def auth_state() -> str:
    """Describe the token that a cluster may demand, and the settings of this process."""
    mode = os.environ.get(_AUTH_MODE, "not set")
    return (
        f"a cluster with a token wants {_AUTH_MODE}=token and the same {_TOKEN_PATH} here"
        f" ({_AUTH_MODE} is {mode}, {'a' if has_token() else 'no'} token is set)"
    )


def short_folder() -> Path:
    """Return a folder for temporary files whose name Ray takes: short, of ASCII letters."""
    usual = temporary_place()
    places = [os.environ.get("RAY_TMPDIR"), str(usual), str(Path(os.sep, "tmp"))]
    for place in places:
        fits = place and place.isascii() and len(place) <= _LONGEST_BASE
        if place and fits and os.access(place, os.W_OK):
            return Path(place)
    raise ResourceError(
        f"the temporary folder {str(usual)!r} has letters beyond ASCII or is too long for Ray's"
        f" sockets (at most {_LONGEST_BASE} bytes); set TMPDIR to another one"
    )


@contextmanager
def ray_environment(folder: Path, *, private: bool) -> Iterator[None]:
    """Set Ray's environment variables for the length of the session; those already set stay.

    Ray's core keeps the first token that it reads. A private Ray therefore has the user's token, if
    there is one, as a cluster that is joined by the same process may; else it gets one in a file of
    `folder`, since Ray would write one to the home folder. A cluster is joined with the user's
    token, which Ray itself uses only when told.
    """
    before = dict(os.environ)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Ray's core takes a driver's parent for the raylet, and ends the driver at once, should a call
    # to the raylet fail while that parent is process 1, as in a container, or after a logout.
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    if home_folder() is None:  # Ray's import would fail
        os.environ["HOME"] = str(folder)
    if private and _AUTH_MODE not in os.environ and not has_token():
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text(_PRIVATE, encoding="utf-8")
        os.environ[_TOKEN_PATH] = str(file)  # `ray.init` then sets the mode, here and in its core
    elif not private and _AUTH_MODE not in os.environ and has_token():
        os.environ[_AUTH_MODE] = "token"
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _watch(session: Session) -> Iterator[Callable[[], None]]:
    """Look after Ray's processes in a thread; yields a function that ends it.

    Calls into Ray may wait for a minute for a process that died, and then end this one. The
    thread ends it first: at once while Ray starts, else if the block is not left in some seconds.
    """
    left = threading.Event()

    def watch() -> None:
        while not (session.lost or left.wait(_SECONDS_BETWEEN_CHECKS)):
            with suppress(FedbenchError):
                session.check_parts()
        if session.lost and not left.wait(0.0 if session.starting else _SECONDS_TO_EXIT_LOST):
            end_processes(session.folder, 0.0)
            delete_folder(session.folder)
            try:
                session.raise_if_ending()
            except FedbenchError as err:  # end at once, as the command line ends with such an error
                prefix = "" if isinstance(err, Interrupted) else "error: "
                cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a live display hides it
                with suppress(OSError, ValueError):
                    sys.stderr.write(f"{cursor}{prefix}{err}\n")
                    sys.stderr.flush()
                os._exit(err.exit_code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield left.set
    finally:
        left.set()


@contextmanager
def _hangup_blocked() -> Iterator[None]:
    """Let processes that start in the block outlive the terminal, until the session ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        for signum in stop_signals():
            signal.signal(signum, handle)

    before = {signum: signal.getsignal(signum) for signum in (*STOP_SIGNALS, signal.SIGUSR1)}
    install()
    try:
        yield install
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


def _init(session: Session, num_cpus: int | None, address: str | None) -> None:
    import ray

    folder = session.folder
    if address is not None:
        address = _check_reachable(address)
    common: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is not None:
        try:
            ray.init(address=address, **common)
        except Exception as err:
            raise ResourceError(
                f"cannot join the Ray cluster at {address!r}: {_reason(err)}; {auth_state()}"
            ) from err
        return
    if (quoted := shlex.quote(sys.executable)) != sys.executable:
        # Ray starts workers by a shell, to which it gives the path of Python as it is.
        common["runtime_env"] = {"py_executable": quoted}
    session.begin_start()
    for left in range(_STARTS - 1, -1, -1):
        try:
            ray.init(
                address="local",  # not whatever RAY_ADDRESS names
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(folder),
                _system_config=dict(_WORKERS),  # Ray writes in it, a folder of this session too
                **common,
            )
            return
        except Exception as err:
            session.check_parts()
            why = last_error(folder, "raylet") or last_error(folder, "gcs_server") or _reason(err)
            if not left or not _LATE.search(why):
                raise ResourceError(
                    f"Ray does not start: {why}; this machine may be too busy, or `fedbench"
                    " doctor` finds the cause; the same command begins again"
                ) from err
            _log.warning("this machine is busy, and Ray starts once more: %s", why)
            session.begin_start()  # the parts of before may end now
            ray.shutdown()
            end_processes(folder, 0.0)


def _reason(err: Exception) -> str:
    return " ".join(str(err).split())[:_LONGEST_REASON]


def _check_reachable(address: str) -> str:
    """Return the address, `auto` replaced by its meaning; Ray itself would try for minutes.

    A killed cluster leaves processes behind that `auto` takes for a cluster, so that a process
    looks for it which can be ended.
    """
    if address == "auto":
        command = [sys.executable, "-P", "-c", _FIND]
        try:
            found = subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_SECONDS_TO_FIND
            )
            address = found.stdout.split()[-1]
        except (subprocess.SubprocessError, IndexError) as err:
            raise ResourceError(
                "no Ray cluster is found for --address auto, on this machine or in RAY_ADDRESS;"
                " start one with `ray start --head`, or name it: --address HOST:PORT"
            ) from err
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "/" in host:  # ray:// is for clients outside the cluster
        raise ConfigError(
            f"--address: must be HOST:PORT or auto, on a node of the cluster (got {address!r})"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except OSError as err:
        raise ResourceError(
            f"no Ray cluster answers at {address!r}: {err.strerror or err}; check --address and"
            " `ray status`"
        ) from err
    return address
