"""Kill drivers, trial processes, Ray's own processes and terminals; check the stores.

Run by hand; pytest does not collect it:

    python tests/torture/kills.py FOLDER [KILLS [SEED]]

The same small sweep runs again and again, each time into a new store and with a few kills: in
turn with a Ray of its own, and on a cluster of a head without CPUs and two nodes of one CPU. A kill
waits for its moment, drawn beforehand: while the driver starts, while cells run, or when the last
of them ends.

After every kill each row that was there is still there, byte for byte, and none is torn; a driver
that was not killed itself ends with the right exit code. After every sweep, and once more the same
command, its rows are those of an undisturbed one, but for times; no process that a killed command
had started is alive; and no temporary file or folder is left.
"""

import json
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
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
    *("started_at", "finished_at", "wall_seconds", "train_seconds", "peak_memory_bytes"),
    *("resumes", "argv", "git_sha"),
}
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
MOMENTS = ("starting", "working", "ending")
SHARES = (2, 6, 2)
"""Weight of each moment in the draw of the next kill."""
KINDS = ("driver", "hangup", "terminal", "worker", "raylet", "gcs_server")
"""Kills of a sweep with a Ray of its own; on a cluster there is also "node"."""
CODES = {"driver": {-9}, "hangup": {0, 143}, "raylet": {0, 3}, "gcs_server": {0, 3}}
"""Exit codes after a kill; 0 where the last cell had just ended, so that nothing was cut short."""
POLL_SECONDS, LONGEST_SECONDS = 0.05, 1200.0
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
            env={**os.environ, **TOKEN, "RAY_TMPDIR": str(place), "TMPDIR": str(place)},
        )
        self.pids = json.loads(self._answer())
        self.address = self.pids.pop("address")

    def replace_node(self) -> None:
        """Kill one of the two nodes with CPUs, and add another."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"node\n")
        self.process.stdin.flush()
        self._answer()

    def processes(self) -> list[psutil.Process]:
        """Return the processes of all nodes."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def end(self) -> None:
        """Stop all nodes."""
        processes = self.processes()
        with suppress(OSError, subprocess.TimeoutExpired):
            self.process.communicate(timeout=60)
        self.process.kill()
        self.process.wait()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _answer(self) -> bytes:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the cluster has ended by itself")
        return line


def host_cluster() -> None:
    """Keep a cluster up until stdin is closed; replace a node for every line of it."""
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster as RayCluster

    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = RayCluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    kinds = (ray_constants.PROCESS_TYPE_RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER)
    pids = {kind: cluster.head_node.all_processes[kind][0].process.pid for kind in kinds}
    print(json.dumps({"address": cluster.address, **pids}), flush=True)
    for number, _ in enumerate(sys.stdin):
        cluster.remove_node(nodes.pop(number % 2), allow_graceful=False)
        nodes.append(cluster.add_node(**NODE))
        print("replaced", flush=True)
    cluster.shutdown()


