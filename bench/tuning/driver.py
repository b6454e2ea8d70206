"""Between a source of jobs and Ray Tune: who runs, who waits, what went wrong. Knows no Ray."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from fedbench.bench.tuning.progress import (
    Event,
    OnProgress,
    Pace,
    TrialDone,
    TrialProgress,
    TrialStarted,
)
from fedbench.bench.tuning.trial import CellJob, Outcome

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
