"""A cell on some node of a cluster: where its images and its checkpoints are, and what it may use.

A node need not see the driver's disk. Images that it does not see come from the driver's node,
once per node. Checkpoints lie in the store, or in the folder given for them, if the node sees it;
else in a folder of its own, where a later attempt on the same node finds them. Cells that went on
elsewhere leave such folders behind; trial processes delete them after a week.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.bench.data.cache import ARRAYS, CacheWriter, ensure, open_cache
from fedbench.bench.data.datasets import reopen
from fedbench.bench.system.errors import DataError, FedbenchError, ResourceError, StoreError
from fedbench.bench.system.files import file_lock
from fedbench.bench.tuning.cell import CellJob, _abort, work

STALE_SECONDS = 7 * 86_400.0
"""A cell whose folder on a node has been left alone for so long is not taken up there again."""


@dataclass(frozen=True)
class Home:
    """The driver, as its trial processes need to know it.

    Attributes:
        node: id of its node, where data sets are read.
        mark: name of a file that it has put where checkpoints go, below `cells/`.
    """

    node: str
    mark: str


@dataclass(frozen=True)
class Settled:
    """A job with paths of this node.

    Attributes:
        job: the job.
        own: its checkpoints lie in a folder of this node alone; its history has to travel.
    """

    job: CellJob
    own: bool


def settle(job: CellJob, home: Home) -> Settled:
    """The job with paths of this node; fetches its data set if need be.

    Raises:
        ResourceError: if the folder for checkpoints is not the driver's.
        DataError: if its data set cannot be had.
    """
    if job.dataset is not None:
        job = replace(job, dataset=_images(job.dataset, job.revision, job.config.data.name, home))
    root = job.checkpoints or job.store
    if (root / "cells" / home.mark).is_file():
        return Settled(job, own=False)
    if job.checkpoints is not None:
        raise ResourceError(
            f"node {socket.gethostname()} does not see the driver's --checkpoint-dir {str(root)!r};"
            " mount it there under the same path, or leave the option out"
        )
    name = hashlib.sha256(str(job.store).encode()).hexdigest()[:16]
    settled = Settled(replace(job, checkpoints=_scratch() / name), own=True)
    forget_old(settled.job.folder)
    return settled


def forget(settled: Settled) -> None:
    """Delete what a cell that has ended left on this node alone."""
    if settled.own:
        shutil.rmtree(settled.job.folder, ignore_errors=True)


def forget_old(but: Path) -> int:
    """Delete what cells of any driver left on this node alone a week ago; returns how many.

    Args:
        but: the folder of a cell, which stays.
    """
    count, limit = 0, time.time() - STALE_SECONDS
    for folder in _scratch().glob("*/cells/*/"):
        with suppress(OSError, StoreError):  # another process may be at the same
            newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if folder == but or newest > limit:
                continue
            with file_lock(folder / "lock") as free:
                if free:
                    shutil.rmtree(folder)
                    count += 1
    return count


def limit_memory(gpus: float) -> None:
    """Keep a process that shares a GPU within its part of the memory.

    Ray's fractions are bookkeeping; without this, one trial that grows ends all of its neighbours.

    Args:
        gpus: what the process was granted.
    """
    if 0 < gpus < 1:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(gpus)


def _scratch() -> Path:
    """The user's own folder on this node.

    Raises:
        ResourceError: if somebody else has made it, who could then change what lies in it.
    """
    folder = Path(tempfile.gettempdir()) / f"fedbench-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ResourceError(
            f"node {socket.gethostname()}: {str(folder)!r} is another user's; set TMPDIR there"
        )
    return folder


def _images(path: Path, revision: str, name: str, home: Home) -> Path:
    """A folder of this node with the data set of this revision."""
    with suppress(DataError):
        return reopen(path, revision).path
    copy = _scratch() / "data" / revision[:16]

    def write(writer: CacheWriter) -> tuple[str, ...]:
        arrays, class_names = _fetch(path, home)
        for key in ARRAYS:
            writer.put(key, arrays[key])
        return class_names

    ensure(copy, name, f"copy/{revision}", write)
    return reopen(copy, revision).path


def _fetch(path: Path, home: Home) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """A data set's arrays, read on the driver's node and sent through Ray's object store."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=1)(read_arrays)
    place = NodeAffinitySchedulingStrategy(node_id=home.node, soft=False)
    try:
        found: Any = ray.get(task.options(scheduling_strategy=place).remote(str(path)))
    except ray.exceptions.RayError as err:
        raise DataError(f"the data set at {str(path)!r} did not arrive: {err}") from err
    return dict(found[0]), tuple(found[1])


def read_arrays(path: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The arrays and the class names of a cache folder of this node."""
    cache = open_cache(Path(path), verify="sizes")
    return {name: np.asarray(array) for name, array in cache.arrays.items()}, cache.class_names


def train(config: dict[str, Any]) -> None:
    """The function that Ray Tune runs: one cell, given as JSON under `job`.

    In a cluster, `home` says where the driver is.
    """
    import ray
    from ray import tune

    from fedbench.bench.tuning.ray import remote

    granted = ray.get_runtime_context().get_assigned_resources()
    job = CellJob.loads(config["job"])
    job = replace(job, device="cuda" if ray.get_gpu_ids() else "cpu")
    remote.limit_memory(granted.get("GPU", 0.0))
    # The last report is made inside the lock: Tune lets it return only after the driver has
    # written the row, so nobody can find the cell free and its row missing.
    if "home" not in config:
        work(job, tune.report)
        return
    try:
        settled = remote.settle(job, remote.Home(**config["home"]))
    except FedbenchError as err:
        tune.report(_abort(err))
        return
    if work(settled.job, tune.report, history=settled.own) != "busy":
        remote.forget(settled)
