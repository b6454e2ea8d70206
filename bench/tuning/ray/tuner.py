"""Jobs on Ray Tune: the searcher hands them to trials, its callback takes what trials report.

Tune executes functions with suggested configurations; here a suggestion is a job, and what comes
back are reports of its rounds and its end. Limits, retries, busy jobs and events are ours.
"""

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import OutOfMemoryError
from ray.tune import Stopper
from ray.tune.search import Searcher

from fedbench.bench.results.trackers import Tracking
from fedbench.bench.system.scratch import end_workers
from fedbench.bench.tuning.events import CellDone, CellProgress, Event, OnProgress
from fedbench.bench.tuning.job import Job, Jobs, Outcome, store_outcome
from fedbench.bench.tuning.pace import Pace
from fedbench.bench.tuning.ray.nodes import Pool
from fedbench.bench.tuning.ray.process import train
from fedbench.bench.tuning.ray.session import Session

JOBS_PER_TUNER = 500  # since each snapshot of Tune's writes the state of all its trials
LOST_SECONDS = 120.0  # time without any running trial after which the nodes are checked
_LOCK_SECONDS = 5.0  # wait for the lock of a job that was busy before
_COUNT_SECONDS = 10.0  # time between two counts of a cluster's slots
_log = logging.getLogger(__name__)
_NODE = "ray.io/node-id"  # label that Ray gives to each node
_FULL = re.compile(r"low on memory.* was (\S+ used / \S+ limit)", re.DOTALL)
"""What Ray says of a process that it has killed for the memory that all of its machine use."""


