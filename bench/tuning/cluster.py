"""Concurrency of runs, and the resources of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.bench.config import RunConfig
from fedbench.bench.runs.arguments import Places, as_path
from fedbench.bench.system.compute import choose_devices, physical_cores
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.cost import Cost, estimate_cost
from fedbench.bench.tuning.ray.executor import (
    choose_concurrency,
    choose_share,
    estimate_device,
)
from fedbench.bench.tuning.ray.nodes import Share


@dataclass(frozen=True)
class Cluster:
    """Machines that execute runs, and the share of each run.

    Attributes:
        concurrency: runs at a time, each in one process; None = physical cores, or what the GPUs
            or the cluster hold.
        gpus_per_trial: GPUs per run, may be a fraction; None = one where `device` calls for it.
        cpus_per_trial: processes that train the clients of one run on CPUs.
        lanes: clients at a time in the process of a run, whose steps are recorded once and
            replayed, as CUDA graphs on a GPU; None = no lanes.
        address: of a Ray cluster; None = this machine.
        wait_for_nodes: seconds to wait for a node of the cluster that can hold a run; while none
            can, an autoscaler is asked for one.
        checkpoint_dir: folder of checkpoints while runs last; None = the store. Runs of a node
            that is lost continue on another if all nodes see this folder.
    """

    concurrency: int | None = None
    gpus_per_trial: float | None = None
    cpus_per_trial: int = 1
    lanes: int | None = None
    address: str | None = None
    wait_for_nodes: float = 0.0
    checkpoint_dir: Path | str | None = None

    def share(self, device: str) -> Share:
        """Return the share of each run.

        Raises:
            ConfigError: for options that exclude each other.
            ResourceError: if this machine is too small and no cluster is joined.
        """
        if self.wait_for_nodes and self.address is None:
            raise ConfigError("--wait-for-nodes: waits for nodes of a cluster; give its --address")
        if self.lanes is not None:  # refuses what a run would refuse
            choose_devices("cpu", self.cpus_per_trial, self.lanes)
        return choose_share(device, self.gpus_per_trial, self.cpus_per_trial, self.address)

    @property
    def checkpoints(self) -> Path | None:
        """The folder of checkpoints as an absolute path; None = the store."""
        folder = as_path(self.checkpoint_dir)
        return None if folder is None else folder.resolve()

    def estimate(
        self, configs: Sequence[RunConfig], share: Share, places: Places, *, keep_cells: bool = True
    ) -> Cost:
        """Return the cost of runs, from measured parts of each distinct model."""
        return estimate_cost(
            configs,
            places.cache,
            estimate_device(share),
            choose_concurrency(self.concurrency, share, self.address) or physical_cores(),
            keep_cells=keep_cells,
            workers=share.cpus,
        )
