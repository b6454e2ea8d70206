"""The predicted cost of the runs of a study or a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig
from fedbench.bench.runs.arguments import Places
from fedbench.bench.system.compute import physical_cores
from fedbench.bench.tuning.cluster import Cluster, Share, estimate_device

if TYPE_CHECKING:
    from fedbench.bench.runs.estimate import Estimate

_RAY_SECONDS = 5.0
"""Start and end of Ray, mostly waits of fixed length: 2.1 to 3.1 s and 1.1 to 1.4 s, and Tune's
import. Measured with Ray 2.60 on one machine of 2 cores."""
_DEVICES = (1, 8, 64)
"""Numbers of devices with a finishing time, besides the number of this command."""


@dataclass(frozen=True)
class Cost:
    """Predicted cost of runs.

    A device here is the share of a run: a core (or several), a GPU, or a part of one.

    Attributes:
        hours: time at the given concurrency on devices like this machine's: start, training,
            evaluation.
        device_hours: time of all runs together on one device, without the start.
        finish_hours: number of devices -> hours until the last run has ended.
        bytes_up: bytes from clients to server, all runs.
        bytes_down: bytes from server to clients, all runs.
        disk_bytes: size of the runs in the store, at most.
        concurrency: runs at a time.
        device: device of the measurement, `cpu` or `cuda`.
        steps: for each method, encoder and batch size of these runs `method backbone batch_size
            seconds steps cells`: mean seconds per step, number of steps, and number of runs.
    """

    hours: float
    device_hours: float
    finish_hours: dict[int, float]
    bytes_up: int
    bytes_down: int
    disk_bytes: int
    concurrency: int
    device: str
    steps: tuple[Mapping[str, Any], ...]


def estimate_cost(
    configs: Sequence[RunConfig],
    cluster: Cluster,
    share: Share,
    places: Places,
    *,
    keep_cells: bool = True,
) -> Cost:
    """Estimate the cost of runs from a round of each distinct model.

    Runs that differ only in their seed count as equally expensive, whatever their partitions.

    Args:
        configs: configurations of the runs.
        cluster: runs at a time.
        share: of a run.
        places: of the data sets.
        keep_cells: whether checkpoints stay after a run.

    Raises:
        FedbenchError: for a configuration or a data set that cannot be used.
    """
    from fedbench.bench.runs.estimate import Estimator, start_seconds

    device = estimate_device(share)
    estimator = Estimator(places.cache, device, share.cpus)
    keys = [config.model_copy(update={"seed": 0}).model_dump_json() for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    estimates = {key: estimator(config) for key, config in distinct.items()}
    costs = [estimates[key] for key in keys]
    at_a_time = max(1, min(cluster.at_a_time(share) or physical_cores(), len(costs)))
    work = [cost.train_seconds + cost.evaluation_seconds for cost in costs]
    # This command, the trial processes, and Ray between them start one after the other.
    starting = 2 * start_seconds() + _RAY_SECONDS if costs else 0.0
    disk = sorted((cost.disk_bytes for cost in costs), reverse=True)

    def finish(devices: int) -> float:
        return (starting + max(sum(work) / devices, *work, 0.0)) / 3600

    of_model: dict[tuple[Any, ...], list[Estimate]] = {}
    for config, cost in zip(configs, costs, strict=True):
        model = (config.spec, config.model.backbone, config.client.batch_size)
        of_model.setdefault(model, []).append(cost)
    steps = []
    for (method, backbone, batch_size), alike in of_model.items():
        count = sum(cost.num_steps for cost in alike)
        seconds = sum(cost.num_steps * cost.step_seconds for cost in alike) / max(1, count)
        record = {"method": method, "backbone": backbone, "batch_size": batch_size}
        steps.append({**record, "seconds": seconds, "steps": count, "cells": len(alike)})
    return Cost(
        hours=finish(at_a_time),
        device_hours=sum(work) / 3600,
        finish_hours={n: finish(n) for n in sorted({*_DEVICES, at_a_time})},
        bytes_up=sum(cost.bytes_up for cost in costs),
        bytes_down=sum(cost.bytes_down for cost in costs),
        disk_bytes=sum(disk if keep_cells else disk[:at_a_time]),
        concurrency=at_a_time,
        device=device,
        steps=tuple(steps),
    )
