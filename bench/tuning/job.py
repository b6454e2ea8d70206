"""One run in a trial process: lock, execute, report. Imports nothing of studies or grids."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Protocol

from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import Paused, points_of, untrained_figures
from fedbench.bench.execution.remeasure import train
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method.blame import error_of_plugin
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.system.compute import breaks_cuda, choose_devices
from fedbench.bench.system.errors import FedbenchError, ResourceError, StoreError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.training.history import RoundRecord
from fedbench.bench.tuning.scoring import Scoring

REPORT_SECONDS = 1.0
"""Least time between two reports of one run; reports never influence its result."""
_POLL_SECONDS = 0.2  # between two looks at a lock
_GPU_FULL = (
    "the run's share of the GPU's memory is too small; raise --gpus-per-trial or lower"
    " client.batch_size"
)

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, repr=False)
class Job:
    """One run for a trial process, with everything that the process needs to know."""

    name: str  # of its folder and lock below the store's `cells/`
    label: str  # its name for people
    experiment: Experiment
    store: Path
    checkpoints: Path | None = None  # root of another folder for `cells/`; None = the store
    workers: int = 1
    device: str = "cpu"  # or `cuda`
    lanes: int | None = None
    earlier: tuple[str, ...] = ()  # runs with its training, in the store or before it in the sweep
    shared: bool = True  # look into the store first: another process may have written the row
    untrained: bool = False  # only measure the encoder before training; no row comes of it
    until_round: int | None = None  # after which the run pauses; None = it is run to its end
    track: tuple[str, ...] = ()  # viewers that get rounds and row from the trial process
    wait_seconds: float = 0.0  # for the lock, before the run is reported as busy
    values: Mapping[str, Any] = field(default_factory=dict)  # in which it differs from the others
    scored_by: str = DEFAULT  # name of the objective

    def __repr__(self) -> str:
        return self.label  # in files and tables of Ray Tune's loggers

    @property
    def row_id(self) -> str:
        """The id of its row."""
        return self.experiment.ids.row

    @property
    def cells(self) -> Store:
        """The store of its folder and its lock."""
        return Store(self.checkpoints or self.store)

    @property
    def folder(self) -> Path:
        """The folder of its checkpoints and its history."""
        return self.cells.cell_dir(self.name)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job."""

    job: Job
    status: str  # `ok diverged error paused`, or `elsewhere` if another process ran it
    row: Row | None = None  # None for `error`, `paused` and encoders before training
    error: str | None = None  # in one line
    seconds: float = 0.0
    bytes: int = 0  # sent by clients and server together
    history: Sequence[Mapping[str, Any]] | None = None  # if in no folder that the driver sees
    figures: Mapping[str, float] = field(default_factory=dict)  # metrics; none after an error
    tracked: bool = False  # whether every viewer of `Job.track` has taken the row

    @property
    def objective(self) -> float | None:
        """The score by which the job is ranked, more is better; None if it has none."""
        return Scoring(self.job.scored_by).of(self.figures)

    def points(self) -> Sequence[Mapping[str, Any]]:
        """Return the rounds, flat as in a curve; from the folder, which `Jobs.done` may delete."""
        return points_of(self.job.folder) if self.history is None else self.history

    def report(self) -> dict[str, Any]:
        """Return the last report of a trial process: numbers by name, and the outcome itself.

        `objective` is NaN where there is none, since Ray Tune wants one of every trial.
        """
        score = self.objective
        rounds = self.job.until_round if self.row is None else self.row.rounds_done
        known = {**self.figures, "objective": nan if score is None else score}
        return {**known, "status": self.status, "round": rounds or 0, "outcome": self}


class Jobs(Protocol):
    """Supplier of jobs and receiver of their outcomes; called from one thread only."""

    total: int  # jobs of the whole command, at most
    checks: int  # of these, the last ones, see `CellsBegan`
    ended: int  # jobs that ended before the command

    @property
    def finished(self) -> bool:
        """True once `next` has no more jobs to return."""

    def next(self) -> Job | None:
        """Return a job, or None while the next one depends on missing outcomes."""

    def done(self, outcome: Outcome) -> None:
        """Store an outcome; it is on the disk when this returns."""