class Driver:
    """A running command, its stderr on a terminal of its own."""

    def __init__(self, command: list[str], log: IO[bytes], token: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, **token, "TERM": "dumb"},
        )
        os.close(slave)
        self._log, self._open = log, True
        self._reader = threading.Thread(target=self._copy, daemon=True)
        self._reader.start()

    def hang_up(self) -> None:
        """Close the terminal; as nobody sends SIGHUP, only writing to it fails."""
        self._open = False
        self._reader.join()

    def end(self) -> bytes:
        """Wait for the end; return what was printed."""
        out, _ = self.process.communicate()
        self._reader.join()
        return out

    def _copy(self) -> None:
        while self._open:
            if not select.select([self._master], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the last process that had it open has ended
                break
            self._log.write(data)
            self._log.flush()
        os.close(self._master)


class Torture:
    """The sweeps that run one after the other, and the counts so far."""

    def __init__(self, folder: Path, temporary: Path, seed: int) -> None:
        self.folder, self.temporary, self.random = folder, temporary, random.Random(seed)
        self.log = (folder / "log").open("ab")
        self.cluster: Cluster | None = None
        self.kills: Counter[tuple[str, str]] = Counter()
        self.seen: dict[Path, bytes] = {}
        self.begun: dict[int, psutil.Process] = {}
        self.planned = 0
        self.driver: Driver | None = None
        self.starting_seconds = self.working_seconds = 0.0
        (folder / "grid.yaml").write_text(GRID, encoding="utf-8")

    def start(self, store: Path) -> Driver:
        """Start the command as a process."""
        settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "fedbench", "sweep", "--grid", self.folder / "grid.yaml"]
        command += [*settings, "--store", store, "--json"]
        if self.cluster is None:
            command += ["--concurrency", "2"]
        else:
            command += ["--address", self.cluster.address]
        token = {} if self.cluster is None else TOKEN
        self.driver = Driver(list(map(str, command)), self.log, token)
        return self.driver

    def measure(self, store: Path) -> None:
        """Run an undisturbed sweep; store its rows and the driver's times to start and to work."""
        driver, began = self.start(store), time.monotonic()
        while self.moment(store, driver) == "starting":
            time.sleep(POLL_SECONDS)
        self.starting_seconds = time.monotonic() - began
        driver.end()
        if driver.process.returncode != 0:
            raise SystemExit(f"the undisturbed sweep ended with {driver.process.returncode}")
        self.working_seconds = time.monotonic() - began - self.starting_seconds
        self.planned = len(rows(store))

    def moment(self, store: Path, driver: Driver) -> str:
        """Return the phase of the driver; "ending" covers the last cells that end together."""
        if driver.process.poll() is not None:
            return "over"
        num_rows = len(list((store / "rows").glob("*.parquet")))
        try:
            began = psutil.Process(driver.process.pid).create_time()
        except psutil.NoSuchProcess:
            return "over"
        touched = (path.stat().st_mtime for path in (store / "cells").glob("*/history.jsonl"))
        if max(touched, default=0.0) <= began:
            return "starting"
        return "ending" if self.planned and num_rows >= self.planned - 1 else "working"

    def wait(self, store: Path, driver: Driver) -> str:
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
            driver.process.wait(rest)
        return self.moment(store, driver)

    def kill(self, driver: Driver, moment: str) -> str:
        """Kill a process at random, or close the terminal; return the kind and what followed."""
        process, cluster = driver.process, self.cluster
        kind = self.random.choice([*KINDS, "node"] if cluster is not None else KINDS)
        theirs: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            theirs = psutil.Process(process.pid).children(recursive=True)
        self.begun |= {child.pid: child for child in theirs}
        everybody = theirs if cluster is None else cluster.processes()
        if kind in ("worker", "raylet", "gcs_server"):
            if kind == "worker":
                targets = [child for child in everybody if _is_trial(child)]
            elif cluster is None:
                targets = [child for child in everybody if _name(child) == kind]
            else:
                targets = [child for child in everybody if child.pid == cluster.pids[kind]]
            if targets:
                self.random.choice(targets).kill()
            else:  # Ray is not up yet
                kind = "driver"
        began = time.monotonic()
        if kind == "node" and cluster is not None:
            cluster.replace_node()
        elif kind == "terminal":
            driver.hang_up()
        elif kind == "hangup":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGHUP)
        elif kind == "driver":
            process.kill()
        self.kills[kind, moment] += 1
        if kind not in CODES:
            return kind
        driver.end()
        seconds = time.monotonic() - began
        codes = CODES[kind]
        if (kind, moment) == ("hangup", "starting"):
            codes = codes | {-signal.SIGHUP}  # before the interpreter has come to our handler
        if process.returncode not in codes:
            raise SystemExit(f"{kind}: the driver ended with {process.returncode}; see the log")
        if cluster is not None and kind in cluster.pids:
            cluster.end()
            self.cluster = Cluster(self.log, self.temporary.parent / "ray")
        return f"{kind} (exit code {process.returncode} after {seconds:.1f} s)"

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

    def check_leftovers(self, store: Path) -> None:
        """Check that neither processes nor temporary files and folders are left."""
        _, alive = psutil.wait_procs(list(self.begun.values()), 10.0)
        if alive:
            raise SystemExit(f"{store}: still alive: {[_name(process) for process in alive]}")
        self.begun.clear()
        left = [path for path in store.rglob(".*") if path.is_file()]
        left += self.temporary.iterdir()
        if left:
            raise SystemExit(f"{store}: left over: {left}")

    def end(self) -> None:
        """Stop every process."""
        if self.driver is not None:
            self.driver.process.kill()
        if self.cluster is not None:
            self.cluster.end()