class JobSearcher(Searcher):  # type: ignore[misc]
    """Searcher whose suggestions are jobs; one serves all Tuners of a command.

    If nodes may come and go, their number decides how many trials run. A job whose process dies is
    started `attempts` times without a new round in between (Tune's own retries miss a process that
    dies between two jobs). The nodes are checked after `patience` idle seconds.
    """

    def __init__(
        self,
        jobs: Jobs,
        pool: Pool,
        session: Session,
        *,
        attempts: int = 1,
        patience: float = LOST_SECONDS,
        token: str | None = None,
        on_progress: OnProgress | None = None,
        tracking: Tracking,
    ) -> None:
        super().__init__()
        self._jobs, self.pool, self.session = jobs, pool, session
        self._limit = pool.slots()
        self._attempts, self._patience = attempts, patience
        self._token = token
        self._on_progress, self._tracking = on_progress, tracking
        self._done, self._pace = jobs.ended, Pace()
        self._live: dict[str, Job] = {}  # trial -> its job
        self._processes: set[str] = set()  # trials whose process is at work
        self._again: deque[Job] = deque()
        self._rounds: Counter[str] = Counter()  # that each job has done
        self._deaths: Counter[tuple[str, int]] = Counter()  # of a job, after so many rounds
        self._unfit: set[str] = set()  # trials whose node cannot run them
        self._say_stored()
        self._handed_out = 0
        self._counted_at, self._lost_since = time.monotonic(), 0.0
        self.failure: Exception | None = None  # of the jobs or `on_progress`: ends everything
        self.tuners = 0

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles all that it is given, and nobody reads that again

    @property
    def stopping(self) -> bool:
        """True after a signal or an error: no further job is started."""
        return self.failure is not None or self.session.ending

    @property
    def exhausted(self) -> bool:
        """True once every job has ended."""
        return self._jobs.finished and not self._live and not self._again

    def begin_tuner(self) -> None:
        """Count a new Tuner, which has no processes yet."""
        self._handed_out = 0
        self._processes.clear()
        self.tuners += 1

    def end_tuner(self, reason: str = "Ray Tune gave it up") -> None:
        """Treat the jobs that the Tuner left unfinished as died."""
        for trial_id in list(self._live):
            self.died(trial_id, reason)

    def suggest(self, trial_id: str) -> Any:
        """Return the job of a trial, None for later, or FINISHED to end this Tuner."""
        if self.stopping or self._handed_out >= JOBS_PER_TUNER:
            return Searcher.FINISHED
        if len(self._processes) >= self._limit:
            return None
        try:
            job = self._jobs.next()
        except Exception as err:
            self.failure = err
            return Searcher.FINISHED
        if job is None and self._again:  # last, since another process may still hold it
            job = replace(self._again.popleft(), wait_seconds=_LOCK_SECONDS)
        if job is None:
            return Searcher.FINISHED if self.exhausted else None
        self._handed_out += 1
        self._live[trial_id] = job
        self._processes.add(trial_id)
        return {**job.values, "job": job, "avoid": [*self.pool.left_out], "token": self._token}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a process is idle; a job before that would start another process."""
        self._processes.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the store holds everything, and no Tuner is restored."""

    def started(self, trial_id: str) -> None:
        """Note that a trial process has started its job."""
        if (job := self._live.get(trial_id)) is not None:
            if not job.untrained:
                self._pace.began(job.name, time.monotonic())
            first = job.experiment.needs.preparatory_rounds
            rounds = first + job.experiment.config.federation.num_rounds
            began = CellProgress(job.name, job.label, 0, rounds, eta_seconds=self._left())
            self._emit(replace(began, preparatory=first))

    def reported(self, trial_id: str, message: dict[str, Any]) -> None:
        """Handle a report of a trial process (see `job.work` and `process.train`)."""
        job = self._live.get(trial_id)
        if job is None:
            return
        status = message["status"]
        if status == "running":
            done, total = message["round"], message["rounds"]
            self._rounds[job.name] = max(done, self._rounds[job.name])
            self._pace.reported(job.name, done / total, time.monotonic())
            how = (message["loss"], message["collapsed"], self._left())
            first = job.experiment.needs.preparatory_rounds
            self._emit(CellProgress(job.name, job.label, done, total, *how, first))
        elif status == "unfit":
            self._unfit.add(trial_id)
            self.pool.leave_out(message["node"], message["error"])
        elif status == "cuda-failed":
            self.pool.cuda_failed(message["node"], job.name, message["error"])
        elif status == "abort":
            raise message["error"]
        elif status == "busy":
            self._pace.ended(job.name, time.monotonic(), counts=False)
            self._again.append(self._live.pop(trial_id))
        else:
            # The process may have worked in a folder of its node, which `job` does not name.
            self._end(trial_id, replace(message["outcome"], job=job))

    def died(self, trial_id: str, reason: str) -> None:
        """Repeat the job of a process that ended without a last report, or record its failure."""
        job = self._live.get(trial_id)
        if job is None or self.stopping:
            return
        self._pace.ended(job.name, time.monotonic(), counts=False)
        unfit = trial_id in self._unfit  # the node's failure, not the job's
        so_far = (job.name, self._rounds[job.name])
        self._deaths[so_far] += not unfit
        if unfit or self._deaths[so_far] < self._attempts:
            self._again.append(self._live.pop(trial_id))
            return
        self._check()  # the death of Ray itself is no failure of the job
        text = f"the trial process died: {reason or 'perhaps the memory is full'}"
        self._end(trial_id, Outcome(job, "error", error=text))

    def check_progress(self, statuses: Sequence[str]) -> None:
        """Update the limit; refuse to go on where no node could hold a trial for `patience`."""
        now = time.monotonic()
        if self.pool.varies and now - self._counted_at > _COUNT_SECONDS:
            self._counted_at, before = now, self._limit
            self.pool.admit_new()
            self._limit = self.pool.slots()
            if self._limit != before:
                _log.warning("trials at a time: %d now, %d before", self._limit, before)
        if "RUNNING" in statuses or "PENDING" not in statuses:
            self._lost_since = 0.0
            return
        self._lost_since = self._lost_since or now
        if now - self._lost_since > self._patience:
            self._lost_since = now
            self._check()

    def _check(self) -> None:
        """Refuse to go on if Ray has died, or no node can hold a trial any more."""
        self.session.check_parts()
        self.pool.check()

    def _end(self, trial_id: str, outcome: Outcome) -> None:
        store_outcome(self._jobs, outcome, self._tracking)
        del self._live[trial_id]
        self._done += not outcome.job.untrained
        job, total = outcome.job, self._jobs.total
        self._say_stored()
        self._pace.ended(job.name, time.monotonic(), counts=outcome.status != "elsewhere")
        counts = (self._done, total, self._left())
        result = (outcome.status, outcome.objective, outcome.seconds)
        self._emit(CellDone(job.name, job.label, *result, *counts, outcome.error))

    def _say_stored(self) -> None:
        """Let the end of the session name how much is safe."""
        self.session.stored = f"{self._done} of {self._jobs.total} runs are stored, and "

    def _left(self) -> float | None:
        running = sum(not job.untrained for job in self._live.values())
        waiting = max(0, self._jobs.total - self._done - running)
        return self._pace.left(waiting, self._limit, time.monotonic())

    def _emit(self, event: Event) -> None:
        if self._on_progress is not None:
            self._on_progress(event)


