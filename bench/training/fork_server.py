"""One process that imports torch once and forks the workers of a run from itself.

Importing takes seconds and hundreds of megabytes; forks share both. The process that starts it may
have threads, a GPU or a notebook, none of which survive a fork: the nursery is a fresh interpreter
that does nothing but import. It needs nothing but the standard library here, so that a command can
start it before it imports torch itself (`prepare`).
"""

from __future__ import annotations

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
from typing import NoReturn

CAN_FORK = sys.platform == "linux"
"""Elsewhere system libraries may not survive a fork, and every worker gets a nursery of its own."""

_REQUEST = struct.Struct("!cq")  # what, and of which process
_ANSWER = struct.Struct("!q")
_FORK, _REAP = b"f", b"r"
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Nursery:
    """A running nursery, seen from the process that started it; it ends when that one does."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-P",
            "-m",
            "fedbench.bench.training.workers",
            str(theirs.fileno()),
        ]
        # Ctrl-C reaches the whole group: the process that was asked to stop ends the others.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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

    def fork(self, pipe: int, memory: int) -> Worker:
        """Ask for one more worker, which gets these two file descriptors; does not wait for it.

        Raises:
            OSError: if the nursery has died.
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
        """Wait for its own end."""
        return self._process.wait()

    def reap(self, worker: Worker) -> int:
        """Wait for a worker's end; its exit code, negative for a signal, or that of the nursery."""
        try:
            self._control.sendall(_REQUEST.pack(_REAP, worker.pid()))
            return self._answer()
        except OSError:
            return self.exit_code()

    def settle(self) -> None:
        """Wait until all workers that were asked for have a process id.

        Raises:
            OSError: if the nursery has died.
        """
        while self._unanswered:
            self._unanswered[0].number = self._answer()
            del self._unanswered[0]

    def close(self) -> None:
        """End the workers, in whatever they are doing, and the nursery."""
        self._control.close()
        if not self._asked or not CAN_FORK:  # it may still be importing; it has no children
            self._process.kill()
        self._process.wait()

    def _answer(self) -> int:
        data = self._control.recv(_ANSWER.size, socket.MSG_WAITALL)
        if len(data) < _ANSWER.size:
            raise ConnectionResetError("the nursery has died")
        number: int = _ANSWER.unpack(data)[0]
        return number


class Worker:
    """One worker process, seen from the process that it works for."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self.number: int | None = None
        self._exit_code: int | None = None

    def pid(self) -> int:
        """Its process id; waits for the nursery to have imported everything.

        Raises:
            OSError: if the nursery has died.
        """
        if self.number is None:
            self._nursery.settle()
        if self.number is None:
            raise ConnectionResetError("the nursery has died")
        return self.number

    def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        if self._exit_code is None:
            self._exit_code = self._nursery.reap(self)
        return self._exit_code


_prepared: list[Nursery] = []


def prepare(workers: int | None, device: str) -> None:
    """Start a nursery for the pool that will be made soon, so that it imports meanwhile.

    Args:
        workers: as the pool will be asked for; a single one needs no process of its own.
        device: `auto`, `cpu` or `cuda`.
    """
    several = (os.cpu_count() or 1) > 1 if workers is None else workers > 1
    if several and CAN_FORK and not _prepared and device in ("auto", "cpu"):
        _prepared.append(Nursery())
        atexit.register(_forget)


def take() -> Nursery:
    """The nursery that was prepared, or a new one."""
    return _prepared.pop() if _prepared else Nursery()


def _forget() -> None:
    while _prepared:
        _prepared.pop().close()


def attend(control: int, serve: Callable[[int, int], None]) -> None:
    """The nursery's own life, once everything is imported: fork, reap, and end with the parent.

    Args:
        control: file descriptor of the socket to the parent.
        serve: a worker's life, given its pipe and its memory.
    """
    children: set[int] = set()
    gc.freeze()  # pages that a collection does not touch stay shared
    with socket.socket(fileno=control) as parent:
        while True:
            try:
                data, fds, *_ = socket.recv_fds(parent, _REQUEST.size, 2)
            except ConnectionResetError:  # it ended without reading every answer
                break
            if len(data) < _REQUEST.size:
                break
            what, pid = _REQUEST.unpack(data)
            if what == _FORK:
                answer = os.fork() if CAN_FORK else 0
                if answer == 0:
                    parent.close()
                    _live(serve, *fds)
                children.add(answer)
                for each in fds:
                    os.close(each)
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                children.discard(pid)
            parent.sendall(_ANSWER.pack(answer))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _live(serve: Callable[[int, int], None], pipe: int, memory: int) -> NoReturn:
    """A worker from its first moment to its last; nothing of the nursery's is tidied up in it."""
    code = 1
    try:
        serve(pipe, memory)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
