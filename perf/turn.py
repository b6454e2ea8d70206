"""Turns of contenders, processes that each do one unit of work when they are told to.

Contenders are thus measured side by side, a unit of each in turn, all warm; the clock runs in the
contender. Both ends are here; the contender's end needs psutil at most.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
_VARIABLE = "BENCHMARK_TURN_FD"
_PATIENCE = 600.0  # seconds until a contender that says nothing counts as hung


class Turn:
    """The contender's side."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(os.environ.pop(_VARIABLE)))
        self._lines = self._socket.makefile("r")
        self._began = time.perf_counter()

    def over(self, **facts: float) -> None:
        """Report the unit that is done and wait for the next; the first one is warm-up.

        Ends the process when no further unit is asked for.
        """
        seconds = time.perf_counter() - self._began
        self._socket.sendall((json.dumps({"seconds": seconds, **facts}) + "\n").encode())
        if not self._lines.readline():
            sys.stderr.flush()
            os._exit(0)  # from inside whatever loop calls this
        self._began = time.perf_counter()


class Contender:
    """The measuring side: starts the process and asks for units.

    `name` is that in the results, `command` lacks the interpreter, and `threads` are torch's and
    OpenMP's in the process, by default what it takes by itself.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        python: str | Path = sys.executable,
        threads: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = [str(python), *map(str, command)]
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            self._env.pop(variable, None)
            if threads is not None:
                self._env[variable] = str(threads)
        self.first: dict[str, float] = {}
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        parent, child = socket.socketpair()
        self._socket = parent
        self._lines = parent.makefile("r")
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**self._env, _VARIABLE: str(child.fileno())},
            pass_fds=(child.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        child.close()
        began = time.perf_counter()
        try:
            self.first = self._receive(sample=True) | {"startup": time.perf_counter() - began}
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def unit(self) -> dict[str, float]:
        """Run one unit, and return the contender's report: `seconds` at least.

        `cpu` are processor seconds of all its processes, `foreign` cores that others used then.
        """
        began, seconds, busy = time.perf_counter(), cpu_of(self._process.pid), _busy()
        self._socket.sendall(b"go\n")
        facts = self._receive(sample=False)
        wall, cpu = time.perf_counter() - began, cpu_of(self._process.pid) - seconds
        return facts | {"cpu": cpu, "foreign": max(0.0, (_busy() - busy - cpu) / wall)}

    def memory(self) -> int:
        """Return bytes that the contender's processes hold now."""
        return memory_of(self._process.pid)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()
        family = _family(self._process.pid)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in family:  # workers of a rival that outlive it
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._log.close()

    def _receive(self, *, sample: bool) -> dict[str, float]:
        """Receive one line; memory is measured while waiting, but never in a timed unit."""
        self._socket.settimeout(0.5 if sample else _PATIENCE)
        waited, received = time.perf_counter(), b""
        while not received.endswith(b"\n"):
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                if time.perf_counter() - waited > _PATIENCE:
                    raise self._failed("says nothing") from None
                if self._process.poll() is not None:
                    raise self._failed("ended") from None
                self.peak_bytes = max(self.peak_bytes, memory_of(self._process.pid))
                continue
            if not part:
                raise self._failed("ended")
            received += part
        facts: dict[str, float] = json.loads(received)
        return facts

    def _failed(self, how: str) -> RuntimeError:
        self._log.seek(0)
        return RuntimeError(
            f"contender {self.name} {how}; its output ends with:\n{self._log.read()[-3000:]}"
        )


def _family(pid: int) -> list[Any]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _busy() -> float:
    """Return processor seconds that all cores have worked, or been denied by the host."""
    times = psutil.cpu_times()
    idle_or_counted_twice = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in idle_or_counted_twice))


def cpu_of(pid: int) -> float:
    """Return processor seconds that a process and all its descendants have used."""
    total = 0.0
    for process in _family(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def memory_of(pid: int) -> int:
    """Return bytes of a process and all its descendants; shared pages are split among holders."""
    total = 0
    for process in _family(pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)
    return total
