"""What cells will cost, and the data sets that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.bench.config import RunConfig, canonical_json
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.execute import open_dataset


@dataclass(frozen=True)
class Cost:
    """What cells will cost, from measured parts of each distinct model.

    Attributes:
        hours: on this machine, at the given concurrency: start, training, evaluation.
        bytes_up: clients to server, all cells.
        bytes_down: server to clients, all cells.
        disk_bytes: what the cells leave in the store, at most.
        concurrency: cells at a time.
    """

    hours: float
    bytes_up: int
    bytes_down: int
    disk_bytes: int
    concurrency: int


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
) -> Cost:
    """The cost of runs, from measured parts of each distinct model.

    Args:
        configs: of the runs.
        data_dir: cache of data sets; None = the default one.
        device: `auto`, `cpu` or `cuda`.
        concurrency: runs at a time.
        keep_cells: whether checkpoints stay after a run.

    Raises:
        FedbenchError: for a configuration or a data set that cannot be used.
    """
    from fedbench.bench.estimate import Estimator, start_seconds

    measure = Estimator(data_dir, device)
    costs = [measure(config) for config in configs]
    at_a_time = max(1, min(concurrency, len(costs)))
    work = [cost.train_seconds + cost.evaluation_seconds for cost in costs]
    starting = 2 * start_seconds() if costs else 0.0  # Ray's, then the trial processes'
    disk = sorted((cost.disk_bytes for cost in costs), reverse=True)
    return Cost(
        hours=(starting + max(sum(work) / at_a_time, *work, 0.0)) / 3600,
        bytes_up=sum(cost.bytes_up for cost in costs),
        bytes_down=sum(cost.bytes_down for cost in costs),
        disk_bytes=sum(disk if keep_cells else disk[:at_a_time]),
        concurrency=at_a_time,
    )
