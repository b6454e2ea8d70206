"""One process that imports torch once and forks the workers of a run from itself.

Importing takes seconds and hundreds of megabytes; forks share both. Threads, a GPU or a notebook do
not survive a fork, so the server is a new interpreter that does nothing but import. This module
needs the standard library only: a command starts it before it imports torch (`start_early`).

The fork server of `multiprocessing` is not used. On Python 3.11 it imports the user's `__main__` in
every worker, whatever `set_forkserver_preload` names, so that a script without a guard ends in a
`RuntimeError` and one from standard input in a `FileNotFoundError`; and a worker outlives a parent
that is killed until its client is done.
"""

import atexit
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import NoReturn

from fedbench.bench.system.cores import usable_cores

CAN_FORK = sys.platform == "linux"
"""Elsewhere system libraries may not survive a fork; every worker then is a server that runs it."""

_NUMBER = struct.Struct("!q")  # of a request: which fork has to end; of an answer: its exit code
NO_PROCESS = os.EX_OSERR
"""Exit code of a server that may start no further process."""
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ForkServer:
    """Handle on a running fork server in the process that started it; it ends with that process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        module = "fedbench.bench.execution.workers"
        # -P: a torch.py in the user's folder must not be taken for torch.
        command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]
        # Ctrl-C and the end of the terminal reach the whole group: the process that was asked to
        # stop ends the others.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=os.environ | _THREADS,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._forks = 0

    def fork(self, pipe: int, memory: int) -> Callable[[], int]:
        """Request one more worker, which gets these two file descriptors, without waiting for it.

        The returned function waits for its end and returns its exit code, negative for a signal; or
        that of the server, if this has died.

        Raises:
            OSError: if the server has died.
        """
        request = _NUMBER.pack(self._forks)
        socket.send_fds(self._control, [request], [pipe, memory])
        self._forks += 1
        return cache(partial(self._end_of, request))

    def exit_code(self) -> int:
        """Wait for its end."""
        return self._process.wait()

    def close(self) -> None:
        """End the workers, busy or not, and the server."""
        self._control.close()
        if not self._forks or not CAN_FORK:  # it may still be importing; it has no children
            self._process.kill()
        self._process.wait()

    def _end_of(self, request: bytes) -> int:
        with suppress(OSError):
            self._control.sendall(request)
            answer = self._control.recv(_NUMBER.size, socket.MSG_WAITALL)
            if answer:
                number: int = _NUMBER.unpack(answer)[0]
                return number
        return self.exit_code()


_early: list[ForkServer] = []


def start_early(workers: int | None, device: str) -> None:
    """Start a server for a pool of workers that will be made soon; it imports in the meantime."""
    several = usable_cores() > 1 if workers is None else workers > 1
    if several and CAN_FORK and not _early and device in ("auto", "cpu"):
        _early.append(ForkServer())
        atexit.register(_early[0].close)


def get() -> ForkServer:
    """Return the server that was started early, or a new one."""
    return _early.pop() if _early else ForkServer()


def serve(control: int, run_worker: Callable[[int, int], None]) -> None:
    """Run the server after its imports: fork and reap on request, until the parent ends.

    `control` is the socket to the parent; `run_worker` takes descriptors of a pipe and of memory.
    """
    children: dict[int, int] = {}  # number of a fork -> its process id, until its end was asked for
    gc.freeze()  # pages that a collection does not touch stay shared
    # The parent may end, or leave a run, before it has read every answer.
    with socket.socket(fileno=control) as parent, suppress(ConnectionError):
        while True:
            data, fds, *_ = socket.recv_fds(parent, _NUMBER.size, 2)
            if len(data) < _NUMBER.size:
                break
            (number,) = _NUMBER.unpack(data)
            if fds:
                try:
                    children[number] = os.fork() if CAN_FORK else 0
                except OSError:
                    os._exit(NO_PROCESS)
                if children[number] == 0:
                    parent.close()
                    _run_and_exit(run_worker, *fds)
                for descriptor in fds:
                    os.close(descriptor)
            else:
                status = os.waitpid(children.pop(number), 0)[1]
                parent.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run_and_exit(run_worker: Callable[[int, int], None], pipe: int, memory: int) -> NoReturn:
    """Run a worker and end its process without the exit handlers inherited from the server."""
    code = 1
    try:
        run_worker(pipe, memory)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
