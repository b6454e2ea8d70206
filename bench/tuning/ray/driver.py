"""Between a source of jobs and Ray Tune: who runs, who waits, what went wrong. Knows no Ray."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ray import tune
from ray.tune.search import Searcher

from fedbench.bench.tuning.cell import CellJob, Outcome
from fedbench.bench.tuning.events import (
    Event,
    OnProgress,
    Pace,
    TrialDone,
    TrialProgress,
    TrialStarted,
)

CELLS_PER_TUNER = 500
"""Tune's bookkeeping grows with the number of trials; more cells go to a fresh Tuner."""
_PATIENCE_SECONDS = 5.0
_LOST_SECONDS = 120.0
_COUNT_SECONDS = 10.0


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


class Driver:
    """Between a source and Tune: who runs, who waits for a lock, what went wrong.

    Args:
        source: of the jobs.
        limit: jobs at a time.
        interrupted: whether somebody asked to stop.
        check_nodes: raises ResourceError if no node can hold a trial any more.
        on_progress: called with every event.
        slots: from the limit so far to that of now, where nodes come and go; None = it stays.
        attempts: how often a cell is begun whose process dies. Tune's own retries leave out a
            process that dies between two cells.

    Attributes:
        failure: the first error of the source or of whoever watches; it ends everything.
        fits: Tuners so far.
    """

    def __init__(
        self,
        source: Source,
        limit: int,
        interrupted: Callable[[], bool],
        check_nodes: Callable[[], None],
        on_progress: OnProgress | None,
        slots: Callable[[int], int] | None = None,
        attempts: int = 1,
    ) -> None:
        self._source, self._limit, self._slots = source, limit, slots
        self._counted = time.monotonic()
        self._interrupted, self._check_nodes = interrupted, check_nodes
        self._on_progress = on_progress
        self._pace = Pace(source.total, source.ended)
        self._live: dict[str, CellJob] = {}
        self._processes: set[str] = set()
        self._busy: deque[CellJob] = deque()
        self._attempts, self._deaths = attempts, Counter[str]()
        self._started: set[str] = set()
        self._handed_out = 0
        self._lost_since: float | None = None
        self.failure: Exception | None = None
        self.fits = 0

    @property
    def stopping(self) -> bool:
        """Whether no cell is to be begun any more."""
        return self.failure is not None or self._interrupted()

    @property
    def exhausted(self) -> bool:
        """Whether every cell has ended."""
        return self._source.finished and not self._live and not self._busy

    def begin(self) -> None:
        """A new Tuner."""
        self._handed_out = 0
        self._processes.clear()
        self.fits += 1

    def hand_out(self, trial_id: str) -> CellJob | Literal[False] | None:
        """The next job; None = ask again later; False = this Tuner is to end."""
        if self.stopping or self._handed_out >= CELLS_PER_TUNER:
            return False
        if len(self._processes) >= self._limit:
            return None
        job = self._source.next()
        if job is None and self._busy:
            job = replace(self._busy.popleft(), wait_seconds=_PATIENCE_SECONDS)
        if job is None:
            return False if self.exhausted else None
        self._handed_out += 1
        self._live[trial_id] = job
        self._processes.add(trial_id)
        return job

    def freed(self, trial_id: str) -> None:
        """A trial process is idle; a job handed out earlier would start another process."""
        self._processes.discard(trial_id)

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
        """A trial process ended without a last report: its cell is begun again, or has failed."""
        job = self._live.get(trial_id)
        if job is None or self.stopping:
            return
        self._deaths[job.cell] += 1
        if self._deaths[job.cell] < self._attempts:
            self._busy.append(self._live.pop(trial_id))
            return
        text = f"the trial process died: {reason or 'perhaps the memory is full'}"
        self._end(trial_id, Outcome(job, "error", error=text))

    def ended(self) -> None:
        """The Tuner is over; a job that it forgot counts as died."""
        for trial_id in list(self._live):
            self.died(trial_id, "Ray Tune gave it up")

    def check_progress(self, statuses: Sequence[str]) -> None:
        """Looks at the nodes; ends everything if nothing runs and the one that could is lost.

        Raises:
            ResourceError: after two minutes of that.
        """
        now = time.monotonic()
        if self._slots is not None and now - self._counted > _COUNT_SECONDS:
            self._counted, self._limit = now, self._slots(self._limit)
        if "RUNNING" in statuses or "PENDING" not in statuses:
            self._lost_since = None
            return
        self._lost_since = self._lost_since or now
        if now - self._lost_since > _LOST_SECONDS:
            self._lost_since = now
            self._check_nodes()

    def _end(self, trial_id: str, outcome: Outcome) -> None:
        self._source.done(outcome)
        del self._live[trial_id]
        job, pace = outcome.job, self._pace
        pace.step(self._source.total)
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

    def _emit(self, event: Event) -> None:
        if self._on_progress is not None:
            self._on_progress(event)


class Leave(BaseException):
    """Ends Tune's loop at once."""


class _Light:
    """Pickles as an empty shell."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Feed(_Light, Searcher):  # type: ignore[misc]
    """Hands jobs to Tune; knows nothing of what they are for."""

    def __init__(self, driver: Driver, home: dict[str, str] | None) -> None:
        super().__init__()
        self._driver = driver
        self._common = {} if home is None else {"home": home}

    def suggest(self, trial_id: str) -> Any:
        """A trial's configuration, None for later, or the mark that all is done."""
        try:
            job = self._driver.hand_out(trial_id)
        except Exception as err:
            self._driver.failure = err
            job = False
        if job is False:
            return Searcher.FINISHED
        return None if job is None else {"job": job.dumps(), **self._common}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Outcomes are taken from reports; this is when a process is free again."""
        self._driver.freed(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """There is nothing to save: the store holds everything."""

    def restore(self, checkpoint_path: str) -> None:
        """There is nothing to restore."""


class Sink(_Light, tune.Callback):  # type: ignore[misc]
    """Passes on what trials report; an error ends the command instead of failing a trial."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial process took up a cell."""
        self._guard(self._driver.started, trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A report; what is large is taken out of it, since Tune keeps last results."""
        message = dict(result)
        for name in ("row", "history"):
            result.pop(name, None)
        self._guard(self._driver.reported, trial.trial_id, message)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial process died for good."""
        self._guard(self._driver.died, trial.trial_id, _last_line(trial.error_file))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Leaves after a signal or an error; looks for trials that no node can hold any more.

        Raises:
            Leave: past Tune, which would wait many seconds for busy processes. Nothing is lost:
                cells continue from their checkpoints.
        """
        self._guard(self._driver.check_progress, [trial.status for trial in trials])
        if self._driver.stopping:
            raise Leave

    def _guard(self, function: Any, *args: Any) -> None:
        try:
            if self._driver.failure is None:
                function(*args)
        except Exception as err:
            self._driver.failure = err


def _last_line(file: str | None) -> str:
    """What stands last in a trial's error file; Tune has nothing better at that moment."""
    if file is None or not Path(file).is_file():
        return ""
    lines = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
