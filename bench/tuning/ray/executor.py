"""Ray Tune as the executor of cells: whatever hands out jobs is fed, told, and asked again."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fedbench.bench.system.compute import choose_devices, physical_cores
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.tuning.events import Began, OnProgress
from fedbench.bench.tuning.ray.driver import Driver, Source
from fedbench.bench.tuning.ray.nodes import (
    Share,
    check_cluster,
    check_software,
    check_trial_resources,
    cluster_slots,
    local_gpus,
)
from fedbench.bench.tuning.ray.remote import train
from fedbench.bench.tuning.ray.session import Session, ray_session

_log = logging.getLogger(__name__)
_ATTEMPTS_HERE, _ATTEMPTS_IN_CLUSTER = 2, 5
"""How often a cell is begun whose process died: a cluster loses nodes, which is not its fault."""


def choose_share(
    device: str, gpus_per_trial: float | None, cpus_per_trial: int, address: str | None
) -> Share:
    """What a trial claims; GPUs None = one, if `device` is `cuda`, or `auto` where any are here.

    Raises:
        ConfigError: if `device` and the number contradict each other.
        ResourceError: if this machine has not as many and no cluster is joined.
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
    need = Share(cpus_per_trial, gpus)
    check_trial_resources(need, address)
    return need


def choose_concurrency(concurrency: int | None, need: Share, address: str | None) -> int | None:
    """Trials at a time; None in a cluster = as many as it holds.

    Raises:
        ConfigError: for fewer than one.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"--concurrency: must be at least 1 (got {concurrency})")
    if concurrency is not None or address is not None:
        return concurrency
    if need.gpus > 0:
        return max(1, int(local_gpus() / need.gpus + 1e-9))
    return max(1, physical_cores() // need.cpus)


def device_at_hand(need: Share) -> str:
    """Where trials can be tried out: a GPU of this machine if they claim one and it has any."""
    return "cuda" if need.gpus and local_gpus() else "cpu"


def run_source(
    source: Source,
    *,
    need: Share,
    concurrency: int | None,
    address: str | None,
    root: Path,
    on_progress: OnProgress | None,
) -> None:
    """Run Ray Tune until a source has no more jobs; without any, Ray is not started.

    Args:
        source: of the jobs.
        need: what a trial claims.
        concurrency: trials at a time; None = what fits.
        address: of a cluster; None = this machine.
        root: below its `cells/` are the checkpoints, as far as nodes see it.
        on_progress: called with every event.

    Raises:
        ResourceError, StoreError: when cells cannot be run here, or not be kept.
        Interrupted: after a signal.
    """
    if source.finished:
        return
    limit = choose_concurrency(concurrency, need, address)
    left = source.total - source.ended
    if on_progress is not None:
        at_a_time = None if limit is None else min(limit, left)
        on_progress(Began(source.total, source.ended, at_a_time, need.gpus))
    cpus = None if limit is None else limit * need.cpus
    with ray_session(cpus, address) as session, _home(root, address) as home:
        check_cluster(need)
        if address is not None:
            for difference in check_software(need):
                _log.warning("%s", difference)
        slots = partial(_slots, need) if limit is None else None
        limit = limit or cluster_slots(need)
        # All at once: short cells would end before a second process is up, and Tune then drops it.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(min(limit, left))
        driver = Driver(
            source,
            limit,
            lambda: session.interrupted,
            lambda: check_cluster(need),
            on_progress,
            slots=slots,
            attempts=_ATTEMPTS_HERE if home is None else _ATTEMPTS_IN_CLUSTER,
        )
        while not driver.exhausted:
            _fit(driver, need, session, home)
            if driver.failure is not None:
                raise driver.failure
            session.raise_if_interrupted()


def _slots(need: Share, before: int) -> int:
    """How many trials the cluster holds by now; says so when nodes have come or gone."""
    now = cluster_slots(need)
    if now != before:
        _log.warning("the cluster holds %d trials at a time now, %d before", now, before)
    return now


@contextmanager
def _home(root: Path, address: str | None) -> Iterator[dict[str, str] | None]:
    """What trial processes of a cluster must know of the driver (`remote.Home`); None without one.

    A node sees the driver's folder for checkpoints if it finds the mark that lies there meanwhile.
    """
    if address is None:
        yield None
        return
    import ray

    forget_marks(root)
    mark = root / "cells" / f"{_mark_of_host()}-{os.getpid()}-{secrets.token_hex(8)}"
    atomic_write_text(mark, "while a fedbench command runs\n")
    try:
        yield {"node": str(ray.get_runtime_context().get_node_id()), "mark": mark.name}
    finally:
        mark.unlink(missing_ok=True)


def forget_marks(root: Path) -> None:
    """Delete the marks that drivers on this machine left below `root` when they were killed."""
    here = _mark_of_host()
    for path in (root / "cells").glob(f"{here}-*"):
        host, _, number = path.name.rpartition("-")[0].rpartition("-")  # a host's name may have "-"
        if host == here and number.isdigit() and not psutil.pid_exists(int(number)):
            with suppress(OSError):  # harmless, and in the way of nobody
                path.unlink(missing_ok=True)


def _mark_of_host() -> str:
    return f".driver-{socket.gethostname()}"


def _fit(driver: Driver, need: Share, session: Session, home: dict[str, str] | None) -> None:
    from ray import tune

    from fedbench.bench.tuning.ray.driver import Feed, Leave, Sink

    driver.begin()
    tuner = tune.Tuner(
        tune.with_resources(train, {name.lower(): n for name, n in need.resources.items()}),
        tune_config=tune.TuneConfig(
            search_alg=Feed(driver, home),
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"run-{driver.fits}",
            storage_path=str(session.folder.resolve() / "tune"),
            verbose=0,
            callbacks=[Sink(driver)],
            failure_config=tune.FailureConfig(max_failures=0),  # the driver begins cells again
        ),
    )
    with suppress(Leave):
        tuner.fit()
        driver.ended()


def _trial_name(trial: Any) -> str:
    return str(trial.trial_id)
