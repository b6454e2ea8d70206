"""Kill drivers, trial processes and nodes at random moments of small sweeps; check the stores.

Run by hand; pytest does not collect it:

    python tests/torture/kills.py FOLDER [KILLS [SEED]]

A cluster of a head without CPUs and two nodes of one CPU runs the same small sweep again and again,
each time into a new store and with a few kills. A kill waits for its moment, drawn beforehand:
while the driver starts, while cells run, or when the last of them ends. After every kill: each row
that was there is still there, byte for byte, and none is torn. After every sweep: its rows are
those of an undisturbed one, but for times, and no temporary file is left.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

QUICK = {  # a lost node is noticed within seconds
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_worker_niceness": "0",  # on a busy machine Ray's 15 would starve the trials
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
MOMENTS = ("starting", "working", "ending")
SHARES = (2, 6, 2)
"""Weight of each moment in the draw of the next kill."""
POLL_SECONDS, LONGEST_SECONDS = 0.05, 600.0
KILLS_PER_SWEEP = 4
"""More would mostly hit the last cell; a cell whose process died five times counts as failed."""


class Torture:
    """The cluster, the sweep that runs on it, and the counts so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        from ray.cluster_utils import Cluster

        self.folder, self.random = folder, random.Random(seed)
        head = {**NODE, "num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]
        self.kills: Counter[tuple[str, str]] = Counter()
        self.seen: dict[Path, bytes] = {}
        self.planned = 0
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.starting_seconds = self.working_seconds = 0.0
        (folder / "grid.yaml").write_text(GRID, encoding="utf-8")

    def start(self, store: Path) -> subprocess.Popen[bytes]:
        """Start the command as a process."""
        settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "fedbench", "sweep", "--grid", self.folder / "grid.yaml"]
        command += [*settings, "--store", store, "--address", self.cluster.address, "--json"]
        with (self.folder / "log").open("ab") as log:
            self.drivers.append(
                subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=log)
            )
        return self.drivers[-1]

    def measure(self, store: Path) -> None:
        """Run an undisturbed sweep; store its rows and the driver's times to start and to work."""
        driver, began = self.start(store), time.monotonic()
        while self.moment(store, driver) == "starting":
            time.sleep(POLL_SECONDS)
        self.starting_seconds = time.monotonic() - began
        driver.communicate()
        if driver.returncode != 0:
            raise SystemExit(f"the undisturbed sweep ended with {driver.returncode}")
        self.working_seconds = time.monotonic() - began - self.starting_seconds
        self.planned = len(rows(store))

    def moment(self, store: Path, driver: subprocess.Popen[bytes]) -> str:
        """Return the phase of the driver; "ending" covers the last cells that end together."""
        if driver.poll() is not None:
            return "over"
        if not list((store / "cells").glob(f".driver-*-{driver.pid}-*")):
            return "starting"
        num_rows = len(list((store / "rows").glob("*.parquet")))
        if self.planned and num_rows >= self.planned - 1:
            return "ending"
        began = psutil.Process(driver.pid).create_time()
        touched = (path.stat().st_mtime for path in (store / "cells").glob("*/history.jsonl"))
        return "working" if max(touched, default=0.0) > began else "starting"

    def wait(self, store: Path, driver: subprocess.Popen[bytes]) -> str:
        """Wait until a random instant of a random moment; return the moment that was reached."""
        meant = self.random.choices(MOMENTS, SHARES)[0]
        length = {"starting": self.starting_seconds, "working": self.working_seconds}
        rest = self.random.uniform(0, 0.9) * length.get(meant, 2.0)
        limit = time.monotonic() + LONGEST_SECONDS
        while MOMENTS.index(meant) > _index(self.moment(store, driver)):
            if time.monotonic() > limit:
                raise SystemExit(f"{store}: not {meant} after {LONGEST_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        with suppress(subprocess.TimeoutExpired):
            driver.wait(rest)
        return self.moment(store, driver)

    def end(self) -> None:
        """Stop every process."""
        for driver in self.drivers:
            driver.kill()
        self.cluster.shutdown()

    def kill(self, driver: subprocess.Popen[bytes], moment: str) -> str:
        """Kill a driver, a trial process or a node, at random."""
        kind = self.random.choice(["driver", "worker", "node"])
        if kind == "worker":
            processes = psutil.Process().children(recursive=True)  # those of the nodes only
            trials = [process for process in processes if _is_trial(process)]
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
            driver.communicate()
        self.kills[kind, moment] += 1
        return kind

    def check(self, store: Path) -> int:
        """Check that rows are only added, and whole; return their number."""
        from fedbench.bench.results.store.store import Store

        for path, data in self.seen.items():
            if path.read_bytes() != data:
                raise SystemExit(f"{path} has changed")
        if problems := Store(store).problems():
            raise SystemExit(f"unreadable: {problems}")
        self.seen = {path: path.read_bytes() for path in (store / "rows").glob("*.parquet")}
        return len(self.seen)


def _index(moment: str) -> int:
    return MOMENTS.index(moment) if moment in MOMENTS else len(MOMENTS)


def _is_trial(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[0].startswith("ray::ImplicitFunc")
    except (psutil.Error, IndexError):
        return False


def rows(store: Path) -> list[dict[str, Any]]:
    """Return the rows without the columns that may differ."""
    from fedbench.bench.results.store.store import Store

    return [row.model_dump(exclude=TIMES) for row in Store(store).rows()]


def one_sweep(torture: Torture, store: Path, kills: int) -> Counter[str]:
    """Run a sweep until it is complete, with at most `kills` kills; count files left over."""
    torture.seen = {}
    driver, done = torture.start(store), 0
    while True:
        moment = torture.wait(store, driver) if done < kills else "over"
        if moment == "over":
            out, _ = driver.communicate()
            break
        kind, done = torture.kill(driver, moment), done + 1
        print(f"{store.name}: {kind} while {moment}, {torture.check(store)} rows", flush=True)
        if driver.poll() is not None:
            driver = torture.start(store)
    torture.check(store)
    if driver.returncode != 0:
        raise SystemExit(f"{store}: ended with {driver.returncode}; {torture.folder}/log says why")
    if failed := [cell["error"] for cell in json.loads(out)["cells"] if cell["error"]]:
        raise SystemExit(f"{store}: {failed}")
    left = [path for path in store.rglob(".*") if path.is_file()]
    return Counter("mark" if path.name.startswith(".driver") else "temporary" for path in left)


def main(folder: str, kills: str = "100", seed: str = "0") -> None:
    """Repeat sweeps until there have been so many kills."""
    short = Path(tempfile.mkdtemp(prefix="fbt-"))
    (short / "ray").mkdir()
    os.environ.update(QUICK, RAY_TMPDIR=str(short))
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    began, sweeps, left = time.monotonic(), 0, Counter[str]()
    torture = Torture(root, int(seed))
    try:
        torture.measure(root / "reference")
        reference = rows(root / "reference")
        print(
            f"undisturbed: {len(reference)} rows, start {torture.starting_seconds:.0f} s,"
            f" work {torture.working_seconds:.0f} s",
            flush=True,
        )
        while (missing := int(kills) - torture.kills.total()) > 0:
            sweeps += 1
            store = root / f"sweep-{sweeps}"
            left_over = one_sweep(torture, store, min(missing, KILLS_PER_SWEEP))
            left += left_over
            if rows(store) != reference:
                raise SystemExit(f"{store}: other rows than the undisturbed ones")
            print(f"{store.name}: complete; left over: {dict(left_over)}", flush=True)
            shutil.rmtree(store)
    finally:
        torture.end()
        shutil.rmtree(short, ignore_errors=True)
    for (kind, moment), count in sorted(torture.kills.items()):
        print(f"{kind} while {moment}: {count}")
    print(
        f"{torture.kills.total()} kills in {sweeps} sweeps, {time.monotonic() - began:.0f} s:"
        f" no row lost, none torn, all tables equal; left over: {dict(left)}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
