"""Finished runs with their weights, read back from a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.system.errors import DataError, StoreError
from fedbench.bench.training.checkpoint import load_checkpoint
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.steps import partition_of


@dataclass(frozen=True)
class TrainedRun:
    """A finished run with its weights, on the CPU.

    Attributes:
        row: its row in the store.
        setup: data, partition and method.
        binding: the net, in eval mode, with the weights of the last round.
        select: puts a client's personal tensors into the net; the initial ones if it never trained.
    """

    row: Row
    setup: Setup
    binding: Binding
    select: Callable[[int], None]


def load_run(store: Store, run_id: str, data_dir: Path | str | None = None) -> TrainedRun:
    """Read a finished run with its weights.

    Args:
        store: holds the run.
        run_id: its row id, or an unambiguous beginning of it.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: if the store has no such run, if it did not finish, or if no checkpoint is left.
        DataError: if the data set has changed since.
    """
    row = store.find(run_id)
    run_id = row.row_id
    if row.status == "diverged":
        raise StoreError(
            f"run {run_id} diverged after {row.rounds_done or 0} of {row.num_rounds} rounds and"
            " left no encoder; try a lower client.lr"
        )
    if row.status != "ok":
        raise StoreError(f"run {run_id} failed ({row.error}); `--retry-failed` runs it again")
    folder = store.cell_dir(store.key(row))
    checkpoint = load_checkpoint(folder, row.training_id or run_id)
    if checkpoint is None:
        raise StoreError(
            f"run {run_id} has no whole checkpoint in {str(folder)!r}; run it again into an empty"
            " store"
        )
    config = row.config
    dataset = open_dataset(config, data_dir)
    if dataset.revision != row.dataset_revision:
        older = row.benchmark_version != BENCHMARK_VERSION
        raise DataError(
            f"run {run_id} used revision {row.dataset_revision[:8]} of its data,"
            f" {config.data.name} is {dataset.revision[:8]} now"
            + (f"; for runs of that time install fedbench {row.package_version}" if older else "")
        )
    partition = partition_of(dataset, config)
    if partition.hash != row.partition_hash:
        raise StoreError(
            f"run {run_id} partitioned its data in another way than this fedbench does; install"
            f" fedbench {row.package_version}"
        )
    setup = Setup.of(config, dataset, partition)
    net = setup.make_net()
    binding = setup.layout(net).bind(net)
    binding.server.data.copy_(checkpoint.tensors["server"])
    net.eval()
    personal, first = PersonalStore(folder / "clients"), binding.personal.data.clone()
    rounds = {int(k): r for k, r in checkpoint.state["personal_rounds"].items()}

    def select(client_id: int) -> None:
        binding.personal.data.copy_(personal.latest(client_id, rounds, first))

    if not setup.evaluate_on_clients:
        select(0)  # a pooled run's one client
    return TrainedRun(row, setup, binding, select)
