"""Where the jobs of a command run, and what they would cost: one `Executor` a command."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fedbench.bench.execution.estimate import Estimator, start_seconds
from fedbench.bench.execution.execute import prepared
from fedbench.bench.experiment.common_options import Places
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.store import Store
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.cores import usable_cores
from fedbench.bench.system.errors import FedbenchError
from fedbench.bench.tuning.cluster import Cluster, Share, local_gpus
from fedbench.bench.tuning.events import CellsBegan, Estimating, OnProgress
from fedbench.bench.tuning.job import Job, Jobs
from fedbench.bench.tuning.ray.nodes import Pool
from fedbench.bench.tuning.ray.process import driver_token
from fedbench.bench.tuning.ray.session import ray_session

_ATTEMPTS_HERE, _ATTEMPTS_IN_CLUSTER = 2, 5
"""Starts of a job whose process dies; more in a cluster, which may lose its nodes."""
_RAY_SECONDS = 5.0
"""Start and end of Ray, mostly waits of fixed length: 2.1 to 3.1 s and 1.1 to 1.4 s, and Tune's
import. Measured with Ray 2.60 on one machine of 2 cores."""
_DEVICES = (1, 8, 64)
"""Numbers of devices with a finishing time, besides the number of this command."""


@dataclass(frozen=True)
class Cost:
    """Predicted cost of runs, on devices like this machine's.

    A device here is the share of a run: a core (or several), a GPU, or a part of one.
    """

    hours: float  # start, training and evaluation at the given concurrency
    device_hours: float  # all runs one after the other, without the start
    finish_hours: dict[int, float]  # number of devices -> time until the last run has ended
    bytes_up: int  # from clients to server, all runs
    bytes_down: int
    concurrency: int  # runs at a time
    device: str  # that was measured, `cpu` or `cuda`


@dataclass(frozen=True)
class Executor:
    """Runs the jobs of a sweep or a study by Ray Tune, on this machine or in a cluster."""

    store: Store  # that outcomes go to
    cluster: Cluster
    share: Share  # of each run
    tracking: Tracking
    on_progress: OnProgress | None = None

    @classmethod
    def of(
        cls,
        places: Places,
        cluster: Cluster,
        track: Sequence[str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Return the executor that the options of a command ask for."""
        store = places.open_store()
        share = cluster.share(places.device)
        return cls(store, cluster, share, Tracking(track or (), store), on_progress)

    def into(self, store: Store) -> Self:
        """Return the executor with another store for outcomes, of which no tracker hears."""
        return replace(self, store=store, tracking=Tracking((), store))

    @property
    def cells(self) -> Store:
        """The store whose folders have the checkpoints of runs."""
        return Store(self.cluster.checkpoints or self.store.root)

    def job(self, experiment: Experiment, **more: Any) -> Job:
        """Return the job of a run; `label` and others are given by name."""
        known: dict[str, Any] = {
            "name": experiment.ids.row,
            "store": self.store.root.resolve(),
            "checkpoints": self.cluster.checkpoints,
            "workers": self.cluster.workers,
            "lanes": self.cluster.lanes,
            "track": self.tracking.names,
        }
        return Job(experiment=experiment, **{**known, **more})

    def check(self, runs: Iterable[tuple[Experiment, str]]) -> None:
        """Refuse runs of which one could not begin, each with its label, before any does.

        Raises:
            FedbenchError: as `prepared`, with the label if there is one.
        """
        device, passed = "cuda" if self.share.gpus else "cpu", set[str]()
        for run, label in runs:
            try:
                prepared(run.on(run.dataset), device, passed)  # a copy, whose net goes with it
            except FedbenchError as err:
                err.args = (f"{err} (in {label})" if label else f"{err}",)
                raise

    def run(self, jobs: Jobs) -> None:
        """Run Ray Tune until there are no more jobs; without any, Ray is not started.

        Raises:
            ResourceError, StoreError: if jobs cannot be run here, or outcomes not be stored.
            Interrupted: after a signal.
        """
        if jobs.finished:
            return
        cluster, limit = self.cluster, self.cluster.at_a_time(self.share)
        remaining = max(1, jobs.total - jobs.ended)  # runs beside those of the total may be left
        if self.on_progress is not None:
            at_a_time = None if limit is None else min(limit, remaining)
            begin = CellsBegan(jobs.total, jobs.ended, at_a_time, self.share.gpus, jobs.checks)
            self.on_progress(begin)
        joined = cluster.address is not None
        cpus = None if limit is None else limit * self.share.cpus
        with ray_session(cpus, cluster.address) as session:
            pool = Pool(self.share, limit, joined=joined)
            pool.open(cluster.wait_for_nodes, lambda: session.ending)
            session.raise_if_ending()
            # All at once: short jobs would end before a second process is up, and Tune would drop
            # it.
            os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(min(pool.slots(), remaining))
            from fedbench.bench.tuning.ray import tuner  # imports Ray: the session is ready

            searcher = tuner.JobSearcher(
                jobs,
                pool,
                session,
                attempts=_ATTEMPTS_IN_CLUSTER if joined else _ATTEMPTS_HERE,
                patience=max(tuner.LOST_SECONDS, cluster.wait_for_nodes),
                token=driver_token(self.cells.root) if joined else None,
                on_progress=self.on_progress,
                tracking=self.tracking,
            )
            while not searcher.exhausted:
                tuner.run_tuner(searcher)
                if searcher.failure is not None:
                    raise searcher.failure
                session.raise_if_ending()

    @property
    def device(self) -> str:
        """The device of estimates: `cuda` if runs claim GPUs and this machine has any."""
        return "cuda" if self.share.gpus and local_gpus() else "cpu"

    def _timing(self, spec: str) -> None:
        if self.on_progress is not None:
            self.on_progress(Estimating(spec))

    def cost(self, runs: Sequence[Experiment], trained: Sequence[Experiment] = ()) -> Cost:
        """Estimate the cost of runs from a round of each distinct model; seeds change no cost.

        Of `trained` the store has the weights: they are evaluated only.
        """
        devices = choose_devices(self.device, self.share.cpus)
        methods = len({run.config.spec for run in (*runs, *trained)})
        estimator = Estimator(devices, self._timing, methods=methods)
        both = [*((True, run) for run in runs), *((False, run) for run in trained)]
        keys = [(t, run.config.model_copy(update={"seed": 0}).model_dump_json()) for t, run in both]
        distinct = dict(zip(keys, both, strict=True))
        estimates = {key: estimator(run, trains=t) for key, (t, run) in distinct.items()}
        costs = [estimates[key] for key in keys]
        at_a_time = self.cluster.at_a_time(self.share) or usable_cores()
        at_a_time = max(1, min(at_a_time, len(costs)))
        work = [cost.train_seconds + cost.evaluation_seconds for cost in costs]
        # This command, the trial processes, and Ray between them start one after the other.
        starting = 2 * start_seconds() + _RAY_SECONDS if costs else 0.0

        def finish(devices: int) -> float:
            return (starting + max(sum(work) / devices, *work, 0.0)) / 3600

        return Cost(
            hours=finish(at_a_time),
            device_hours=sum(work) / 3600,
            finish_hours={n: finish(n) for n in sorted({*_DEVICES, at_a_time})},
            bytes_up=sum(cost.bytes_up for cost in costs),
            bytes_down=sum(cost.bytes_down for cost in costs),
            concurrency=at_a_time,
            device=self.device,
        )
