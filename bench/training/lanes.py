"""Training of clients in this process: one after another, or several at a time in lanes.

A step of a small net is hundreds of short kernels, and a GPU waits for Python between them. A
lane is a client runner with a net of its own. Its step on a full batch is recorded as a CUDA
graph over fixed buffers; after that one call starts all kernels of a step. One thread feeds the
lanes in turn. Every client runs the operations that it would run alone, so bits do not depend on
their number. On a CPU the same code calls the step on the same buffers.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, cast

import torch
from torch import Tensor, nn

from fedbench.bench.config import ClientConfig
from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, Labels, Loss
from fedbench.bench.nn.compiled import CompiledParts
from fedbench.bench.nn.optimizers import SGD
from fedbench.bench.system import first_use
from fedbench.bench.system.compute import resident
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.seeding import drawn, single_thread
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.clients import Executor
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.setup import Setup

_WARM_UP = 3
"""Steps that are run before one is recorded: libraries choose their kernels in the first."""


def reason_to_run_eagerly(setup: Setup) -> str:
    """Return the reason why no step of a run can be recorded; empty if most of them can."""
    needs = setup.needs
    if not needs.capturable:
        return f"{setup.config.spec} does not declare its step as capturable"
    if setup.spec.labelled and needs.labels is Labels.OPTIONAL:
        return f"the labels of a batch decide what {setup.config.spec} computes"
    if needs.keep_optimizer:
        return "the optimizer's state is kept for each client"
    if setup.config.client.optimizer != "sgd":
        return "only steps of client.optimizer=sgd are recorded"
    return ""


def recording() -> bool:
    """Tell whether recorded steps may be replayed in this run; on a CPU they always may."""
    return first_use.RECORDED_STEPS not in first_use.switched_off()


class LaneExecutor(Executor):
    """Executor that trains `num_lanes` clients at a time on one device, in this process.

    None = one after another, and no step is recorded. A client whose steps cannot be recorded is
    trained eagerly, by itself.

    Attributes:
        reason: why nothing of lanes that were asked for is recorded; empty if most steps are.
        steps: number of steps so far.
    """

    def __init__(
        self,
        setup: Setup,
        device: torch.device,
        personal_dir: Path,
        num_lanes: int | None = None,
    ) -> None:
        self.reason, images = "", None
        if num_lanes is not None:
            self.reason, images = reason_to_run_eagerly(setup), resident(setup.images, device)
        shared = images if isinstance(images, Tensor) else None
        count = 1 if num_lanes is None or self.reason else num_lanes
        parts = CompiledParts(setup.config.client.precision)  # one kind of code for all lanes
        runners = [ClientRunner(setup, device, personal_dir, shared, parts) for _ in range(count)]
        self._recorded = num_lanes is not None and not self.reason
        self._lanes = [_Lane(runner, recorded=self._recorded) for runner in runners]
        size = runners[0].layout.upload_size
        # Twice as many as lanes: an upload that is ready waits for those before it in the order of
        # ids, and its lane goes on with the next client meanwhile.
        self._uploads = torch.empty(2 * count if count > 1 else 1, size, device=device)
        self.steps = 0

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`."""
        waiting, free = deque(enumerate(tasks)), deque(range(len(self._uploads)))
        busy: dict[_Lane, tuple[int, int]] = {}  # numbers of the task and of its upload
        done: dict[int, tuple[Trained, int]] = {}

        def advance(lane: _Lane) -> None:
            if lane not in busy and waiting and free:
                number, task = waiting.popleft()
                place = free.popleft()
                busy[lane] = number, place
                lane.begin(task, server, self._uploads[place])
            if lane not in busy:
                return
            number, place = busy[lane]
            try:
                with single_thread():
                    trained = lane.step()
            except Exception as err:
                task = tasks[number]
                err.add_note(f"client {task.client_id}, round {task.round_index + 1}")
                raise
            if trained is not None:
                del busy[lane]
                done[number] = trained, place
                self.steps += trained.num_steps

        for index in range(len(tasks)):
            while index not in done:
                for lane in self._lanes:
                    advance(lane)
            trained, place = done.pop(index)
            yield trained, self._uploads[place]
            free.append(place)

    @property
    def runner(self) -> ClientRunner:
        """The client runner of the first lane."""
        return self._lanes[0].runner

    @property
    def replayed(self) -> int:
        """Number of steps that used the fixed buffers of a recorded one."""
        return sum(lane.replayed for lane in self._lanes)

    @property
    def summary(self) -> str:
        """Number of lanes and of replayed steps, or why there are none; empty if not asked for."""
        if self._recorded:
            return f"{len(self._lanes)}, {self.replayed} of {self.steps} steps replayed"
        return f"1, nothing recorded: {self.reason}" if self.reason else ""


