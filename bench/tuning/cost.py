"""What cells will cost, and the data sets that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.system.identity import canonical_json

if TYPE_CHECKING:
    from fedbench.bench.runs.estimate import Estimate


_RAY_SECONDS = 5.0
"""Its start and its end, mostly waits of fixed length: 2.1 to 3.1 s and 1.1 to 1.4 s, and Tune's
import. Measured with Ray 2.60 on one machine of 2 cores."""
DEVICES = (1, 8, 64)
"""Numbers of devices for which a finishing time is given, besides the one at hand."""


@dataclass(frozen=True)
class StepCost:
    """One measured step: of all cells with this method, encoder and batch size.

    Attributes:
        method: its spec.
        backbone: of the encoder.
        batch_size: examples per step.
        seconds: per step, the mean of all of them.
        steps: of all these cells.
        cells: how many.
    """

    method: str
    backbone: str
    batch_size: int
    seconds: float
    steps: int
    cells: int


@dataclass(frozen=True)
class Cost:
    """What cells will cost, from measured parts of each distinct model.

    A device is what a trial claims: a core (or several), a GPU, or its share of one.

    Attributes:
        hours: at the given concurrency on devices like the one at hand: start, training,
            evaluation.
        device_hours: of all cells together, without the start.
        finish_hours: number of devices -> hours until the last cell has ended.
        bytes_up: clients to server, all cells.
        bytes_down: server to clients, all cells.
        disk_bytes: what the cells leave in the store, at most.
        concurrency: cells at a time.
        device: what the device at hand is.
        steps: what was measured.
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


class Revisions:
    """Opens every distinct data set once, so that its cache exists before trials reopen it."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._known: dict[str, Dataset] = {}

    def __call__(self, config: RunConfig) -> str:
        """The revision of a configuration's data set.

        Raises:
            DataError: if it cannot be had.
        """
        return self.dataset(config).revision

    def dataset(self, config: RunConfig) -> Dataset:
        """A configuration's data set.

        Raises:
            DataError: if it cannot be had.
        """
        data = config.data
        key = canonical_json([data.name, data.train_subset, data.test_subset])
        if key not in self._known:
            self._known[key] = open_dataset(config, self._data_dir)
        return self._known[key]


def estimate_cost(
    configs: Sequence[RunConfig],
    data_dir: Path | None,
    device: str,
    concurrency: int,
    *,
    keep_cells: bool = True,
    workers: int = 1,
) -> Cost:
    """The cost of runs, from measured parts of each distinct model.

    Runs that differ in their seed only cost the same, up to how their clients are dealt.

    Args:
        configs: of the runs.
        data_dir: cache of data sets; None = the default one.
        device: `cpu` or `cuda`.
        concurrency: runs at a time.
        keep_cells: whether checkpoints stay after a run.
        workers: processes that train the clients of one run.

    Raises:
        FedbenchError: for a configuration or a data set that cannot be used.
    """
    from fedbench.bench.runs.estimate import Estimator, start_seconds

    measure = Estimator(data_dir, device, workers)
    distinct = {
        config.model_copy(update={"seed": 0}).model_dump_json(): config for config in configs
    }
    known = {key: measure(config) for key, config in distinct.items()}
    costs = [known[config.model_copy(update={"seed": 0}).model_dump_json()] for config in configs]
    at_a_time = max(1, min(concurrency, len(costs)))
    work = [cost.train_seconds + cost.evaluation_seconds for cost in costs]
    # The command's own start, then that of the trial processes; Ray comes and goes between them.
    starting = 2 * start_seconds() + _RAY_SECONDS if costs else 0.0
    disk = sorted((cost.disk_bytes for cost in costs), reverse=True)
    models = [(c.spec, c.model.backbone, c.client.batch_size) for c in configs]
    of: dict[tuple[str, str, int], list[Estimate]] = {}
    for model, each in zip(models, costs, strict=True):
        of.setdefault(model, []).append(each)

    def finish(devices: int) -> float:
        return (starting + max(sum(work) / devices, *work, 0.0)) / 3600

    return Cost(
        hours=finish(at_a_time),
        device_hours=sum(work) / 3600,
        finish_hours={n: finish(n) for n in sorted({*DEVICES, at_a_time})},
        bytes_up=sum(cost.bytes_up for cost in costs),
        bytes_down=sum(cost.bytes_down for cost in costs),
        disk_bytes=sum(disk if keep_cells else disk[:at_a_time]),
        concurrency=at_a_time,
        device=device,
        steps=tuple(_step(model, found) for model, found in of.items()),
    )


def _step(model: tuple[str, str, int], costs: Sequence[Estimate]) -> StepCost:
    """Of cells of one model; where their steps differ, the mean of all steps."""
    steps = sum(cost.num_steps for cost in costs)
    seconds = sum(cost.num_steps * cost.step_seconds for cost in costs)
    return StepCost(*model, seconds / max(1, steps), steps, len(costs))


def worth_measuring(configs: Sequence[RunConfig], revisions: Revisions) -> bool:
    """Whether runs take long enough that a prediction is worth the seconds of its measurement."""
    total = 0.0
    for config in configs:
        images = len(revisions.dataset(config).train_labels)
        per_client = images / config.data.num_clients / config.client.batch_size
        rounds = config.federation.num_rounds * config.client.local_epochs
        total += per_client * rounds * config.cohort_size
    return total >= _MANY_STEPS


_MANY_STEPS = 30_000
