"""W5: overhead of a trial of a study, and time of a command before its first round."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from perf.context import RIVAL_ENV, Context, fresh_folder
from perf.measure import Result, log
from perf.turn import ROOT

SET = {
    "data.train_subset": 200,
    "data.test_subset": 100,
    "model.width": 4,
    "model.stem_stride": 2,
    "federation.num_rounds": 1,
}
"""Digits and a tiny net: a trial's work is a fraction of a second."""


def trials(context: Context) -> Result:
    """Compare a study of tiny trials, two at a time, with trivial ones of plain Ray Tune."""
    result, sizes = Result(), (1, 2) if context.smoke else (8, 24)
    for _ in range(1 if context.smoke else min(context.repeats, 3)):
        walls: dict[tuple[str, int], float] = {}
        for kind in ("fedbench", "tune", "work"):
            for size in sizes:
                found = _child(context, kind, size)
                walls[kind, size] = found["wall"]
                log(f"{kind}, {size} trials: {found}")
                if size == sizes[-1] and "first" in found:
                    result.add(f"{kind} first step s", found["first"])
            per_trial = (walls[kind, sizes[1]] - walls[kind, sizes[0]]) / (sizes[1] - sizes[0])
            result.add(f"{kind} s/trial", per_trial)
    work = [seconds / 2 for seconds in result.values["work s/trial"]]  # two run at a time
    pairs = zip(result.values["fedbench s/trial"], work, strict=True)
    result.values["fedbench s/trial beyond work"] = [wall - own for wall, own in pairs]
    result.notes.append(
        f"wall time of {sizes[1]} trials less that of {sizes[0]}, per trial, two at a time; work:"
        " the same runs one after the other in one process, halved"
    )
    return result


def command_start(context: Context) -> Result:
    """Time `fedbench run simclr` on the demo preset until round 1, a bound of its first step."""
    result = Result()
    for repeat in range(1 if context.smoke else context.repeats + 1):
        store = fresh_folder(context.cache)
        command = [sys.executable, "-m", "fedbench", "run", "simclr", "--store", str(store), "-q"]
        if context.smoke:
            command += [word for key, value in SET.items() for word in ("--set", f"{key}={value}")]
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not list(store.glob("cells/*/round-*.safetensors")):
            if process.poll() not in (None, 0):
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        process.wait()
        if repeat or context.smoke:  # the first one fills the caches of files
            result.add("end of round 1 s", seconds)
            result.add("whole command s", time.perf_counter() - began)
    return result


def _child(context: Context, kind: str, size: int) -> dict[str, float]:
    folder = fresh_folder(context.cache)
    command = [sys.executable, "-m", "perf.trials", kind, str(size), str(folder)]
    environment = {**os.environ, **RIVAL_ENV, "PYTHONPATH": str(ROOT)}
    began = time.time()
    done = subprocess.run(
        [*command, str(began)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "wall": time.time() - began}


def _study(size: int, folder: Path, began: float) -> dict[str, float]:
    import fedbench
    from fedbench.bench.tuning.events import CellDone, CellProgress

    first: list[float] = []

    def watch(event: object) -> None:
        if isinstance(event, CellProgress | CellDone) and not first:
            first.append(time.time() - began)

    fedbench.tune("simclr", set=SET, trials=size, store=folder, concurrency=2, on_progress=watch)
    return {"first": first[0]}


def _work(size: int, folder: Path, began: float) -> dict[str, float]:
    import fedbench

    for seed in range(size):
        changes = {**SET, "evaluation.protocols": [], "evaluation.untrained": False}
        fedbench.run("simclr", set=changes, seed=seed, store=folder, workers=1)
    return {}


def _tune(size: int, folder: Path, began: float) -> dict[str, float]:
    import ray
    from ray import tune

    def trivial(config: dict[str, Any]) -> None:
        tune.report({"value": config["x"], "at": time.time()})

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    results = tune.Tuner(
        trivial,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=size, metric="value", mode="max"),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    ).fit()
    return {"first": min(each.metrics["at"] for each in results if each.metrics) - began}


if __name__ == "__main__":
    _kind, _size, _folder, _began = sys.argv[1:]
    _call = {"fedbench": _study, "tune": _tune, "work": _work}[_kind]
    _found = _call(int(_size), Path(_folder), float(_began))
    print(json.dumps(_found))
