"""Scheduling of jobs onto trial processes: limits, locks, retries, events. Imports no Ray."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from fedbench.bench.tuning.cell import CellJob, Outcome
from fedbench.bench.tuning.events import (
    CellDone,
    CellProgress,
    CellStarted,
    Event,
    OnProgress,
    Pace,
)

CELLS_PER_TUNER = 500
"""Cells per Tuner, as Tune's bookkeeping per cell grows with their number."""
_LOCK_SECONDS = 5.0
"""Wait for the lock of a cell that was busy before."""
LOST_SECONDS = 120.0
"""Time without any running trial after which the nodes are checked."""
_COUNT_SECONDS = 10.0
"""Time between two counts of a cluster's slots."""


class Source(Protocol):
    """Supplier of jobs and receiver of their outcomes; called from one thread only."""

    @property
    def total(self) -> int:
        """Number of jobs of the whole command."""

    @property
    def ended(self) -> int:
        """Number of jobs that ended before the command."""

    @property
    def finished(self) -> bool:
        """True once `next` has no more jobs to return."""

    def next(self) -> CellJob | None:
        """Return a job, or None while the next one depends on missing outcomes."""

    def done(self, outcome: Outcome) -> None:
        """Store an outcome; it is on the disk when this returns."""


class Driver:
    """Scheduler between a source of jobs and a Tuner.

    Args:
        source: of the jobs.
        limit: jobs at a time.
        interrupted: returns True after a signal, or if Ray has died.
        check_nodes: raises ResourceError if Ray has died or no node can hold a trial any more.
        on_progress: called with every event.
        slots: maps the limit so far to the present one, as nodes come and go; None = constant.
        attempts: starts of a cell whose process dies. Tune's own retries miss a process that dies
            between two cells. Only deaths without a new round in between count.
        on_fault: called with the report of a GPU fault, or of a node that cannot run a cell; raises
            ResourceError if no node is left.
        patience: seconds without a running trial after which the nodes are checked.

    Attributes:
        failure: the first error of the source or of `on_progress`; it ends everything.
        holders: trial processes that hold a broken GPU, so that no other gets it.
        tuners: number of Tuners so far.
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
        on_fault: Callable[[Mapping[str, Any]], None] | None = None,
        patience: float = LOST_SECONDS,
    ) -> None:
        self._source, self._limit, self._slots = source, limit, slots
        self._counted_at = time.monotonic()
        self._interrupted, self._check_nodes = interrupted, check_nodes
        self._on_progress = on_progress
        self._pace = Pace(source.total, source.ended)
        self._live: dict[str, CellJob] = {}
        self._processes: set[str] = set()
        self.holders: set[str] = set()
        self._busy: deque[CellJob] = deque()
        self._attempts, self._deaths = attempts, Counter[str]()
        self._rounds: dict[str, int] = {}
        self._on_fault = on_fault
        self._faulty: set[str] = set()
        self._started: set[str] = set()
        self._handed_out = 0
        self._lost_since: float | None = None
        self._patience = patience
        self.failure: Exception | None = None
        self.tuners = 0

    @property
    def stopping(self) -> bool:
        """True after a signal or an error: no further cell is started."""
        return self.failure is not None or self._interrupted()

    @property
    def exhausted(self) -> bool:
        """True once every cell has ended."""
        return self._source.finished and not self._live and not self._busy

    @property
    def tuner_is_done(self) -> bool:
        """True once this Tuner has no cell left, so that processes that hold a GPU may end."""
        full = self._handed_out >= CELLS_PER_TUNER
        return self.exhausted or (full and not self._live)

    def begin_tuner(self) -> None:
        """Count a new Tuner, which has no processes yet."""
        self._handed_out = 0
        self._processes.clear()
        self.holders.clear()
        self.tuners += 1

    def hand_out(self, trial_id: str) -> CellJob | Literal[False] | None:
        """Return the next job; None = ask again later; False = end this Tuner."""
        if self.stopping or self._handed_out >= CELLS_PER_TUNER:
            return False
        if len(self._processes) >= self._limit:
            return None
        job = self._source.next()
        if job is None and self._busy:
            job = replace(self._busy.popleft(), wait_seconds=_LOCK_SECONDS)
        if job is None:
            return False if self.exhausted else None
        self._handed_out += 1
        self._live[trial_id] = job
        self._processes.add(trial_id)
        return job

    def freed(self, trial_id: str) -> None:
        """Note that a trial process is idle; before, another job would start another process."""
        self._processes.discard(trial_id)

    def started(self, trial_id: str) -> None:
        """Note that a trial process has started its job."""
        job = self._live.get(trial_id)
        if job is not None and job.cell not in self._started:
            self._started.add(job.cell)
            self._emit(CellStarted(job.cell, job.label, self._pace.done, self._pace.total))

    def reported(self, trial_id: str, message: dict[str, Any]) -> None:
        """Handle a report of a trial process."""
        job = self._live.get(trial_id)
        if job is None:
            return
        status = message["status"]
        if status == "running":
            if message["round"] > self._rounds.get(job.cell, 0):
                self._rounds[job.cell] = message["round"]
                del self._deaths[job.cell]  # a Counter takes a missing key
            progress = (message[key] for key in ("round", "total", "loss", "collapsed"))
            self._emit(CellProgress(job.cell, job.label, *progress))
        elif status in ("gpu-fault", "unfit"):
            self._faulty.add(trial_id)
            if self._on_fault is not None:
                self._on_fault(message)
        elif status == "holding":
            self.holders.add(trial_id)
            self._processes.discard(trial_id)
            self._busy.append(self._live.pop(trial_id))
        elif status == "busy":
            self._busy.append(self._live.pop(trial_id))
        else:
            self._end(trial_id, Outcome.of(job, message))

    def died(self, trial_id: str, reason: str) -> None:
        """Repeat the cell of a process that ended without a last report, or record its failure."""
        job = self._live.get(trial_id)
        if job is None or self.stopping:
            return
        faulty = trial_id in self._faulty  # the node's failure, not the cell's
        self._deaths[job.cell] += not faulty
        if faulty or self._deaths[job.cell] < self._attempts:
            self._busy.append(self._live.pop(trial_id))
            return
        self._check_nodes()  # the death of Ray itself is no failure of the cell
        text = f"the trial process died: {reason or 'perhaps the memory is full'}"
        self._end(trial_id, Outcome(job, "error", error=text))

    def end_tuner(self) -> None:
        """Treat the jobs that the Tuner left unfinished as died."""
        for trial_id in list(self._live):
            self.died(trial_id, "Ray Tune gave it up")

    def check_progress(self, statuses: Sequence[str]) -> None:
        """Update the limit, and check the nodes while trials wait and none runs.

        Args:
            statuses: of Tune's trials.

        Raises:
            ResourceError: after `patience` in which no node could hold a trial.
        """
        now = time.monotonic()
        if self._slots is not None and now - self._counted_at > _COUNT_SECONDS:
            self._counted_at, self._limit = now, self._slots(self._limit)
        if "RUNNING" in statuses or "PENDING" not in statuses:
            self._lost_since = None
            return
        self._lost_since = self._lost_since or now
        if now - self._lost_since > self._patience:
            self._lost_since = now
            self._check_nodes()

    def _end(self, trial_id: str, outcome: Outcome) -> None:
        self._source.done(outcome)
        del self._live[trial_id]
        job, pace = outcome.job, self._pace
        self._started.discard(job.cell)  # a paused run may start again
        pace.step(self._source.total)
        self._emit(
            CellDone(
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
