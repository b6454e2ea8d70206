"""Kill drivers, trial processes and nodes at random moments of small sweeps; nothing may be lost.

Run by hand; pytest does not collect it:

    python tests/torture/kills.py FOLDER [KILLS [SEED]]

A cluster of a head without CPUs and two nodes of one CPU runs the same small sweep again and again,
each time into a new store. After every kill: each row that was there is still there, byte for byte,
and none is torn. After every sweep: its rows are those of an undisturbed one, but for times.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

QUICK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-token-for-this-script-alone",
}
GRID = """
grid: kills
description: small
axes: {data.alpha: [0.1, 1.0, 100.0]}
methods: [simclr, supervised]
seeds: [0]
"""
SMALL = {
    "data.train_subset": 100,
    "data.test_subset": 40,
    "data.num_clients": 4,
    "federation.num_rounds": 12,
    "client.local_epochs": 4,
    "model.width": 4,
    "evaluation.objective_max_examples": 40,
}
TIMES = {
    *("started_at", "finished_at", "wall_seconds", "train_seconds", "peak_memory_bytes"),
    *("resumes", "argv", "git_sha"),
}
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class Torture:
    """The cluster, the sweep that runs on it, and what has been seen so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        from ray.cluster_utils import Cluster

        self.folder, self.random = folder, random.Random(seed)
        head = {**NODE, "num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]
        self.kills: Counter[str] = Counter()
        self.seen: dict[Path, bytes] = {}
        (folder / "grid.yaml").write_text(GRID, encoding="utf-8")

    def start(self, store: Path) -> subprocess.Popen[bytes]:
        """The command, as a process."""
        settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "fedbench", "sweep", "--grid", self.folder / "grid.yaml"]
        command += [*settings, "--store", store, "--address", self.cluster.address, "--json"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=log)

    def kill(self, driver: subprocess.Popen[bytes]) -> str:
        """One of the three, at random."""
        kind = self.random.choice(["driver", "worker", "node"])
        if kind == "worker":
            ours = psutil.Process().children(recursive=True)  # the nodes', and nobody else's
            trials = [process for process in ours if _is_trial(process)]
            if not trials:
                kind = "driver"
            else:
                self.random.choice(trials).kill()
        if kind == "node":
            lost = self.nodes.pop(self.random.randrange(2))
            self.cluster.remove_node(lost, allow_graceful=False)
            self.nodes.append(self.cluster.add_node(**NODE))
        if kind == "driver":
            driver.send_signal(signal.SIGKILL)
            driver.wait()
        self.kills[kind] += 1
        return kind

    def check(self, store: Path) -> int:
        """Rows only ever come, whole; returns how many there are."""
        from fedbench.bench.results.store import Store

        for path, data in self.seen.items():
            if path.read_bytes() != data:
                raise SystemExit(f"{path} has changed")
        if problems := Store(store).problems():
            raise SystemExit(f"unreadable: {problems}")
        self.seen = {path: path.read_bytes() for path in (store / "rows").glob("*.parquet")}
        return len(self.seen)


def _is_trial(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[0].startswith("ray::ImplicitFunc")
    except (psutil.Error, IndexError):
        return False


def rows(store: Path) -> list[dict[str, Any]]:
    """Without what may differ."""
    from fedbench.bench.results.store import Store

    return [row.model_dump(exclude=TIMES) for row in Store(store).rows()]


def main(folder: str, kills: str = "100", seed: str = "0") -> None:
    """Until there have been so many kills."""
    short = Path(tempfile.mkdtemp(prefix="fbt-"))
    (short / "ray").mkdir()
    os.environ.update(QUICK, RAY_TMPDIR=str(short))
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    torture = Torture(root, int(seed))
    sweeps = 0
    try:
        began = time.monotonic()
        torture.start(root / "reference").communicate()
        length = time.monotonic() - began
        reference = rows(root / "reference")
        print(f"undisturbed: {len(reference)} rows in {length:.0f} s", flush=True)
        while sum(torture.kills.values()) < int(kills):
            sweeps += 1
            store, torture.seen = root / f"sweep-{sweeps}", {}
            driver = torture.start(store)
            while True:
                pause = torture.random.uniform(0.1, 0.8) * length
                try:
                    out, _ = driver.communicate(timeout=pause)
                    break
                except subprocess.TimeoutExpired:
                    kind = torture.kill(driver)
                found = torture.check(store)
                print(f"sweep {sweeps}: {kind} after {pause:.0f} s, {found} rows", flush=True)
                if driver.poll() is not None:
                    driver = torture.start(store)
            torture.check(store)
            answer = json.loads(out) if out else {}
            if rows(store) != reference:
                failed = [cell["error"] for cell in answer.get("cells", ()) if cell["error"]]
                raise SystemExit(f"{store}: other rows than the undisturbed ones; {failed}")
            left = [p for p in store.rglob("*") if p.name.startswith(".driver")]
            print(f"sweep {sweeps}: complete, {len(left)} marks left", flush=True)
            shutil.rmtree(store)
    finally:
        torture.cluster.shutdown()
        shutil.rmtree(short, ignore_errors=True)
    print(f"{dict(torture.kills)} kills in {sweeps} sweeps: nothing lost, nothing torn")


if __name__ == "__main__":
    main(*sys.argv[1:])
