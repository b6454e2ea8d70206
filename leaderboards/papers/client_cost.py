"""What a round costs one client: processor time and FLOP, and the share beside its steps."""

import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.flop import counted
from fedbench.bench.training.setup import num_batches

_STEPS = 8  # that are measured; 8 batches of 16 fill the memory of Orchestra


class ClientCost(NamedTuple):
    """A client's part of a round: all of it, and what is no local step."""

    seconds: float  # of one processor core, on this machine
    flop: float  # of products of matrices and convolutions
    seconds_beside: float
    flop_beside: float

    @property
    def share(self) -> float:
        """Share of the seconds that is no local step, in [0, 1]: clustering, where there is one."""
        return self.seconds_beside / self.seconds


def client_cost(experiment: Experiment) -> ClientCost:
    """Measure the first round of the client with the most images, on one thread of the CPU.

    Eight steps stand for all of its steps. Beside them are its hooks before the first and after the
    last one. Nothing is sent, nothing is stored, and nothing is compiled, since a compiler's time
    is no step's and its products would not be counted.
    """
    setup = experiment.varied("client", compile=False).setup
    with temporary_folder() as folder, single_thread():
        runner = ClientRunner(setup, torch.device("cpu"), folder)
        server, index = runner.binding.server.data.clone(), setup.needs.preparatory_rounds
        task = Task(int(np.argmax(setup.partition.sizes)), index, setup.plan(index))
        seconds, beside = _measure(runner, task, server, time.process_time)
        with counted() as counter:
            flop, flop_beside = _measure(runner, task, server, lambda: float(counter.flop))
    return ClientCost(seconds + beside, flop + flop_beside, beside, flop_beside)


def _measure(
    runner: ClientRunner, task: Task, server: Tensor, read: Callable[[], float]
) -> tuple[float, float]:
    """Return what `read` gives for all local steps of a round, and for what is beside them."""
    setup, made = runner.setup, 0
    with runner.regime(), runner.draws_of(task):
        readings = [read()]
        local = runner.begin(task, server)
        optimizer = runner.optimizer(local)
        readings.append(read())
        for batch in islice(local.batches, _STEPS):
            local.add(runner.step(batch, local.client, optimizer))
            made += 1
        readings.append(read())
        runner.after(local)
        readings.append(read())
    (epoch,) = num_batches(np.array([len(local.data)]), setup.config, setup.needs)
    before, steps, after = np.diff(readings)
    return float(steps / made * epoch * task.plan.local_epochs), float(before + after)
