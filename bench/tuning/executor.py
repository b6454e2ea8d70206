"""Ray Tune as the executor of cells: whatever hands out jobs is fed, told, and asked again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from fedbench.bench.devices import choose_devices, physical_cores
from fedbench.bench.errors import ConfigError, ResourceError
from fedbench.bench.tuning.progress import (
    OnProgress,
    Pace,
    TrialDone,
    TrialProgress,
    TrialStarted,
)
from fedbench.bench.tuning.ray_runtime import (
    Session,
    check_cluster,
    check_trial_resources,
    local_gpus,
    ray_session,
)
from fedbench.bench.tuning.trial import CellJob, Outcome, train

CELLS_PER_TUNER = 500
"""Tune's bookkeeping grows with the number of trials; more cells go to a fresh Tuner."""
_PATIENCE_SECONDS = 5.0
_LOST_SECONDS = 120.0


class Source(Protocol):
    """Hands out jobs and takes their outcomes; called from one thread only."""

    @property
    def total(self) -> int:
        """Jobs of the whole command."""

    @property
    def ended(self) -> int:
        """Jobs that had ended before the command."""

    @property
    def finished(self) -> bool:
        """Whether `next` will never have a job again."""

    def next(self) -> CellJob | None:
        """A job, or None while it depends on outcomes that are missing."""

    def done(self, outcome: Outcome) -> None:
        """Keep an outcome; it is on the disk when this returns."""