def store_outcome(jobs: Jobs, outcome: Outcome, tracking: Tracking) -> None:
    """Store an outcome, and pass its row to viewers that the trial process did not reach."""
    row = None if outcome.tracked or not tracking.names else outcome.row
    elsewhere = row is None or outcome.status == "elsewhere"  # its rounds are in the store
    points = None if elsewhere else outcome.points()
    jobs.done(outcome)
    if row is not None:
        tracking.end(row, points)


def work(job: Job, report: Report, *, history: bool = False) -> str:
    """Execute a run under its lock and return the last status; raise an error that `breaks_cuda`.

    The `status` of a report is `running` after some rounds, `busy` if another process holds the
    run, and last that of the `outcome` (which has the rounds, with `history`), or `abort` with the
    `error` because of which no run is possible here.
    """
    began = time.monotonic()
    try:
        while True:
            with job.cells.lock(job.name) as mine:
                if mine:
                    outcome = _perform(job, report, began)
                    if history and outcome.status != "error":
                        outcome = replace(outcome, history=points_of(job.folder))
                    report(outcome.report())
                    return outcome.status
            if time.monotonic() - began >= job.wait_seconds:
                report({"status": "busy"})
                return "busy"
            time.sleep(_POLL_SECONDS)
    except (StoreError, ResourceError) as err:
        report({"status": "abort", "error": err})
        return "abort"


def _perform(job: Job, report: Report, began: float) -> Outcome:
    store, folder = Store(job.store), job.folder
    if job.shared and (stored := store.finished(job.row_id)) is not None:
        return Outcome(job, "elsewhere", stored, figures=stored.metrics)
    reported, failures = began, list[str]()
    tracking = Tracking((), store)
    with suppress(ResourceError):  # one that cannot be had here, as without its package
        tracking = Tracking(job.track, store, failures.append)

    def on_round(record: RoundRecord, total: int) -> None:
        nonlocal reported
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            seen = {"loss": record.loss, "collapsed": record.collapsed, "rounds": total}
            report({"status": "running", "round": record.round_index + 1, **seen})

    def ended(status: str, **known: Any) -> Outcome:
        return Outcome(job, status, **{"seconds": time.monotonic() - began, **known})

    try:
        workers = job.workers if job.device == "cpu" else 1
        devices = choose_devices(job.device, workers, job.lanes)
        if job.untrained:
            return ended("ok", figures=untrained_figures(job.experiment, devices[0]))
        where = Where(folder, devices, job.lanes, until_round=job.until_round)
        rows = [row for i in job.earlier for row in store.replicas(i)]
        row = train(store, rows, job.experiment, where, tracking, on_round)
        if tracking.names:
            tracking.end(row, points_of(folder))
    except Paused as paused:
        tracking.close(failed=False)
        figures = dict(paused.metrics)
        return ended("paused", figures=figures, bytes=paused.bytes, seconds=paused.seconds)
    except Exception as err:
        tracking.close()
        if isinstance(err, StoreError | ResourceError) or breaks_cuda(err):
            raise
        with suppress(StoreError):  # the outcome has the message in one line
            atomic_write_text(folder / "error.txt", traceback.format_exc())
        text = _GPU_FULL if type(err).__name__ == "OutOfMemoryError" else one_line(err)
        return ended("error", error=text)
    tracked = bool(tracking.names) and not failures
    return ended(
        row.status,
        row=row,
        figures=row.metrics,
        bytes=(row.bytes_up or 0) + (row.bytes_down or 0),
        seconds=row.wall_seconds,
        tracked=tracked,
    )


def one_line(err: BaseException) -> str:
    """Return the message of an error in one line, with its type unless it is ours."""
    err = error_of_plugin(err) or err
    text = " ".join(str(err).split())
    return text if isinstance(err, FedbenchError) else f"{type(err).__name__}: {text}".rstrip(": ")
