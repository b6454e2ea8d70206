"""Execution of jobs by Ray Tune, on this machine or in a cluster."""

import os

from fedbench.bench.results.store.store import Store
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.tuning.cluster import Cluster, Share
from fedbench.bench.tuning.events import Began, OnProgress
from fedbench.bench.tuning.job import Jobs
from fedbench.bench.tuning.ray.nodes import Pool, share_in_cluster
from fedbench.bench.tuning.ray.session import ray_session
from fedbench.bench.tuning.ray.trial import driver_token

_ATTEMPTS_HERE, _ATTEMPTS_IN_CLUSTER = 2, 5
"""Starts of a job whose process dies; more in a cluster, which may lose its nodes."""


def run_jobs(
    jobs: Jobs,
    cluster: Cluster,
    share: Share,
    store: Store,
    on_progress: OnProgress | None,
    tracking: Tracking,
) -> None:
    """Run Ray Tune until there are no more jobs; without any, Ray is not started.

    Raises:
        ResourceError, StoreError: if jobs cannot be run here, or outcomes not be stored.
        Interrupted: after a signal.
    """
    if jobs.finished:
        return
    limit, address = cluster.at_a_time(share), cluster.address
    remaining = max(1, jobs.total - jobs.ended)  # runs beside those of the total may be left
    if on_progress is not None:
        at_a_time = None if limit is None else min(limit, remaining)
        on_progress(Began(jobs.total, jobs.ended, at_a_time, share.gpus))
    cpus = None if limit is None else limit * share.cpus
    with ray_session(cpus, address) as session:
        share = share_in_cluster(share)
        pool = Pool(share, limit)
        if address is not None:
            pool.wait(cluster.wait_for_nodes, lambda: session.ending)
            session.raise_if_ending()
        pool.check()
        varies = address is not None or share.gpus > 0
        if varies:
            pool.admit_new()
        # All at once: short jobs would end before a second process is up, and Tune would drop it.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(min(pool.slots(), remaining))
        from fedbench.bench.tuning.ray import search  # imports Ray: the session is ready

        searcher = search.JobSearcher(
            jobs,
            pool,
            session,
            varies=varies,
            attempts=_ATTEMPTS_HERE if address is None else _ATTEMPTS_IN_CLUSTER,
            patience=max(search.LOST_SECONDS, cluster.wait_for_nodes),
            token=None if address is None else driver_token(cluster.checkpoints or store.root),
            on_progress=on_progress,
            tracking=tracking,
        )
        while not searcher.exhausted:
            search.run_tuner(searcher, pool, session.folder.resolve() / "tune")
            if searcher.failure is not None:
                raise searcher.failure
            session.raise_if_ending()
