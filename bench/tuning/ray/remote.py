"""A trial process, which runs cells: its data set, checkpoints and share of a GPU on any node.

A node need not see the driver's disk. Images that it does not see come from the driver's node,
once per node. Checkpoints lie in the store, or in `--checkpoint-dir`, if the node sees it; else in
a folder on the node, where a later attempt on the same node finds them. Cells that continued
elsewhere leave such folders behind; trial processes delete them after a week.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.bench.data.cache import CacheWriter, ensure, open_cache
from fedbench.bench.data.datasets import reopen
from fedbench.bench.system.errors import DataError, FedbenchError, ResourceError, StoreError
from fedbench.bench.system.files import file_lock
from fedbench.bench.system.regime import reproducible
from fedbench.bench.system.scratch import temporary_place
from fedbench.bench.tuning.cell import (
    CellJob,
    fault_report,
    is_gpu_fault,
    unfit_report,
    work,
)

STALE_SECONDS = 7 * 86_400.0
"""Age at which an unused folder of a cell on a node is deleted."""
_OF_SHARE = 0.9
"""Part of a process's share of a GPU's memory that torch may allocate."""
_SECONDS_TO_HOLD = 5.0
"""Time between two reports of a process that holds a broken GPU."""


@dataclass(frozen=True)
class Home:
    """Facts about the driver for its trial processes.

    Attributes:
        node: id of its node, where data sets are read.
        mark: name of a file that it keeps in its folder for checkpoints, below `cells/`.
    """

    node: str
    mark: str


def settle(job: CellJob, home: Home) -> tuple[CellJob, bool]:
    """Give a job the paths of this node; fetches its data set if this node does not see it.

    Returns:
        The job, and True if its checkpoints lie on this node alone, so that its history must be
        sent and its folder deleted when it has ended.

    Raises:
        ResourceError: if `--checkpoint-dir` is not the driver's folder.
        DataError: if the data set cannot be fetched.
    """
    job = replace(
        job, dataset=_local_dataset(job.dataset, job.revision, job.config.data.name, home)
    )
    root = job.checkpoints or job.store
    if (root / "cells" / home.mark).is_file():
        return job, False
    if job.checkpoints is not None:
        raise ResourceError(
            f"it does not see the driver's --checkpoint-dir {str(root)!r}; mount it there under the"
            " same path, or leave the option out"
        )
    name = hashlib.sha256(str(job.store).encode()).hexdigest()[:16]
    job = replace(job, checkpoints=_scratch() / name)
    _delete_stale(job.folder)
    return job, True


def _delete_stale(current: Path) -> None:
    """Delete folders of cells of any driver that lie unused on this node, except `current`."""
    limit = time.time() - STALE_SECONDS
    for folder in _scratch().glob("*/cells/*/"):
        with suppress(OSError, StoreError):  # another process may be deleting it too
            newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if folder == current or newest > limit:
                continue
            with file_lock(folder / "lock") as free:
                if free:
                    shutil.rmtree(folder)


def limit_memory(gpus: float) -> None:
    """Keep a process that shares a GPU within its part of the memory.

    Ray only counts fractions; without this, one trial that grows ends all its neighbours. A tenth
    is left for what torch does not count: the context of CUDA and its libraries.

    Args:
        gpus: number or fraction of GPUs that the process was granted.
    """
    if 0 < gpus < 1:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(_OF_SHARE * gpus)


def _scratch() -> Path:
    """Return the user's folder on this node.

    Raises:
        ResourceError: if it belongs to another user, who could then change its content.
    """
    folder = temporary_place() / f"fedbench-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ResourceError(
            f"node {socket.gethostname()}: {str(folder)!r} is another user's; set TMPDIR there"
        )
    return folder


def _local_dataset(path: Path, revision: str, name: str, home: Home) -> Path:
    """Return a folder of this node with the data set of this revision."""
    with suppress(DataError):
        return reopen(path, revision).path
    copy = _scratch() / "data" / revision[:16]

    def write(writer: CacheWriter) -> tuple[str, ...]:
        arrays, class_names = _fetch(path, home)
        for key, array in arrays.items():
            writer.put(key, array)
        return class_names

    ensure(copy, name, f"copy/{revision}", write)
    return reopen(copy, revision).path


def _fetch(path: Path, home: Home) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read a data set's arrays and class names on the driver's node, through Ray's object store."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=1)(read_arrays)
    place = NodeAffinitySchedulingStrategy(node_id=home.node, soft=False)
    try:
        arrays, class_names = ray.get(task.options(scheduling_strategy=place).remote(str(path)))
    except ray.exceptions.RayError as err:
        raise DataError(f"the data set at {str(path)!r} did not arrive: {err}") from err
    return dict(arrays), tuple(class_names)


def read_arrays(path: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the arrays and the class names of a cache folder of this node."""
    cache = open_cache(Path(path), verify="sizes")
    return {name: np.asarray(array) for name, array in cache.arrays.items()}, cache.class_names


def train(config: dict[str, Any]) -> None:
    """Run one cell; the function of Ray Tune's trials.

    A GPU fault is reported and raised, so that Tune ends the process and no other cell meets it. So
    is a node of a cluster that cannot run the cell: it came too late to be surveyed, say.

    A process that Ray has put on a broken GPU keeps it from others and runs nothing: nobody can
    tell Ray to leave out one of a node's GPUs.

    Args:
        config: a `CellJob` as JSON under `job`; in a cluster, the fields of `Home` under `home`;
            names of broken GPUs by node under `broken`.
    """
    import ray
    from ray import tune

    broken = config.get("broken")
    if broken:
        broken = broken.get(ray.get_runtime_context().get_node_id())
    while broken and any(str(gpu) in broken for gpu in ray.get_gpu_ids()):
        tune.report({"status": "holding"})  # Tune ends this process at one of these
        time.sleep(_SECONDS_TO_HOLD)
    try:
        _train(config)
    except Exception as err:
        if isinstance(err, _UnfitError):
            tune.report(unfit_report(err, ray.get_runtime_context().get_node_id()))
        elif is_gpu_fault(err):
            node = ray.get_runtime_context().get_node_id()
            tune.report(fault_report(err, node, ray.get_gpu_ids()))
        raise


class _UnfitError(FedbenchError):
    """This node cannot run a cell."""


def _train(config: dict[str, Any]) -> None:
    import ray
    import torch
    from ray import tune

    granted = ray.get_runtime_context().get_assigned_resources()
    job = CellJob.loads(config["job"])
    job = replace(job, device="cuda" if ray.get_gpu_ids() else "cpu")
    if job.device == "cuda" and "home" in config and not torch.cuda.is_available():
        raise _UnfitError(f"Ray offers {granted.get('GPU', 0.0):g} GPU, torch sees none")
    with reproducible(job.device):
        limit_memory(granted.get("GPU", 0.0))
        # The last report is made inside the lock: Tune lets it return only after the driver has
        # written the row, so nobody can find the cell free and its row missing.
        if "home" not in config:
            work(job, tune.report)
            return
        try:
            job, local = settle(job, Home(**config["home"]))
        except FedbenchError as err:
            raise _UnfitError(str(err)) from err
        if local:  # the viewers' folders are not seen from here; the driver passes the row
            job = replace(job, track=())
        if work(job, tune.report, history=local) not in ("busy", "paused") and local:
            shutil.rmtree(job.folder, ignore_errors=True)
