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
from typing import NoReturn

from fedbench.bench.system.cores import usable_cores

CAN_FORK = sys.platform == "linux"
"""Elsewhere system libraries may not survive a fork; every worker then is a server that runs it."""

_REQUEST = struct.Struct("!cq")  # kind, process id
_ANSWER = struct.Struct("!q")
_FORK, _REAP = b"f", b"r"
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
        self._unanswered: list[Worker] = []
        self._asked = False

    def fork(self, pipe: int, memory: int) -> "Worker":
        """Request one more worker, which gets these two file descriptors, without waiting for it.

        Raises:
            OSError: if the server has died.
        """
        self._asked = True
        socket.send_fds(self._control, [_REQUEST.pack(_FORK, 0)], [pipe, memory])
        worker = Worker(self)
        if CAN_FORK:
            self._unanswered.append(worker)
        else:
            worker.number = self._process.pid
        return worker

    def exit_code(self) -> int:
        """Wait for its end."""
        return self._process.wait()

    def reap(self, worker: "Worker") -> int:
        """Wait for a worker's end; return its exit code, negative for a signal, or the server's."""
        try:
            self._control.sendall(_REQUEST.pack(_REAP, worker.pid()))
            return self._answer()
        except OSError:
            return self.exit_code()

    def settle(self) -> None:
        """Wait until all requested workers have a process id.

        Raises:
            OSError: if the server has died.
        """
        while self._unanswered:
            self._unanswered[0].number = self._answer()
            del self._unanswered[0]

    def close(self) -> None:
        """End the workers, busy or not, and the server."""
        self._control.close()
        if not self._asked or not CAN_FORK:  # it may still be importing; it has no children
            self._process.kill()
        self._process.wait()

    def _answer(self) -> int:
        data = self._control.recv(_ANSWER.size, socket.MSG_WAITALL)
        if len(data) < _ANSWER.size:
            raise ConnectionResetError("the fork server has died")
        number: int = _ANSWER.unpack(data)[0]
        return number


class Worker:
    """Handle on one worker process."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self.number: int | None = None
        self._exit_code: int | None = None

    def pid(self) -> int:
        """Return its process id; waits until the server has imported everything.

        Raises:
            OSError: if the server has died.
        """
        if self.number is None:
            self._server.settle()
        assert self.number is not None
        return self.number

    def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        if self._exit_code is None:
            self._exit_code = self._server.reap(self)
        return self._exit_code


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
    children: set[int] = set()
    gc.freeze()  # pages that a collection does not touch stay shared
    # The parent may end, or leave a run, before it has read every answer.
    with socket.socket(fileno=control) as parent, suppress(ConnectionError):
        while True:
            data, fds, *_ = socket.recv_fds(parent, _REQUEST.size, 2)
            if len(data) < _REQUEST.size:
                break
            kind, pid = _REQUEST.unpack(data)
            if kind == _FORK:
                try:
                    answer = os.fork() if CAN_FORK else 0
                except OSError:
                    os._exit(NO_PROCESS)
                if answer == 0:
                    parent.close()
                    _run_and_exit(run_worker, *fds)
                children.add(answer)
                for descriptor in fds:
                    os.close(descriptor)
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                children.discard(pid)
            parent.sendall(_ANSWER.pack(answer))
    for pid in children:
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