class _Listener(tune.Callback, Stopper):  # type: ignore[misc]
    """Passes reports to the searcher, and ends a Tuner after a signal, or an error of these.

    Tune would wait ten seconds for processes that are at work, so those of this machine are killed
    first. Nothing is lost: jobs continue from their checkpoints.
    """

    def __init__(self, searcher: JobSearcher) -> None:
        super().__init__()
        self._searcher = searcher

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_start(self, *, trial: Any, **info: Any) -> None:
        self._call(self._searcher.started, trial.trial_id)

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], **info: Any) -> None:
        message = dict(result)
        result.pop("outcome", None)  # large, and Tune keeps last results
        self._call(self._searcher.reported, trial.trial_id, message)

    def on_trial_error(self, *, trial: Any, **info: Any) -> None:
        self._call(self._searcher.died, trial.trial_id, _error(trial.error_file))

    def on_step_end(self, *, trials: list[Any], **info: Any) -> None:
        self._call(self._searcher.check_progress, [trial.status for trial in trials])

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False  # no trial ends before its function does

    def stop_all(self) -> bool:
        if self._searcher.stopping:
            end_workers(self._searcher.session.folder)  # none, if Ray runs elsewhere
        return self._searcher.stopping

    def _call(self, function: Any, *args: Any) -> None:
        try:
            if self._searcher.failure is None:
                function(*args)
        except Exception as err:  # raised here, Tune would only call the trial failed
            self._searcher.failure = err


def run_tuner(searcher: JobSearcher) -> tune.ResultGrid | None:
    """Run one Tuner, with its files in the session's folder, until the searcher ends it.

    Returns None where Ray has killed a process at work since the memory is nearly full: Tune takes
    that for the end of everything, not of the trial.

    Its trials have the varied values as their configuration, and report `objective`, `round` and
    the metrics of the run under these names.
    """
    searcher.begin_tuner()
    listener = _Listener(searcher)
    tuner = tune.Tuner(
        tune.with_resources(train, partial(_request, searcher.pool.need.resources)),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            metric="objective",
            mode="max",
            num_samples=-1,
            reuse_actors=True,  # a fresh process takes two seconds for its imports
            # Tune's own names are made of the configuration, of up to 150 letters.
            trial_name_creator=lambda trial: trial.trial_id,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"run-{searcher.tuners}",
            storage_path=str(searcher.session.folder.resolve() / "tune"),  # absolute, for Arrow
            verbose=0,
            progress_reporter=tune.CLIReporter(),  # silent; in a notebook another would not be
            callbacks=[listener],
            stop=listener,
            failure_config=tune.FailureConfig(max_failures=0),  # the searcher repeats jobs
        ),
    )
    try:
        results = tuner.fit()
    except RuntimeError as err:
        if not isinstance(err.__cause__, OutOfMemoryError):
            raise
        searcher.end_tuner(_reason(str(err)))
        return None
    searcher.end_tuner()
    return results


def _request(resources: dict[str, float], config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Ask for a place of one trial, away from the nodes under `avoid`."""
    avoid = config.get("avoid")
    where = {"bundle_label_selector": [{_NODE: f"!in({','.join(avoid)})"}]} if avoid else {}
    return tune.PlacementGroupFactory([resources], **where)


def _error(file: str | None) -> str:
    """Return what a trial's error file says, the only reason that Tune gives."""
    if file is None or not Path(file).is_file():
        return ""
    return _reason(Path(file).read_text(encoding="utf-8", errors="replace"))


def _reason(text: str) -> str:
    """Return the last line of Ray's report, or how full the memory was."""
    if full := _FULL.search(text):
        return f"the memory of its machine was nearly full: {full[1]}"
    return next((line.strip()[:300] for line in reversed(text.split("\n")) if line.strip()), "")
