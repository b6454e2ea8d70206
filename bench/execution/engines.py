"""Engines: where the clients of a run are, chosen by name."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import torch
from torch import Tensor

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.online import online_accuracy
from fedbench.bench.evaluation.probes import OnStep
from fedbench.bench.evaluation.suite import Ask, evaluate, fill_statistics
from fedbench.bench.execution.workers import WorkerPool
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.system.plugins import load, load_error
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.clients import Clients, Executor
from fedbench.bench.training.history import Spread
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.layout import Binding, VectorLayout
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup

PLUGINS = "fedbench.engines"
"""Entry points, each a function as those in `ENGINES`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Where:
    """Folder, engine, processes and devices of a run; nothing here changes its result on a CPU."""

    folder: Path  # of checkpoints, partition and history
    devices: Sequence[str] = ("cpu",)  # of each process that trains clients
    lanes: int | None = None  # clients at a time whose steps are recorded; None = no recording
    checkpoint_seconds: float | None = None  # between two, at least; None = by number of rounds
    until_round: int | None = None  # configured rounds after which it pauses; None = at its end
    engine: str | None = None  # where clients are; None = as devices and lanes say

    @property
    def engine_name(self) -> str:
        """Name of the engine."""
        apart = "workers" if len(self.devices) > 1 else "process"
        return self.engine or (apart if self.lanes is None or apart == "workers" else "lanes")


class Simulation(Clients):
    """Clients of this machine: an executor trains them, and this process measures their images."""

    def __init__(self, experiment: Experiment, setup: Setup, where: Where, on_step: OnStep) -> None:
        self._experiment, self._setup, self._where = experiment, setup, where
        self._device, self._on_step = torch.device(where.devices[0]), on_step
        self._folder = where.folder / "clients"
        self._personal = PersonalStore(self._folder)
        self.private = self._personal
        self._monitor = CollapseMonitor(setup, self._device, self._personal)
        self._executor: Executor | None = None
        self._ask: Ask | None = None

    def start(self, layout: VectorLayout) -> None:
        """As `Clients.start`."""
        self._executor = self._made(layout)

    def _made(self, layout: VectorLayout) -> Executor:
        return LaneExecutor(self._setup, self._device, self._folder)

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`."""
        assert self._executor is not None
        return self._executor.train(tasks, server)

    def statistics(self, binding: Binding, personal: tuple[int, int] | None) -> Spread | None:
        """As `Clients.statistics`, of images drawn from those of all clients."""
        return self._monitor(binding, personal)

    def evaluate(
        self, binding: Binding, personal_rounds: Mapping[int, int], rounds: int, *, first: bool
    ) -> dict[str, float]:
        """As `Clients.evaluate`, by all protocols."""
        setup, untouched = self._setup, binding.personal.data.clone()
        one_encoder = first or setup.needs.pooled

        def select(client_id: int) -> None:
            stored = {} if first else personal_rounds
            tensors = self._personal.latest(client_id, stored, untouched)
            binding.personal.data.copy_(tensors)

        if one_encoder:
            select(0)
        if first:
            fill_statistics(setup, binding.net, self._device)
        return evaluate(
            setup,
            binding,
            select,
            setup.config.evaluation.protocols,
            self._device,
            one_encoder=one_encoder,
            trained=personal_rounds,
            rounds=rounds,
            on_step=self._on_step,
            ask=self._ask,
        )

    def online(self, binding: Binding) -> dict[str, float]:
        """As `Clients.online`."""
        return online_accuracy(self._setup, binding, self._device)

    @property
    def circumstances(self) -> dict[str, str | int]:
        """As `Clients.circumstances`: lanes."""
        summary = self._executor.summary if self._executor is not None else ""
        return {"lanes": summary} if summary else {}

    def close(self) -> None:
        """As `Executor.close`."""
        if self._executor is not None:
            self._executor.close()


class _Lanes(Simulation):
    def _made(self, layout: VectorLayout) -> Executor:
        made = LaneExecutor(self._setup, self._device, self._folder, self._where.lanes)
        if made.reason:
            _log.warning("--lanes: no step is recorded, %s", made.reason)
        return made


class _Workers(Simulation):
    def _made(self, layout: VectorLayout) -> Executor:
        at_most = min(self._setup.config.cohort_size, len(self._setup.partition.sizes))
        sizes, devices = (layout.server_size, layout.upload_size), self._where.devices
        return WorkerPool(self._experiment, self._folder, devices, sizes, at_most)


Engine = Callable[[Experiment, Setup, Where, OnStep], Clients]
ENGINES: dict[str, Engine] = {"process": Simulation, "workers": _Workers, "lanes": _Lanes}
"""One client after another in this process, several processes, or recorded steps."""


def engine(name: str) -> Engine:
    """Return what makes the clients of a run: one of ours, or of an installed package.

    Raises:
        UnknownNameError: for another name.
        PluginError: for one that cannot be loaded.
    """
    if name in ENGINES:
        return ENGINES[name]
    points = {point.name: point for point in entry_points(group=PLUGINS)}
    if name not in points:
        raise UnknownNameError("engine", name, [*ENGINES, *points])
    try:
        made: Engine = load(points[name])
    except Exception as err:
        raise load_error(points[name], err) from err
    return made
