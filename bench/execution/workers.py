"""Executor of a round in worker processes.

A worker is forked from a new interpreter (`bench.execution.fork_server`), so it needs no importable
`__main__`, and nothing of the parent's threads reaches it. It shares one anonymous memory file with
its parent: the server's vector, followed by one slot per upload in flight. Only small messages
pass through the pipe.
"""

import logging
import mmap
import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from socket import socketpair
from typing import Any

import torch
from torch import Tensor

from fedbench.bench.execution import fork_server
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method.blame import error_of_plugin
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import FedbenchError, PluginWarning, ResourceError
from fedbench.bench.system.regime import reproducible
from fedbench.bench.system.scratch import unnamed_file
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.clients import Executor

_FLOAT = 4


class WorkerPool(Executor):
    """Executor that trains clients in several processes.

    At most two uploads per worker are in flight, so memory does not grow with the cohort; a slow
    client makes the others wait once those are used up.

    Args:
        experiment: the run.
        personal_dir: folder of clients' personal tensors.
        devices: one per worker; no more workers start than a round has clients.
        sizes: (server_size, upload_size).
        cohort_size: clients of the first round: so many workers start at once.
    """

    def __init__(
        self,
        experiment: Experiment,
        personal_dir: Path,
        devices: Sequence[str],
        sizes: tuple[int, int],
        cohort_size: int,
    ) -> None:
        server_size, upload_size = sizes
        self._run, self._devices, self._sizes = (experiment, personal_dir), devices, sizes
        self._num_slots = 2 * len(devices)  # one to train into while the other waits to be folded
        total = server_size + self._num_slots * upload_size
        self._memory = _shared_memory(max(1, total) * _FLOAT)
        self._server, self._slots = _views(self._memory, server_size, upload_size, self._num_slots)
        self._servers: list[fork_server.ForkServer] = []
        self._ends: dict[Connection, Callable[[], int]] = {}  # pipe of a worker -> its exit code
        try:
            self._grow(cohort_size)
        except BaseException:  # if one worker cannot start, the others must not stay
            self.close()
            raise

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`."""
        self._server.copy_(server)
        self._grow(len(tasks))
        waiting = deque(enumerate(tasks))
        free = deque(range(self._num_slots))
        idle = deque(self._ends)
        done: dict[int, tuple[Trained, int]] = {}

        def hand_out() -> None:
            while waiting and idle and free:
                number, task = waiting.popleft()
                self._send(idle.popleft(), (number, task, free.popleft()))

        for index in range(len(tasks)):
            hand_out()
            while index not in done:
                for pipe in wait([*self._ends]):
                    number, trained, slot = self._receive(pipe)  # type: ignore[arg-type]
                    done[number] = (trained, slot)
                    idle.append(pipe)  # type: ignore[arg-type]
                hand_out()  # before the results are folded, so that no worker waits for that
            trained, slot = done.pop(index)
            yield trained, self._slots[slot]
            free.append(slot)

    def close(self) -> None:
        """End the workers; one that trains a client is killed."""
        for pipe in self._ends:
            pipe.close()
        for server in self._servers:
            server.close()
        os.close(self._memory)

    def _grow(self, num_tasks: int) -> None:
        """Start missing workers, up to one per task."""
        off = first_use.switched_off()  # before an interruption, perhaps
        for device in self._devices[len(self._ends) : num_tasks]:
            self._send(self._start(), (self._run, device, *self._sizes, self._num_slots, off))

    def _start(self) -> Connection:
        if not self._servers or not fork_server.CAN_FORK:
            self._servers.append(fork_server.get())
        ours, theirs = socketpair()
        pipe = Connection(ours.detach())
        with theirs:
            try:
                self._ends[pipe] = self._servers[-1].fork(theirs.fileno(), self._memory)
            except OSError as err:
                raise self._lost(self._servers[-1].exit_code()) from err
        return pipe

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except (BrokenPipeError, ConnectionResetError) as err:
            raise self._ended(pipe) from err

    def _receive(self, pipe: Connection) -> tuple[int, Trained, int]:
        try:
            kind, *rest = pipe.recv()
        except (EOFError, ConnectionResetError) as err:
            raise self._ended(pipe) from err
        if kind == "error":
            error, detail = rest
            error.add_note(detail)
            raise error
        number, trained, extras, slot, switched_off = rest
        first_use.switch_off(switched_off)
        tensors = {name: torch.from_numpy(value) for name, value in extras.items()}
        return number, replace(trained, extras=tensors), slot

    def _ended(self, pipe: Connection) -> ResourceError:
        return self._lost(self._ends[pipe]())

    def _lost(self, code: int) -> ResourceError:
        if code == fork_server.NO_PROCESS:
            return ResourceError(
                "the system allows no further worker process (`ulimit -u`, a container's limit, or"
                " memory); raise the limit, or use fewer --workers"
            )
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ResourceError(
            f"a worker process died ({cause}; signal 9 often means out of memory); the run is kept"
            " up to its last round: run the same command again, perhaps with fewer --workers"
        )


def _shared_memory(size: int) -> int:
    """Return a file descriptor of anonymous memory, freed with the last process that holds it."""
    with unnamed_file() as file:
        fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _views(fd: int, server: int, upload: int, slots: int) -> tuple[Tensor, list[Tensor]]:
    flat = torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.float32)
    uploads = flat[server : server + slots * upload].view(slots, upload)
    return flat[:server], list(uploads)


def _run_worker(channel: int, memory: int) -> None:
    """Rebuild the run, then train the clients that arrive on the pipe until it is closed."""
    pipe = Connection(channel)
    try:
        (experiment, folder), device, server_size, upload_size, slots, off = pipe.recv()
    except (EOFError, ConnectionResetError):
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PluginWarning)  # the parent has shown it, or will
    logging.getLogger(first_use.__name__).disabled = True
    first_use.switch_off(off)
    views = _views(memory, server_size, upload_size, slots)
    with reproducible(device):
        _serve(pipe, experiment, folder, device, *views)


def _serve(
    pipe: Connection,
    experiment: Experiment,
    personal_dir: Path,
    device: str,
    server: Tensor,
    uploads: Sequence[Tensor],
) -> None:
    runner: ClientRunner | Exception
    try:  # before the first task, while the parent prepares too
        runner = _runner(experiment, personal_dir, device)
    except Exception as err:  # sent as the answer to the first task
        runner = err
    while True:
        try:
            number, task, slot = pipe.recv()
        except (EOFError, ConnectionResetError):
            return  # the parent is gone
        answer: tuple[Any, ...]
        try:
            if isinstance(runner, Exception):
                raise runner
            trained = runner.run(task, server, uploads[slot])
            # As arrays: torch pickles a tensor as an open file of shared memory.
            extras = {name: value.numpy() for name, value in trained.extras.items()}
            off = first_use.switched_off()
            answer = ("done", number, replace(trained, extras={}), extras, slot, off)
        except FedbenchError as err:
            answer = ("error", err, traceback.format_exc())
        except Exception as err:
            text = str(error_of_plugin(err) or f"{type(err).__name__}: {err}")
            message = f"client {task.client_id}, round {task.round_index + 1}: {text}"
            answer = ("error", FedbenchError(message), traceback.format_exc())
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _runner(experiment: Experiment, personal_dir: Path, device: str) -> ClientRunner:
    setup = experiment.setup
    experiment.check_code()  # this process has imported it anew
    return ClientRunner(setup, torch.device(device), personal_dir)


if __name__ == "__main__":
    fork_server.serve(int(sys.argv[1]), _run_worker)