class _Lane:
    """A client runner that trains one client at a time, a step per turn, on its own stream."""

    def __init__(self, runner: ClientRunner, *, recorded: bool) -> None:
        self.runner, self._recorded = runner, recorded
        apart = recorded and runner.device.type == "cuda"
        self._stream = torch.cuda.Stream(runner.device) if apart else None
        self._programs: dict[tuple[float, ...], _Program] = {}
        self._steps: Iterator[Trained | None] = iter(())
        self._watched = _WARM_UP if recorded else 0  # turns in which draws are looked for
        self.replayed = 0

    def begin(self, task: Task, server: Tensor, out: Tensor) -> None:
        """Take a client; `out` may be overwritten once earlier work on it is done."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.runner.device))
        self._steps = self._train(task, server, out)

    def step(self) -> Trained | None:
        """Make a step; returns the client's result after its last one."""
        stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        watched, before = self._watched > 0, drawn() if self._watched else ()
        with self.runner.regime(), stream:
            trained = next(self._steps)
        self._watched -= watched
        if watched and drawn() != before:  # hooks around the steps leave them as they were
            raise PluginError(
                f"{self.runner.setup.config.spec} declares its step as capturable, but draws from a"
                " global generator of torch, numpy or Python in it, which a recording would repeat;"
                " return what a step needs from `draws`, made by client.rng"
            )
        return trained

    def _train(self, task: Task, server: Tensor, out: Tensor) -> Iterator[Trained | None]:
        """Train a client: None after each step, its result at the end."""
        runner = self.runner
        settings = task.settings(runner.setup.config.client)
        if not self._recorded or task.pre_round or settings.optimizer != "sgd":
            yield runner.run(task, server, out)
            return
        # A recording has the rates in it as constants, so each setting has its own.
        key = settings.lr, settings.momentum, settings.weight_decay
        if key not in self._programs:
            self._programs[key] = _Program(runner, settings)
        program = self._programs[key]
        # Around hooks alone: steps of other clients come between those of this one, and a step
        # that can be recorded draws nothing.
        with runner.draws_of(task):
            local = runner.begin(task, server)
        program.optimizer.begin(task.client_id)
        for batch in local.batches:
            if len(batch.labels) == settings.batch_size:
                local.add(program.replay(batch))
                self.replayed += recording()
            else:  # a recording has the shapes of its buffers
                local.add(runner.step(batch, local.client, program.optimizer))
            yield None
        with runner.draws_of(task):
            sent = runner.after(local)
        yield runner.end(local, sent, program.optimizer, out)


