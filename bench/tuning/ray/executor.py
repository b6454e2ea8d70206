"""Execution of a source's jobs by Ray Tune, on this machine or in a cluster."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from fedbench.bench.results.trackers import Tracking
from fedbench.bench.system.compute import choose_devices, physical_cores
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.system.scratch import sweep_folders
from fedbench.bench.tuning.events import Began, OnProgress
from fedbench.bench.tuning.ray.driver import LOST_SECONDS, Driver, Source
from fedbench.bench.tuning.ray.nodes import (
    Pool,
    Share,
    check_trial_resources,
    local_gpus,
    share_in_cluster,
)
from fedbench.bench.tuning.ray.session import ray_session, short_folder
from fedbench.bench.tuning.ray.tracked import Tracked

_log = logging.getLogger(__name__)
_ATTEMPTS_HERE, _ATTEMPTS_IN_CLUSTER = 2, 5
"""Starts of a cell whose process dies; more in a cluster, which may lose its nodes."""


def choose_share(
    device: str, gpus_per_trial: float | None, cpus_per_trial: int, address: str | None
) -> Share:
    """Return the resources that a trial claims.

    Args:
        device: `auto`, `cpu` or `cuda`.
        gpus_per_trial: None = one for `cuda`, and for `auto` where this machine or the cluster has
            GPUs; else 0.
        cpus_per_trial: at least 1.
        address: of a cluster; None = this machine.

    Raises:
        ConfigError: if `device` and the number contradict each other.
        ResourceError: if this machine has fewer and no cluster is joined.
    """
    if device == "cuda" and address is not None:
        gpus = 1.0 if gpus_per_trial is None else gpus_per_trial
    else:
        kind = choose_devices(device, 1)[0]
        automatic = 1.0 if kind != "cpu" and address is None else 0.0
        gpus = automatic if gpus_per_trial is None else gpus_per_trial
    if device == "cpu" and gpus > 0:
        raise ConfigError(f"--device cpu and --gpus-per-trial {gpus:g} exclude each other")
    if device == "cuda" and gpus == 0:
        raise ConfigError("--device cuda: needs --gpus-per-trial above 0")
    late = device == "auto" and address is not None and gpus_per_trial is None
    need = Share(cpus_per_trial, gpus, automatic=late)
    check_trial_resources(need, address)
    return need


def choose_concurrency(concurrency: int | None, need: Share, address: str | None) -> int | None:
    """Return the number of trials at a time; None in a cluster = as many as it holds.

    Raises:
        ConfigError: for fewer than one.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"--concurrency: must be at least 1 (got {concurrency})")
    if concurrency is not None or address is not None:
        return concurrency
    here = {"CPU": float(physical_cores()), "GPU": float(local_gpus()) if need.gpus else 0.0}
    return max(1, need.fits(here))


def cluster_slots(need: Share, address: str) -> int:
    """Return how many trials a running cluster holds at a time; at least 1.

    Raises:
        ResourceError: if the cluster does not answer, or holds none.
        Interrupted: after a signal.
    """
    with ray_session(None, address):
        pool = Pool(share_in_cluster(need))
        pool.check()
        return pool.slots()


def estimate_device(need: Share) -> str:
    """Return the device for estimates: `cuda` if trials claim GPUs and this machine has any."""
    return "cuda" if need.gpus and local_gpus() else "cpu"


def run_source(
    source: Source,
    *,
    need: Share,
    concurrency: int | None,
    address: str | None,
    root: Path,
    wait_for_nodes: float = 0.0,
    on_progress: OnProgress | None,
    tracking: Tracking,
) -> None:
    """Run Ray Tune until a source has no more jobs; without any, Ray is not started.

    Args:
        source: of the jobs.
        need: resources of a trial.
        concurrency: trials at a time; None = as many as fit.
        address: of a cluster; None = this machine.
        root: folder whose `cells/` holds the checkpoints, for nodes that see it.
        wait_for_nodes: seconds to wait, at the start and whenever no trial runs, for a node of the
            cluster that can hold one.
        on_progress: called with every event.
        tracking: viewers of the runs.

    Raises:
        ResourceError, StoreError: if cells cannot be run here, or not be stored.
        Interrupted: after a signal.
    """
    if source.finished:
        return
    if tracking.names:
        source = Tracked(source, tracking)
    limit = choose_concurrency(concurrency, need, address)
    remaining = source.total - source.ended
    if on_progress is not None:
        at_a_time = None if limit is None else min(limit, remaining)
        on_progress(Began(source.total, source.ended, at_a_time, need.gpus))
    cpus = None if limit is None else limit * need.cpus
    with ray_session(cpus, address) as session, _home(root, address) as home:
        need = share_in_cluster(need)
        pool = Pool(need)
        if address is not None:
            pool.wait(wait_for_nodes, lambda: session.ending)
            session.raise_if_ending()
        pool.check()
        if address is not None or need.gpus > 0:
            pool.survey()
        slots = partial(_slots, pool, limit) if address is not None or need.gpus > 0 else None

        def check_nodes() -> None:
            session.check_parts()
            pool.check()

        limit = limit or pool.slots()
        # All at once: short cells would end before a second process is up, and Tune would drop it.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(min(limit, remaining))
        driver = Driver(
            source,
            limit,
            lambda: session.ending,
            check_nodes,
            on_progress,
            slots=slots,
            attempts=_ATTEMPTS_HERE if home is None else _ATTEMPTS_IN_CLUSTER,
            on_fault=pool.fault,
            patience=max(LOST_SECONDS, wait_for_nodes),
        )
        from fedbench.bench.tuning.ray.tuner import run_tuner  # imports Ray: the session is ready

        while not driver.exhausted:
            run_tuner(driver, pool, session.folder.resolve() / "tune", home)
            if driver.failure is not None:
                raise driver.failure
            session.raise_if_ending()


def _slots(pool: Pool, concurrency: int | None, before: int) -> int:
    """Survey new nodes; return the cluster's slots, or the user's number, and log a change."""
    pool.survey()
    now = concurrency or pool.slots()
    if now != before:
        _log.warning("trials at a time: %d now, %d before", now, before)
    return now


@contextmanager
def _home(root: Path, address: str | None) -> Iterator[dict[str, str] | None]:
    """Describe the driver to trials in a cluster (the fields of `remote.Home`); None without one.

    Meanwhile a mark lies in the driver's folder for checkpoints: nodes that find it see the folder.
    """
    if address is None:
        yield None
        return
    import ray

    remove_stale_marks(root)
    mark = root / "cells" / f"{_mark_prefix()}-{os.getpid()}-{secrets.token_hex(8)}"
    atomic_write_text(mark, "while a fedbench command runs\n")
    try:
        yield {"node": str(ray.get_runtime_context().get_node_id()), "mark": mark.name}
    finally:
        mark.unlink(missing_ok=True)


def remove_leftovers(root: Path) -> None:
    """Delete what killed commands left below `root` and among the temporary folders."""
    remove_stale_marks(root)
    sweep_folders(short_folder())


def remove_stale_marks(root: Path) -> None:
    """Delete the marks of killed drivers of this machine below `root`."""
    prefix = _mark_prefix()
    for path in (root / "cells").glob(f"{prefix}-*"):
        host, _, number = path.name.rpartition("-")[0].rpartition("-")  # a host's name may have "-"
        if host == prefix and number.isdigit() and not psutil.pid_exists(int(number)):
            with suppress(OSError):  # a mark that stays does no harm
                path.unlink(missing_ok=True)


def _mark_prefix() -> str:
    return f".driver-{socket.gethostname()}"
