"""Sweep on a Ray cluster of this machine: a node dies, or its GPUs are not there.

Runs as a separate program, since Ray's core reads its settings once per process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # on a busy machine its 15 would starve the trials
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-token-for-this-test-alone",
}
QUICK = {  # a lost node is noticed in seconds; too nervous for a real cluster
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "10",  # a live node may be slow on a loaded machine
    "RAY_health_check_initial_delay_ms": "500",
}


def with_a_lost_node(live_nodes: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """List the nodes, the first time with one more that is gone before it can be asked."""
    calls = count()

    def seen() -> list[Any]:
        lost = {"NodeID": "ab" * 28, "NodeManagerAddress": "lost", "Resources": {"CPU": 1.0}}
        return [*live_nodes(), *([] if next(calls) else [lost])]

    return seen


def main(store: str, arguments: str) -> None:
    """Sweep on nodes that are given by their resources; print what came out."""
    given = json.loads(arguments)
    folder = Path(tempfile.mkdtemp(prefix="fbt-"))
    (folder / "ray").mkdir()
    os.environ.update(SETTINGS, RAY_TMPDIR=str(folder), **(QUICK if given["kill"] else {}))
    from ray.cluster_utils import Cluster

    from fedbench.bench.results.store.store import Store
    from fedbench.bench.system.errors import FedbenchError
    from fedbench.bench.tuning.events import CellDone, CellProgress
    from fedbench.bench.tuning.grid import Grid
    from fedbench.bench.tuning.ray import nodes
    from fedbench.bench.tuning.sweep import sweep

    node = {"object_store_memory": 80 * 2**20}
    head = {**node, **given["nodes"][0], "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    result: dict[str, Any] = {"killed": 0}
    working: dict[str, float] = {}

    def watch(event: Any) -> None:
        """Kill the second node when both are at work."""
        if isinstance(event, CellProgress):
            working[event.id] = event.round / event.total
        if isinstance(event, CellDone):
            working.pop(event.id, None)
        # Two cells in the middle at once: a node holds one, so both nodes are at work.
        halfway = sum(0.05 < share < 0.8 for share in working.values())
        if halfway == 2 and not result["killed"] and given["kill"]:
            result["killed"] = 1
            threading.Thread(
                target=cluster.remove_node, args=(second,), kwargs={"allow_graceful": False}
            ).start()

    try:
        for resources in given["nodes"][1:]:
            second = cluster.add_node(**node, **resources)
        if given["kill"]:
            vars(nodes)["live_nodes"] = with_a_lost_node(nodes.live_nodes)
        done = sweep(
            Grid.model_validate(given["grid"]),
            store=Store(store),
            set=given["overrides"],
            address=cluster.address,
            gpus_per_trial=given["gpus"],
            on_progress=watch,
        )
        result["counts"] = [done.planned, done.skipped, done.done, done.failed]
    except FedbenchError as err:
        result.update(code=err.exit_code, error=str(err))
    finally:
        print(json.dumps(result))  # all that is on stdout
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
