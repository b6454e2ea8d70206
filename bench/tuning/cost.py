"""The predicted cost of cells, and the data sets that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.reading import Reading
from fedbench.bench.runs.execute import open_dataset

if TYPE_CHECKING:
    from fedbench.bench.runs.estimate import Estimate


_RAY_SECONDS = 5.0
"""Start and end of Ray, mostly waits of fixed length: 2.1 to 3.1 s and 1.1 to 1.4 s, and Tune's
import. Measured with Ray 2.60 on one machine of 2 cores."""
_DEVICES = (1, 8, 64)
"""Numbers of devices with a finishing time, besides the number of this command."""
_MANY_STEPS = 30_000
"""Optimizer steps of a sweep whose cost is predicted before it begins."""


@dataclass(frozen=True)
class StepCost:
    """Measured time of a step, for all cells with one method, encoder and batch size.

    Attributes:
        method: method spec.
        backbone: name of the encoder.
        batch_size: examples per step.
        seconds: seconds per step, the mean over all of them.
        steps: number of steps of these cells together.
        cells: number of these cells.
    """

    method: str
    backbone: str
    batch_size: int
    seconds: float
    steps: int
    cells: int


@dataclass(frozen=True)
class Cost:
    """Predicted cost of cells, from measured parts of each distinct model.

    A device here is the share of a trial: a core (or several), a GPU, or a part of one.

    Attributes:
        hours: time at the given concurrency on devices like this machine's: start, training,
            evaluation.
        device_hours: time of all cells together on one device, without the start.
        finish_hours: number of devices -> hours until the last cell has ended.
        bytes_up: bytes from clients to server, all cells.
        bytes_down: bytes from server to clients, all cells.
        disk_bytes: size of the cells in the store, at most.
        concurrency: cells at a time.
        device: device of the measurement, `cpu` or `cuda`.
        steps: measured times.
    """

    hours: float
    device_hours: float
    finish_hours: dict[int, float]
    bytes_up: int
    bytes_down: int
    disk_bytes: int
    concurrency: int
    device: str
    steps: tuple[StepCost, ...]


class Datasets:
    """Data sets by configuration; each is opened once, so its cache exists before trials reopen it.

    Args:
        data_dir: cache of data sets; None = the default one.
    """

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._opened: dict[tuple[str, int | None, int | None, Reading], Dataset] = {}

    def __call__(self, config: RunConfig) -> Dataset:
        """Return the data set of a configuration.

        Raises:
            DataError: if it cannot be opened.
        """
        data = config.data
        key = (data.name, data.train_subset, data.test_subset, Reading.of(data))
        if key not in self._opened:
            self._opened[key] = open_dataset(config, self._data_dir)
        return self._opened[key]


def estimate_cost(
    configs: Sequence[RunConfig],
    data_dir: Path | None,
    device: str,
    concurrency: int,
    *,
    keep_cells: bool = True,
    workers: int = 1,
) -> Cost:
    """Estimate the cost of runs from measured parts of each distinct model.

    Runs that differ only in their seed count as equally expensive, whatever their partitions.

    Args:
        configs: configurations of the runs.
        data_dir: cache of data sets; None = the default one.
        device: `cpu` or `cuda`.
        concurrency: runs at a time.
        keep_cells: whether checkpoints stay after a run.
        workers: processes that train the clients of one run.

    Raises:
        FedbenchError: for a configuration or a data set that cannot be used.
    """
    from fedbench.bench.runs.estimate import estimates, start_seconds

    keys = [config.model_copy(update={"seed": 0}).model_dump_json() for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    results = estimates([*distinct.values()], data_dir, device, workers)
    measured = dict(zip(distinct, results, strict=True))
    costs = [measured[key] for key in keys]
    at_a_time = max(1, min(concurrency, len(costs)))
    work = [cost.train_seconds + cost.evaluation_seconds for cost in costs]
    # The start of this command, that of the trial processes, and those of Ray between them.
    starting = 2 * start_seconds() + _RAY_SECONDS if costs else 0.0
    disk = sorted((cost.disk_bytes for cost in costs), reverse=True)
    by_model: dict[tuple[str, str, int], list[Estimate]] = {}
    for config, cost in zip(configs, costs, strict=True):
        model = (config.spec, config.model.backbone, config.client.batch_size)
        by_model.setdefault(model, []).append(cost)

    def finish(devices: int) -> float:
        return (starting + max(sum(work) / devices, *work, 0.0)) / 3600

    return Cost(
        hours=finish(at_a_time),
        device_hours=sum(work) / 3600,
        finish_hours={n: finish(n) for n in sorted({*_DEVICES, at_a_time})},
        bytes_up=sum(cost.bytes_up for cost in costs),
        bytes_down=sum(cost.bytes_down for cost in costs),
        disk_bytes=sum(disk if keep_cells else disk[:at_a_time]),
        concurrency=at_a_time,
        device=device,
        steps=tuple(_step(model, costs) for model, costs in by_model.items()),
    )


def _step(model: tuple[str, str, int], costs: Sequence[Estimate]) -> StepCost:
    """Return the time of a step of one model, the mean over all steps of its cells."""
    steps = sum(cost.num_steps for cost in costs)
    seconds = sum(cost.num_steps * cost.step_seconds for cost in costs)
    return StepCost(*model, seconds / max(1, steps), steps, len(costs))


def worth_measuring(configs: Sequence[RunConfig], datasets: Datasets) -> bool:
    """Return True if runs take long enough for a prediction, which takes seconds itself."""
    total = 0.0
    for config in configs:
        images = len(datasets(config).train_labels)
        per_client = images / config.data.num_clients / config.client.batch_size
        rounds = config.federation.num_rounds * config.client.local_epochs
        total += per_client * rounds * config.cohort_size
    return total >= _MANY_STEPS
