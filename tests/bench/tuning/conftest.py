"""Executors for tests: in this process, in any order, with interruptions; and Ray itself."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.tuning.events import CellDone
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.job import Job, Jobs, Outcome, store_outcome, work

Fake = Callable[[Job], Outcome]
SMALL: dict[str, Any] = {
    "data.train_subset": 60,
    "data.test_subset": 30,
    "data.num_clients": 3,
    "federation.num_rounds": 1,
    "model.width": 4,
    "evaluation.objective_max_examples": 20,
}
UNTRAINED = {"projection_std_ratio": 0.8, "effective_rank": 40.0}


Use = Callable[..., "InOneProcess"]  # the fixture `in_one_process`


class KilledError(Exception):
    """Simulated death of the driver."""


@dataclass
class InOneProcess:
    """Replacement of `Executor.run`: runs up to `width` jobs "at once", in a random order."""

    seed: int = 0  # of the order
    width: int = 3
    fake: Fake | None = None  # makes outcomes without training
    die_after: int | None = None  # outcomes before KilledError
    untrained: Sequence[float] = (0.1, 0.11, 0.09, 0.1, 0.1)  # objectives by seed, beside a fake
    ran: list[str] = field(default_factory=list)  # cells in the order in which they ended

    def in_place_of_ray(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        monkeypatch.setattr(Executor, "run", lambda executor, jobs: self(executor, jobs))
        return self

    def __call__(self, executor: Executor, jobs: Jobs) -> None:
        report, tracking = executor.on_progress, executor.tracking
        order, out, done = random.Random(self.seed), list[Job](), 0
        while True:
            while len(out) < self.width and (job := jobs.next()) is not None:
                out.append(job)
            if not out:
                assert jobs.finished
                assert jobs.total - jobs.ended == done
                return
            if self.die_after is not None and len(self.ran) >= self.die_after:
                raise KilledError
            job = out.pop(order.randrange(len(out)))
            done += not job.untrained
            if job.untrained and self.fake:
                figures = {"objective": self.untrained[job.experiment.config.seed % 5], **UNTRAINED}
                jobs.done(Outcome(job, "ok", figures=figures))
                continue
            self.ran.append(job.name)
            outcome = self.fake(job) if self.fake else execute_here(job)
            store_outcome(jobs, outcome, tracking)
            if report is not None:
                counts = (jobs.ended + done, jobs.total, 0.0)
                report(CellDone(job.name, job.label, outcome.status, None, 1.0, *counts))


def last(job: Job, **settings: Any) -> dict[str, Any]:
    """Run a job like a trial process and return its last report."""
    reports: list[dict[str, Any]] = []
    work(job, reports.append, **settings)
    return reports[-1]


def execute_here(job: Job) -> Outcome:
    """Run a job like a trial process."""
    outcome: Outcome = last(job)["outcome"]
    return outcome


def make_job(store: Path, **changes: Any) -> Job:
    """Return the job of a small run."""
    config = Fields.of("simclr").build({**SMALL, "evaluation.protocols": ["knn"], **changes})
    return Job("cell", "label", Experiment(config), store)


@pytest.fixture
def unpriced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without an estimate, which runs a round."""
    monkeypatch.setattr(Executor, "cost", lambda *_: None)


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Replace Ray in `tune` and `sweep`."""

    def use(**settings: Any) -> InOneProcess:
        return InOneProcess(**settings).in_place_of_ray(monkeypatch)

    return use