def _index(moment: str) -> int:
    return MOMENTS.index(moment) if moment in MOMENTS else len(MOMENTS)


def _is_trial(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[0].startswith("ray::ImplicitFunc")
    except (psutil.Error, IndexError):
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def rows(store: Path) -> list[dict[str, Any]]:
    """Return the rows without the columns that may differ."""
    from fedbench.bench.results.store.store import Store

    return [row.model_dump(exclude=TIMES) for row in Store(store).rows()]


def one_sweep(torture: Torture, store: Path, kills: int) -> None:
    """Run a sweep until it is complete, with at most `kills` kills."""
    torture.seen = {}
    driver, done = torture.start(store), 0
    while True:
        moment = torture.wait(store, driver) if done < kills else "over"
        if moment == "over":
            out = driver.end()
            break
        kind, done = torture.kill(driver, moment), done + 1
        print(f"{store.name}: {kind} while {moment}, {torture.check(store)} rows", flush=True)
        if driver.process.poll() is not None:
            driver = torture.start(store)
    torture.check(store)
    if driver.process.returncode != 0:
        code = driver.process.returncode
        raise SystemExit(f"{store}: ended with {code}; {torture.folder}/log says why")
    if failed := [cell["error"] for cell in json.loads(out)["cells"] if cell["error"]]:
        raise SystemExit(f"{store}: {failed}")
    again = torture.start(store)  # an earlier start may have swept before the last kill
    if json.loads(again.end())["to_run"]:
        raise SystemExit(f"{store}: a complete sweep runs again")
    torture.check_leftovers(store)


def main(folder: str, kills: str = "100", seed: str = "0") -> None:
    """Repeat sweeps until there have been so many kills."""
    short = Path(tempfile.mkdtemp(prefix="fbt-"))
    temporary = short / "tmp"
    temporary.mkdir()
    (short / "ray").mkdir()
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    began, sweeps = time.monotonic(), 0
    os.environ.update(QUICK, TMPDIR=str(temporary))
    torture = Torture(root, temporary, int(seed))
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
            if sweeps % 2 == 0 and torture.cluster is None:
                torture.cluster = Cluster(torture.log, short / "ray")
            one_sweep(torture, store, min(missing, KILLS_PER_SWEEP))
            if rows(store) != reference:
                raise SystemExit(f"{store}: other rows than the undisturbed ones")
            print(f"{store.name}: complete, nothing left over", flush=True)
            shutil.rmtree(store)
            if torture.cluster is not None:
                torture.cluster.end()
                torture.cluster = None
    finally:
        torture.end()
        shutil.rmtree(short, ignore_errors=True)
    for (kind, moment), count in sorted(torture.kills.items()):
        print(f"{kind} while {moment}: {count}")
    print(
        f"{torture.kills.total()} kills in {sweeps} sweeps, {time.monotonic() - began:.0f} s:"
        " no row lost, none torn, all tables equal, no process, file or folder left"
    )


if __name__ == "__main__":
    host_cluster() if sys.argv[1:] == ["--cluster"] else main(*sys.argv[1:])
