"""Worker processes: same bits as in this process, errors that name their origin, forks."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from socket import send_fds, socketpair

import psutil
import pytest
import torch
from torch import Tensor

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.execution.fork_server import _NUMBER, CAN_FORK, serve
from fedbench.bench.execution.workers import WorkerPool
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import RoundPlan
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import (
    FedbenchError,
    ResourceError,
    StoreError,
    UnknownNameError,
)
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer

CPU = torch.device("cpu")
pytestmark = pytest.mark.onednn  # its processes have it
CONFIG = tiny_config("simclr+uv", model__norm="batch-local", data__num_clients=6)


def make_pool(
    setup: Setup, trainer: Trainer, folder: Path, workers: int, cohort_size: int = 6
) -> WorkerPool:
    sizes = (trainer.layout.server_size, trainer.layout.upload_size)
    return WorkerPool(
        Experiment(setup.config), folder / "clients", ["cpu"] * workers, sizes, cohort_size
    )


def processes(pool: WorkerPool) -> list[psutil.Process]:
    servers = [psutil.Process(server._process.pid) for server in pool._servers]
    return [child for server in servers for child in server.children()] if CAN_FORK else servers


class Killing:
    """Pool that kills one of its processes after the first result."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool

    def train(self, tasks: list[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        for index, result in enumerate(self.pool.train(tasks, server)):
            yield result
            if index == 0:
                process = processes(self.pool)[0]
                process.kill()
                while process.status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.01)


def test_workers_give_the_same_bits_and_a_killed_one_loses_none(tmp_path: Path) -> None:
    """All parts share one pool, since processes take seconds to start.

    Round 1 runs in two workers; then errors; a kill in round 2; the rest in this process.
    """
    setup = tiny_setup(CONFIG)
    whole = train(setup, tmp_path / "whole")
    folder = tmp_path / "pool"
    trainer = Trainer(
        setup, folder, "0" * 20, CPU, CollapseMonitor(setup, CPU, PersonalStore(folder / "clients"))
    )
    off = {"fused SGD": "it differed before an interruption"}
    first_use.switch_off(off)
    with closing(make_pool(setup, trainer, folder, workers=2, cohort_size=1)) as pool:
        assert len(pool._ends) == 1  # no more than a round of one client needs
        first_use.begin_run()
        next(trainer.rounds(pool))
        assert first_use.switched_off() == off  # as the worker says, which was told
        assert len(pool._ends) == 2  # this one has six
        assert trainer.history[0].loss == whole.history[0].loss

        def fail(task: Task) -> FedbenchError:
            with pytest.raises(FedbenchError) as caught:
                list(pool.train([task], trainer.vector))
            return caught.value

        unforeseen = fail(Task(99, 7, RoundPlan(1)))
        assert str(unforeseen).startswith("client 99, round 8: IndexError: ")
        assert unforeseen.exit_code == 1
        assert "Traceback" in unforeseen.__notes__[0]
        expected = fail(Task(0, 3, RoundPlan(1), personal_round=2))
        assert type(expected) is StoreError
        assert expected.exit_code == 5

        started = processes(pool)
        with pytest.raises(ResourceError, match=r"signal 9.*run the same command again"):
            for _ in trainer.rounds(Killing(pool)):  # type: ignore[arg-type]
                pass
    assert not any(process.is_running() for process in started)
    resumed = train(setup, folder)
    assert resumed.resumes == 1
    assert_same_run(whole, resumed)


def test_a_worker_that_cannot_start_is_reported(tmp_path: Path) -> None:
    setup = tiny_setup(CONFIG)
    trainer = Trainer(
        setup,
        tmp_path,
        "0" * 20,
        CPU,
        CollapseMonitor(setup, CPU, PersonalStore(tmp_path / "clients")),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", "false")
        with (  # it is noticed at the first message or at the first round, whichever comes first
            pytest.raises(ResourceError, match=r"a worker process died \(exit code 1"),
            closing(make_pool(setup, trainer, tmp_path, workers=2)) as pool,
        ):
            next(trainer.rounds(pool))


def test_errors_come_back_by_name_and_a_plugins_as_the_nearest_known_one() -> None:
    class TheirError(UnknownNameError):
        exit_code = 3

    error = TheirError("view", "bas", ["base"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.exit_code) == (UnknownNameError, str(error), 3)


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
def test_a_server_that_its_parent_has_left_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has asked for the end of a worker, and reads no answer."""
    ours, theirs = socketpair()
    with subprocess.Popen(["true"]) as child:
        monkeypatch.setattr(os, "fork", lambda: child.pid)
        send_fds(ours, [_NUMBER.pack(0)], [*os.pipe()])
        ours.sendall(_NUMBER.pack(0))
        ours.close()
        serve(theirs.detach(), lambda pipe, memory: None)


SCRIPT = """
import os, psutil, signal, socket, time
from multiprocessing.connection import Connection
from fedbench.bench.execution.fork_server import ForkServer

class Stop:
    def __reduce__(self):
        return signal.raise_signal, (signal.SIGSTOP,)

def is_stopped(child):
    try:
        return child.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:  # one that an import has started, as ldconfig
        return False

print("main", flush=True)
server = ForkServer()
ours, theirs = socket.socketpair()
server.fork(theirs.fileno(), os.memfd_create("memory"))
Connection(ours.detach()).send(Stop())
group = psutil.Process(server._process.pid)
while not (stopped := [child for child in group.children() if is_stopped(child)]):
    time.sleep(0.01)
print(stopped[0].pid, flush=True)
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
            process.kill()
            # The end of the file: neither the server nor the worker holds it open any longer.
            assert process.stdout.read() == ""
            assert not psutil.pid_exists(worker)
        finally:
            process.kill()
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
