"""Ray Tune as the executor of cells: whatever hands out jobs is fed, told, and asked again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fedbench.bench.devices import choose_devices, physical_cores
from fedbench.bench.errors import ConfigError
from fedbench.bench.tuning.driver import Driver, Source
from fedbench.bench.tuning.progress import Began, OnProgress
from fedbench.bench.tuning.ray_checks import (
    check_cluster,
    check_trial_resources,
    cluster_slots,
    local_gpus,
)
from fedbench.bench.tuning.ray_runtime import Session, ray_session, warm_up
from fedbench.bench.tuning.trial import train


def choose_gpus(device: str, gpus_per_trial: float | None, address: str | None) -> float:
    """GPUs per trial; None = one, if `device` is `cuda`, or `auto` where this machine has any.

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
    check_trial_resources(gpus, address)
    return gpus


def choose_concurrency(concurrency: int | None, gpus: float, address: str | None) -> int | None:
    """Trials at a time; None in a cluster = as many as it holds.

    Raises:
        ConfigError: for fewer than one.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"--concurrency: must be at least 1 (got {concurrency})")
    if concurrency is not None or address is not None:
        return concurrency
    if gpus > 0:
        return max(1, int(local_gpus() / gpus + 1e-9))
    return physical_cores()


def run_source(
    source: Source,
    *,
    gpus: float,
    concurrency: int | None,
    address: str | None,
    on_progress: OnProgress | None,
) -> None:
    """Run Ray Tune until a source has no more jobs; without any, Ray is not started.

    Raises:
        ResourceError, StoreError: when cells cannot be run here, or not be kept.
        Interrupted: after a signal.
    """
    if source.finished:
        return
    limit = choose_concurrency(concurrency, gpus, address)
    left = source.total - source.ended
    if on_progress is not None:
        at_a_time = None if limit is None else min(limit, left)
        on_progress(Began(source.total, source.ended, at_a_time, gpus))
    with ray_session(limit, address) as session:
        check_cluster(gpus)
        limit = limit or cluster_slots(gpus)
        warm_up(session, min(limit, left))
        driver = Driver(
            source, limit, lambda: session.interrupted, lambda: check_cluster(gpus), on_progress
        )
        while not driver.exhausted:
            _fit(driver, gpus, session)
            if driver.failure is not None:
                raise driver.failure
            session.raise_if_interrupted()


def _fit(driver: Driver, gpus: float, session: Session) -> None:
    from ray import tune

    from fedbench.bench.tuning.tune_glue import Feed, Leave, Sink

    driver.begin()
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1, "gpu": gpus}),
        tune_config=tune.TuneConfig(
            search_alg=Feed(driver),
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
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    )
    with suppress(Leave):
        tuner.fit()
        driver.ended()


def _trial_name(trial: Any) -> str:
    return str(trial.trial_id)