class _Program:
    """The step of a lane under one setting of the optimizer."""

    def __init__(self, runner: ClientRunner, settings: ClientConfig) -> None:
        self._runner = runner
        self.optimizer = _LaneSGD(runner.binding, settings)
        self._buffers: Batch | None = None
        self._client = cast(Client, _AnyClient(runner.setup.config.spec))
        self._recorded: tuple[torch.cuda.CUDAGraph, Loss] | None = None
        self._runs = 0

    def replay(self, batch: Batch) -> Loss:
        """Make a step on a full batch; the parts of the result are overwritten by the next one."""
        buffers = self._fill(batch)
        step = partial(self._runner.step, buffers, self._client, self.optimizer)
        if self._runner.device.type == "cpu" or self._runs < _WARM_UP or not recording():
            self._runs += 1
            return step()
        if self._recorded is None:
            self._recorded = self._record(buffers)
        graph, recorded = self._recorded
        binding = self._runner.binding

        def replayed() -> Loss:
            graph.replay()
            # The total is kept until the client ends, and the next replay writes to its memory.
            return replace(recorded, total=recorded.total.clone())

        def state() -> dict[str, list[Tensor]]:
            vectors = binding.server, binding.personal
            # Not all buffers lie in the vectors: a client's memory of projections does not.
            buffers = list(binding.net.buffers())
            return {
                "gradients": [vector.grad for vector in vectors],
                # Those of a target that starts anew in each round are not in the vectors either.
                "weights": list(binding.net.parameters()),
                "momenta": self.optimizer.tensors(),
                "buffers": [value for value in buffers if value.is_floating_point()],
                "counters": [value for value in buffers if not value.is_floating_point()],
            }

        return first_use.checked(
            first_use.RECORDED_STEPS,
            replayed,
            step,
            lambda loss: {"losses": [loss.total]},
            state,
            first_use.TOLERANCE[binding.net.precision],
        )

    def _record(self, buffers: Batch) -> tuple[torch.cuda.CUDAGraph, Loss]:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._runner.device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            loss = self._runner.step(buffers, self._client, self.optimizer)
        parts = {name: value.detach() for name, value in loss.parts.items()}
        return graph, Loss(loss.total.detach(), parts=parts)

    def _fill(self, batch: Batch) -> Batch:
        if self._buffers is None:
            self._buffers = replace(
                batch,
                views=tuple(map(torch.clone, batch.views)),
                labels=batch.labels.clone(),
                examples=batch.examples.clone(),
                draws={name: value.clone() for name, value in batch.draws.items()},
                second_batch=tuple(map(torch.clone, batch.second_batch)),
            )
        for fixed, value in zip(_tensors(self._buffers), _tensors(batch), strict=True):
            fixed.copy_(value, non_blocking=True)
        return self._buffers


def _tensors(batch: Batch) -> list[Tensor]:
    fixed = [*batch.views, *batch.second_batch, batch.labels, batch.examples]
    return [*fixed, *batch.draws.values()]


class _AnyClient:
    """The client of a recorded step, which serves all clients and so may not look at one."""

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def __getattr__(self, name: str) -> NoReturn:
        raise PluginError(
            f"{self._spec} declares its step as capturable, but reads client.{name} in it;"
            " return what a step needs from `draws`"
        )


class _LaneSGD(SGD):
    """SGD for all clients of a lane, whose tensors stay at their addresses.

    Momentum that starts at zero gives the bits of momentum that is absent at the first step. A
    client's own rows are trained in scratch rows, since their place differs from client to client.
    """

    def __init__(self, binding: Binding, settings: ClientConfig) -> None:
        layout, server = binding.layout, binding.server
        trained = binding.trained(0)
        tables = [slot for slot in layout.rows if slot.trainable]
        first = 1 if layout.num_trained else 0
        self._rows: list[tuple[Tensor, Tensor, nn.Parameter]] = []
        for place, slot in enumerate(tables, first):
            shape = (slot.shape[0], slot.row_size)
            scratch = nn.Parameter(torch.zeros(1, slot.row_size, device=server.data.device))
            scratch.grad = torch.zeros_like(scratch)
            trained[place] = scratch
            values, gradients = (slot.of(v).view(shape) for v in (server.data, server.grad))
            self._rows.append((values, gradients, scratch))
        self._row = torch.zeros(1, dtype=torch.int64, device=server.data.device)
        super().__init__(trained, settings.lr, settings.momentum, settings.weight_decay)

    @torch.no_grad()
    def begin(self, client_id: int) -> None:
        """Forget the last client's momentum, and take a client's own rows."""
        self.restart()
        self._row.fill_(client_id)
        for values, _, scratch in self._rows:
            scratch.copy_(values[client_id])

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters along their gradients."""
        for _, gradients, scratch in self._rows:
            assert scratch.grad is not None
            scratch.grad.copy_(gradients.index_select(0, self._row))
        super().step()
        for values, _, scratch in self._rows:
            values.index_copy_(0, self._row, scratch.detach())

    def tensors(self) -> list[Tensor]:
        """Return what a step changes besides the net: momenta and scratch rows."""
        momenta = [value for state in self._state for value in state.values()]
        return [*momenta, *(scratch for _, _, scratch in self._rows)]