class Fixed:
    """A source of jobs that are known beforehand; keeps their outcomes in memory."""

    def __init__(self, jobs: Sequence[CellJob]) -> None:
        self._waiting = deque(jobs)
        self.total, self.ended = len(jobs), 0
        self.outcomes: list[Outcome] = []

    @property
    def finished(self) -> bool:
        """Whether every job has been handed out."""
        return not self._waiting

    def next(self) -> CellJob | None:
        """The next job in the given order."""
        return self._waiting.popleft() if self._waiting else None

    def done(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        self.outcomes.append(outcome)


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


def run_cells(
    cells: Sequence[CellJob],
    *,
    device: str = "auto",
    concurrency: int | None = None,
    gpus_per_trial: float | None = None,
    address: str | None = None,
    on_progress: OnProgress | None = None,
) -> list[Outcome]:
    """Execute cells in any order; outcomes come in the order in which cells end.

    Args:
        cells: what to run; each knows its store.
        device: `auto`, `cpu` or `cuda`.
        concurrency: at a time; None = physical cores, or what the GPUs or the cluster hold.
        gpus_per_trial: may be a fraction; None = see `choose_gpus`.
        address: of a Ray cluster; None = this machine.
        on_progress: called with every event.

    Raises:
        ResourceError, StoreError: when cells cannot be run here, or not be kept.
        Interrupted: after a signal; cells that had ended are with the caller's source only.
    """
    source = Fixed(cells)
    run_source(
        source,
        gpus=choose_gpus(device, gpus_per_trial, address),
        concurrency=concurrency,
        address=address,
        on_progress=on_progress,
    )
    return source.outcomes


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
    with ray_session(limit, address) as session:
        check_cluster(gpus)
        driver = Driver(source, session, limit, gpus, on_progress)
        while not driver.exhausted:
            _fit(driver, gpus, session)
            if driver.failure is not None:
                raise driver.failure
            session.raise_if_interrupted()


def _fit(driver: Driver, gpus: float, session: Session) -> None:
    from ray import tune

    from fedbench.bench.tuning.tune_glue import Feed, Sink, StopAll

    driver.begin()
    tune.Tuner(
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
            stop=StopAll(driver),
            callbacks=[Sink(driver)],
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    ).fit()
    if driver.failure is None:
        driver.ended()


def _trial_name(trial: Any) -> str:
    return str(trial.trial_id)


class Driver:
    """Between a source and Tune: who runs, who waits for a lock, what went wrong.

    Attributes:
        failure: the first error of the source or of whoever watches; it ends everything.
        fits: Tuners so far.
    """

    def __init__(
        self,
        source: Source,
        session: Session,
        limit: int | None,
        gpus: float,
        on_progress: OnProgress | None,
    ) -> None:
        self._source, self._session, self._limit = source, session, limit
        self._gpus = gpus
        self._on_progress = on_progress
        self._pace = Pace(source.total, source.ended)
        self._live: dict[str, CellJob] = {}
        self._busy: deque[CellJob] = deque()
        self._started: set[str] = set()
        self._handed_out = 0
        self._lost_since: float | None = None
        self.failure: Exception | None = None
        self.fits = 0

    @property
    def stopping(self) -> bool:
        """Whether no cell is to be begun any more."""
        return self.failure is not None or self._session.interrupted

    @property
    def exhausted(self) -> bool:
        """Whether every cell has ended."""
        return self._source.finished and not self._live and not self._busy

    def begin(self) -> None:
        """A new Tuner."""
        self._handed_out = 0
        self.fits += 1

    def hand_out(self, trial_id: str) -> CellJob | None | bool:
        """The next job; None = ask again later; False = this Tuner is to end."""
        if self.stopping or self._handed_out >= CELLS_PER_TUNER:
            return False
        if self._limit is not None and len(self._live) >= self._limit:
            return None
        job = self._source.next()
        if job is None and self._busy:
            job = replace(self._busy.popleft(), wait_seconds=_PATIENCE_SECONDS)
        if job is None:
            return False if self.exhausted else None
        self._handed_out += 1
        self._live[trial_id] = job
        return job

    def started(self, trial_id: str) -> None:
        """A trial process took up its job."""
        job = self._live.get(trial_id)
        if job is not None and job.cell not in self._started:
            self._started.add(job.cell)
            self._emit(TrialStarted(job.cell, job.label, self._pace.done, self._pace.total))

    def reported(self, trial_id: str, message: dict[str, Any]) -> None:
        """A trial process reported."""
        job = self._live.get(trial_id)
        if job is None:
            return
        status = message["status"]
        if status == "running":
            progress = (message[key] for key in ("round", "total", "loss", "collapsed"))
            self._emit(TrialProgress(job.cell, job.label, *progress))
        elif status == "busy":
            self._busy.append(self._live.pop(trial_id))
        else:
            self._end(trial_id, Outcome.of(job, message))

    def died(self, trial_id: str, reason: str) -> None:
        """A trial process ended without a last report, twice."""
        job = self._live.get(trial_id)
        if job is not None and not self.stopping:
            text = f"the trial process died: {reason or 'perhaps the memory is full'}"
            self._end(trial_id, Outcome(job, "error", error=text))

    def ended(self) -> None:
        """The Tuner is over; a job that it forgot counts as died."""
        for trial_id in list(self._live):
            self.died(trial_id, "Ray Tune gave it up")

    def check_progress(self, statuses: Sequence[str]) -> None:
        """Ends everything if nothing runs and the cluster lost the node that could.

        Raises:
            ResourceError: after two minutes of that.
        """
        if "RUNNING" in statuses or "PENDING" not in statuses:
            self._lost_since = None
            return
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._lost_since > _LOST_SECONDS:
            self._lost_since = now
            check_cluster(self._gpus)

    def _end(self, trial_id: str, outcome: Outcome) -> None:
        self._source.done(outcome)
        del self._live[trial_id]
        self._pace.step()
        job, pace = outcome.job, self._pace
        self._emit(
            TrialDone(
                job.cell,
                job.label,
                outcome.status,
                outcome.objective,
                outcome.seconds,
                pace.done,
                pace.total,
                pace.eta_seconds,
                outcome.error,
            )
        )

    def _emit(self, event: TrialStarted | TrialProgress | TrialDone) -> None:
        if self._on_progress is not None:
            self._on_progress(event)
