"""Sweep on a Ray cluster of two nodes on this machine, one of which dies in the middle.

Runs as a separate program, since Ray's core reads its settings once per process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

QUICK = {  # a lost node is noticed in seconds; too nervous for a real cluster
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "10",  # a live node may be slow on a loaded machine
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-token-for-this-test-alone",
}


def with_a_lost_node(live_nodes: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """List the nodes, the first time with one more that is gone before it can be asked."""
    calls = count()

    def seen() -> list[Any]:
        lost = {"NodeID": "ab" * 28, "NodeManagerAddress": "lost", "Resources": {"CPU": 1.0}}
        return [*live_nodes(), *([] if next(calls) else [lost])]

    return seen


def main(store: str, arguments: str) -> None:
    """Sweep, kill the second node when both are at work, print what came out."""
    folder = Path(tempfile.mkdtemp(prefix="fbt-"))
    (folder / "ray").mkdir()
    os.environ.update(QUICK, RAY_TMPDIR=str(folder))
    from ray.cluster_utils import Cluster

    from fedbench.bench.results.store.store import Store
    from fedbench.bench.tuning import sweep as module
    from fedbench.bench.tuning.events import CellDone, CellProgress
    from fedbench.bench.tuning.grid import Grid
    from fedbench.bench.tuning.ray import nodes
    from fedbench.bench.tuning.ray.executor import run_jobs

    given = json.loads(arguments)
    if given["apart"]:  # the token lies where no trial looks, as if nodes did not see the store
        vars(module)["run_jobs"] = lambda *given, **rest: run_jobs(
            *given, **{**rest, "root": folder}
        )
    vars(nodes)["live_nodes"] = with_a_lost_node(vars(nodes)["live_nodes"])
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        second = cluster.add_node(**node)
        working: dict[str, float] = {}
        killed: list[float] = []

        def watch(event: Any) -> None:
            if isinstance(event, CellProgress):
                working[event.id] = event.round / event.total
            if isinstance(event, CellDone):
                working.pop(event.id, None)
            # Two cells in the middle at once: a node holds one, so both nodes are at work.
            halfway = sum(0.05 < share < 0.8 for share in working.values())
            if halfway == 2 and not killed and given["kill"]:
                killed.append(time.monotonic())
                threading.Thread(
                    target=cluster.remove_node, args=(second,), kwargs={"allow_graceful": False}
                ).start()

        result = module.sweep(
            Grid.model_validate(given["grid"]),
            store=Store(store),
            set=given["overrides"],
            address=cluster.address,
            checkpoint_dir=None if given["checkpoints"] is None else Path(given["checkpoints"]),
            on_progress=watch,
        )
        counts = [result.planned, result.skipped, result.done, result.failed]
        print(json.dumps({"counts": counts, "killed": len(killed)}))  # all that is on stdout
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
