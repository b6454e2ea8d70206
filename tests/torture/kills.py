"""Kill drivers, trial processes, Ray's own processes and terminals; check the stores.

Run by hand; pytest does not collect it:

    python tests/torture/kills.py FOLDER [KILLS [SEED]]

The same small sweep runs again and again, each time into a new store and with a few kills: in
turn with a Ray of its own, and on a cluster of a head without CPUs and two nodes of one CPU. One
kill of five comes while the driver starts, the others while cells run or when the last one ends.

After every kill each row that was there is still there, byte for byte, and none is torn; a driver
that was not killed itself ends with the right exit code. After every sweep, and once more the same
command, its rows are those of an undisturbed one, but for times; no process that a killed command
had started is alive; and no temporary file or folder is left.
"""

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
from typing import IO, Any

import psutil

QUICK = {  # a lost node is noticed within seconds
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_worker_niceness": "0",  # on a busy machine Ray's 15 would starve the trials
    "RAY_USAGE_STATS_ENABLED": "0",
}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-for-this-script-alone"}
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
    "started_at", "finished_at", "wall_seconds", "train_seconds", "peak_memory_bytes",
    "resumes", "argv", "git_sha",
}  # fmt: skip
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
PARTS = ("raylet", "gcs_server")
KINDS = ("driver", "hangup", "terminal", "worker", *PARTS)
"""Kills of a sweep with a Ray of its own; on a cluster there is also "node"."""
CODES = {"driver": {-9}, "hangup": {0, 143}, **{part: {0, 3} for part in PARTS}}
"""Exit codes after a kill; 0 where the last cell had just ended, so that nothing was cut short."""
SECONDS_TO_DIE = 10.0
KILLS_PER_SWEEP = 4
"""More would mostly hit the last cell; a cell whose process died five times counts as failed."""


class Cluster:
    """A cluster in a process of its own, since Ray's core ends a process whose gcs_server dies."""

    def __init__(self, log: IO[bytes], place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **TOKEN, "RAY_TMPDIR": str(place), "TMPDIR": str(place)},
        )
        assert self.process.stdout is not None
        self.pids = json.loads(self.process.stdout.readline())
        self.address = self.pids.pop("address")

    def replace_node(self) -> None:
        """Kill one of the two nodes with CPUs, and add another."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("node", file=self.process.stdin, flush=True)
        self.process.stdout.readline()

    def end(self) -> None:
        """Stop all nodes."""
        nodes = descendants(self.process)
        with suppress(OSError, subprocess.TimeoutExpired):
            self.process.communicate(timeout=60)
        self.process.kill()
        for node in nodes:
            with suppress(psutil.NoSuchProcess):
                node.kill()


def host_cluster() -> None:
    """Keep a cluster up until stdin is closed; replace a node for every line of it."""
    from ray.cluster_utils import Cluster as RayCluster

    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = RayCluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    pids = {kind: cluster.head_node.all_processes[kind][0].process.pid for kind in PARTS}
    print(json.dumps({"address": cluster.address, **pids}), flush=True)
    for number, _ in enumerate(sys.stdin):
        cluster.remove_node(nodes.pop(number % 2), allow_graceful=False)
        nodes.append(cluster.add_node(**NODE))
        print("replaced", flush=True)
    cluster.shutdown()


class Torture:
    """The sweeps that run one after the other, and the counts so far."""

    def __init__(self, folder: Path, short: Path, seed: int) -> None:
        self.folder, self.short, self.random = folder, short, random.Random(seed)
        self.log = (folder / "log").open("ab")
        self.cluster: Cluster | None = None
        self.kills: Counter[tuple[str, str]] = Counter()
        self.seen: dict[Path, bytes] = {}
        self.begun: dict[int, psutil.Process] = {}
        (folder / "grid.yaml").write_text(GRID, encoding="utf-8")

    def start(self, store: Path) -> subprocess.Popen[bytes]:
        """Start the command as a process; `cat` stands in for its terminal."""
        settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "fedbench", "sweep", "--grid", self.folder / "grid.yaml"]
        command += [*settings, "--store", store, "--json"]
        cluster, token = self.cluster, {} if self.cluster is None else TOKEN
        command += ["--concurrency", "2"] if cluster is None else ["--address", cluster.address]
        self.terminal = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=self.log)
        assert self.terminal.stdin is not None
        self.began = time.monotonic()
        self.driver = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=self.terminal.stdin,
            start_new_session=True,
            env={**os.environ, **token},
        )
        self.terminal.stdin.close()
        return self.driver

    def until_it_works(self, store: Path) -> bool:
        """Wait for the first round that the driver's cells do; False if it ends before."""
        started = time.time()
        while self.driver.poll() is None:
            touched = [path.stat().st_mtime for path in (store / "cells").glob("*/history.jsonl")]
            if max(touched, default=0.0) > started:
                return True
            time.sleep(0.05)
        return False

    def measure(self, store: Path) -> None:
        """Run an undisturbed sweep; note how long the driver takes to start and to work."""
        driver = self.start(store)
        self.until_it_works(store)
        self.starting = time.monotonic() - self.began
        driver.communicate()
        self.working = time.monotonic() - self.began - self.starting
        if driver.returncode != 0:
            raise SystemExit(f"the undisturbed sweep ended with {driver.returncode}")

    def kill(self, store: Path) -> str:
        """Kill a process at a random moment, or close the terminal; return what followed."""
        driver, cluster = self.driver, self.cluster
        moment, seconds = "starting", self.starting
        if self.random.random() > 0.2 and self.until_it_works(store):
            moment, seconds = "working", 1.1 * self.working
        with suppress(subprocess.TimeoutExpired):
            driver.wait(self.random.uniform(0, seconds))
            return ""  # it has ended
        kind = self.random.choice([*KINDS, "node"] if cluster is not None else KINDS)
        theirs = descendants(driver)
        self.begun |= {child.pid: child for child in theirs}
        if kind == "worker":
            everybody = theirs if cluster is None else descendants(cluster.process)
            targets = [p for p in everybody if program_of(p).startswith("ray::ImplicitFunc")]
        elif kind in PARTS and cluster is not None:
            targets = [psutil.Process(cluster.pids[kind])]
        else:
            targets = [child for child in theirs if program_of(child) == kind]
        began = time.monotonic()
        if kind in ("worker", *PARTS) and not targets:  # Ray is not up yet
            kind = "driver"
        if kind == "node" and cluster is not None:
            cluster.replace_node()
        elif kind == "terminal":
            self.terminal.kill()
        elif kind == "hangup":
            os.killpg(driver.pid, signal.SIGHUP)
        else:
            (driver if kind == "driver" else self.random.choice(targets)).kill()
        self.kills[kind, moment] += 1
        if kind == "driver":
            _, alive = psutil.wait_procs(theirs, SECONDS_TO_DIE)
            if alive:
                left = [program_of(process) for process in alive]
                raise SystemExit(f"{left} outlive the driver by {SECONDS_TO_DIE} s")
        if kind not in CODES:
            return f"{kind} while {moment}"
        printed, _ = driver.communicate()
        codes = CODES[kind]
        if kind == "hangup" and (moment == "starting" or printed):
            codes = codes | {-signal.SIGHUP}  # the interpreter has not our handler yet, or no more
        if driver.returncode not in codes:
            raise SystemExit(f"{kind}: the driver ended with {driver.returncode}; see the log")
        if cluster is not None and kind in PARTS:
            cluster.end()
            self.cluster = Cluster(self.log, self.short / "ray")
        after = time.monotonic() - began
        return f"{kind} while {moment} (exit code {driver.returncode} after {after:.1f} s)"

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

    def sweep(self, store: Path, kills: int) -> None:
        """Run a sweep until it is complete, with at most `kills` kills."""
        self.seen = {}
        driver, done = self.start(store), 0
        while done < kills and (said := self.kill(store)):
            done += 1
            print(f"{store.name}: {said}, {self.check(store)} rows", flush=True)
            if driver.poll() is not None:
                driver = self.start(store)
        out, _ = driver.communicate()
        self.check(store)
        if driver.returncode != 0:
            raise SystemExit(f"{store}: ended with {driver.returncode}; the log says why")
        if failed := [cell["error"] for cell in json.loads(out)["cells"] if cell["error"]]:
            raise SystemExit(f"{store}: {failed}")
        out, _ = self.start(store).communicate()  # an earlier start may have swept before a kill
        if json.loads(out)["to_run"]:
            raise SystemExit(f"{store}: a complete sweep runs again")
        _, alive = psutil.wait_procs(list(self.begun.values()), 10.0)
        if alive:
            raise SystemExit(f"{store}: still alive: {[program_of(process) for process in alive]}")
        self.begun.clear()
        left = [path for path in store.rglob(".*") if path.is_file()]
        left += (self.short / "tmp").iterdir()
        if left:
            raise SystemExit(f"{store}: left over: {left}")


