"""What the fork server of `multiprocessing` does not do, and this one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from fedbench.bench.training.fork_server import CAN_FORK

SCRIPT = """
import os, socket, time
from fedbench.bench.training.fork_server import ForkServer
print("main", flush=True)
server = ForkServer()
_, theirs = socket.socketpair()
worker = server.fork(theirs.fileno(), os.memfd_create("memory"))
print(worker.pid(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
def test_a_script_without_a_guard_runs_once_and_its_workers_end_with_it() -> None:
    """From standard input, which no worker could import; a stopped worker is as a busy one."""
    with subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(SCRIPT)
        process.stdin.close()
        assert process.stdout.readline() == "main\n"
        worker = int(process.stdout.readline())
        try:
            os.kill(worker, signal.SIGSTOP)
            process.kill()
            # The end of the file: neither the server nor the worker holds it open any longer.
            assert process.stdout.read() == ""
            assert not psutil.pid_exists(worker)
        finally:
            process.kill()
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