def descendants(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return the processes that a process and its children have started."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def program_of(process: psutil.Process) -> str:
    """Return the program of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return Path(*process.cmdline()[:1]).name
    return ""


def rows(store: Path) -> list[dict[str, Any]]:
    """Return the rows without the columns that may differ."""
    from fedbench.bench.results.store.store import Store

    return [row.model_dump(exclude=TIMES) for row in Store(store).rows()]


def main(folder: str, kills: str = "100", seed: str = "0") -> None:
    """Repeat sweeps until there have been so many kills."""
    root, short = Path(folder).resolve(), Path(tempfile.mkdtemp(prefix="fbt-"))
    for place in (root, short / "tmp", short / "ray"):
        place.mkdir(parents=True, exist_ok=True)
    os.environ.update(QUICK, TMPDIR=str(short / "tmp"))
    torture, sweeps = Torture(root, short, int(seed)), 0
    try:
        torture.measure(root / "reference")
        reference = rows(root / "reference")
        print(f"undisturbed: {torture.starting:.0f} s to start, {torture.working:.0f} s to work")
        while (missing := int(kills) - torture.kills.total()) > 0:
            sweeps += 1
            store = root / f"sweep-{sweeps}"
            if sweeps % 2 == 0:
                torture.cluster = Cluster(torture.log, short / "ray")
            torture.sweep(store, min(missing, KILLS_PER_SWEEP))
            if rows(store) != reference:
                raise SystemExit(f"{store}: other rows than the undisturbed ones")
            print(f"{store.name}: complete, nothing left over", flush=True)
            shutil.rmtree(store)
            if torture.cluster is not None:
                torture.cluster.end()
                torture.cluster = None
    finally:
        torture.driver.kill()
        if torture.cluster is not None:
            torture.cluster.end()
        shutil.rmtree(short, ignore_errors=True)
    print(f"{torture.kills.total()} kills in {sweeps} sweeps: {dict(torture.kills)}")


if __name__ == "__main__":
    host_cluster() if sys.argv[1:] == ["--cluster"] else main(*sys.argv[1:])
