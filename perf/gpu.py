"""Measure fedbench on one GPU within minutes and write everything into one file.

    python -m perf.gpu --minutes 9 --out FILE

Needs no network, no data set and neither Ray nor Optuna. Parts that no time is left for are named
in the file, which is written again after every part. `--device cpu --smoke` runs all parts in tiny
sizes, as a test does; a part that only a GPU has says so.
"""

import argparse
import itertools
import os
import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor

from fedbench.bench.data.datasets import reopen
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import build_config
from fedbench.bench.method import RoundPlan, net, registry
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.packages import DISTRIBUTION, installed_version
from fedbench.bench.system.regime import reproducible
from fedbench.bench.training.client import InProcess, Task
from fedbench.bench.training.lanes import LaneExecutor, in_process
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Executor
from fedbench.bench.tuning.doctor.first_runs import first_run
from perf.context import dataset_folder
from perf.measure import log, save
from perf.ours import W1, W3
from perf.plain import BATCH, Style, make_net, make_optimizer, simclr_loss

PAPER_IMAGES = 100 * 50 * 10 * 496
"""Images of a cross-device run: 100 rounds, 50 clients, 10 epochs, 31 batches of 16."""
METHODS = ("simclr", "orchestra", "simsiam", "byol")
REGIMES = ("fp32", "tf32", "bf16")
LANES = (1, 2, 4, 8, 16, 32)
CUT = {"cut": "no time was left"}
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Device, sizes and time of all parts."""

    device: torch.device
    folder: Path
    smoke: bool
    end: float

    @property
    def on_gpu(self) -> bool:
        """True on a real GPU."""
        return self.device.type == "cuda"

    @property
    def regimes(self) -> tuple[str, ...]:
        """Precisions to measure."""
        return REGIMES if self.on_gpu else REGIMES[:1]

    def setup(
        self, spec: str, precision: str = "fp32", batch: int = BATCH, *, small: bool = False
    ) -> Setup:
        """Return a run of ResNet-18 on random pixels; of W3 if `small`, tiny on `--smoke`."""
        first_use.begin_run()  # what the run before has refused says nothing here
        images, clients = (96, 3) if self.smoke else (10_000, 100) if small else (15_872, 32)
        changes = {} if self.smoke or small else W1
        values = {**W3, **changes, "client.precision": precision}
        values["client.batch_size"] = batch
        heads = {f"method.{name}": values.pop(f"method.{name}") for name in _HEADS}
        values |= {name: v for name, v in heads.items() if spec in METHODS}
        values |= {"data.num_clients": clients, "federation.participation": 1.0}
        config = build_config(spec, values)
        dataset = reopen(dataset_folder(None, self.folder, images, 500))
        return Experiment(config).on(dataset).setup

    def executor(self, setup: Setup, lanes: int | None = None) -> InProcess | LaneExecutor:
        """Return an executor on the device: lanes, or one client after another."""
        return in_process(setup, self.device, self.folder / "clients", lanes)

    def until_end(self, items: Iterable[T], results: dict[str, Any]) -> Iterator[T]:
        """Return items while there is time; then note in the results that they are cut."""
        for item in items:
            if time.monotonic() > self.end:
                results.update(CUT)
                return
            yield item

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def timed(self, work: Callable[[], T], repeats: int) -> tuple[float, T]:
        """Return the least time that some work takes, in seconds, and its last result."""
        seconds = []
        for _ in range(repeats):
            self.wait()
            began = time.perf_counter()
            result = work()
            self.wait()
            seconds.append(time.perf_counter() - began)
        return min(seconds), result

    def clients(self, setup: Setup, count: int) -> tuple[list[Task], Tensor]:
        """Return tasks of so many clients, or of all, and a server's vector on the device."""
        net = setup.make_net()
        server = setup.layout(net).bind(net, self.device).server.data
        plan, config = RoundPlan(setup.config.client.local_epochs), setup.config.data
        return [Task(k, 1, plan) for k in range(min(count, config.num_clients))], server


_HEADS = ("hidden_dim", "projection_dim")


def environment(bench: Bench) -> dict[str, Any]:
    """Versions and the GPU."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedbench": installed_version(DISTRIBUTION),
        "cores": os.cpu_count(),
        "device": str(bench.device),
    }
    if bench.on_gpu:
        gpu = torch.cuda.get_device_properties(bench.device)
        facts |= {
            "gpu": gpu.name,
            "memory_gb": round(gpu.total_memory / 2**30, 1),
            "processors": gpu.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def methods(bench: Bench) -> dict[str, Any]:
    """Every method for two rounds: eagerly on the device beside the CPU, and in lanes."""
    results = dict[str, Any]()
    specs = sorted(registry.specs(), key=lambda spec: ("+" in spec, spec))  # add-ons at the end
    for spec in bench.until_end(METHODS[:2] if bench.smoke else specs, results):
        try:
            results[spec] = asdict(first_run(spec, "fp32", bench.device))
        except ConfigError as err:
            results[spec] = {"refused": str(err)}
        except Exception:  # a method that fails is a result, and the others go on
            results[spec] = {"error": traceback.format_exc(limit=-3)}
    return results


def steps(bench: Bench) -> dict[str, Any]:
    """Images per second of eager local training, and kernels per step."""
    results: dict[str, Any] = {}
    for spec, regime in bench.until_end(itertools.product(METHODS, bench.regimes), results):
        setup = bench.setup(spec, regime)
        executor = bench.executor(setup)
        figures = {"images_per_second": _images_per_second(bench, setup, executor, 1)}
        if bench.on_gpu:
            figures["kernels_per_step"] = _kernels(bench, setup, executor)
        results[f"{spec} {regime}"] = figures
    return results


def lanes(bench: Bench) -> dict[str, Any]:
    """Images per second in lanes, their bits, and the hours of a run of the paper."""
    results: dict[str, Any] = {}
    counts = (1, 2) if bench.smoke else LANES
    settings = itertools.product(METHODS[:2], bench.regimes[::-1])
    for spec, regime in bench.until_end(settings, results):
        setup = bench.setup(spec, regime)
        first: list[Tensor] = []
        for count in bench.until_end(counts, results):
            executor = LaneExecutor(setup, bench.device, bench.folder / "clients", count)
            speed = _images_per_second(bench, setup, executor, max(2, count))
            uploads = [upload.clone() for _, upload in executor.train(*bench.clients(setup, 2))]
            first = first or uploads
            results[f"{spec} {regime} {count}"] = {
                "images_per_second": speed,
                "paper_hours": PAPER_IMAGES / speed / 3600,
                "same_bits_as_one_lane": all(map(torch.equal, first, uploads)),
                "lanes": executor.summary,
                "switched_off": first_use.switched_off(),
                "peak_gb": torch.cuda.max_memory_allocated() / 2**30 if bench.on_gpu else None,
            }
            del executor
    return results


def _train(executor: Executor, tasks: list[Task], server: Tensor) -> int:
    """Train clients and return the number of their steps."""
    return sum(trained.num_steps for trained, _ in executor.train(tasks, server))


def _images_per_second(bench: Bench, setup: Setup, executor: Executor, clients: int) -> float:
    """Train so many clients several times and return the best speed."""
    work = partial(_train, executor, *bench.clients(setup, clients))
    seconds, steps = bench.timed(work, 1 if bench.smoke else 3)
    return steps * setup.config.client.batch_size / seconds


def views(bench: Bench) -> dict[str, Any]:
    """Both views in one pass, as on GPUs, beside one pass for each, at two sizes of a batch."""
    results: dict[str, Any] = {}
    sizes = (BATCH,) if bench.smoke else (BATCH, 256)
    for batch, at_once in bench.until_end(itertools.product(sizes, (True, False)), results):
        setup = bench.setup("simclr", batch=batch)
        with mock.patch.object(net, "_in_one_pass", return_value=at_once):
            executor = bench.executor(setup)
            speed = _images_per_second(bench, setup, executor, 1)
        name = f"batch of {batch}, {'one pass' if at_once else 'two passes'}"
        results[name] = {"images_per_second": speed}
    return results


def rounds(bench: Bench) -> dict[str, Any]:
    """The clients of a round of W3, one after another and in lanes."""
    setup, results = bench.setup("simclr", small=True), dict[str, Any]()
    tasks, server = bench.clients(setup, 50)
    for count in (None, 2 if bench.smoke else 16):
        executor = bench.executor(setup, count)
        seconds, _ = bench.timed(partial(_train, executor, tasks, server), 2)
        name = "one after another" if count is None else f"{count} lanes"
        results[name] = {"clients": len(tasks), "seconds": seconds}
    return results


def busy(bench: Bench) -> dict[str, Any]:
    """Share of the time in which the GPU computes, for SimCLR in 16 lanes."""
    if not bench.on_gpu:
        return {"skipped": "only a GPU has kernels to see"}
    setup = bench.setup("simclr", "bf16")
    executor = LaneExecutor(setup, bench.device, bench.folder / "clients", 16)
    work = partial(_train, executor, *bench.clients(setup, 16))
    work()  # records the steps
    bench.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        seconds, _ = bench.timed(work, 1)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return {"seconds_profiled": seconds, "share": covered(spans) / 1e6 / seconds}


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans.

    >>> covered([(5, 6), (0, 2), (1, 3)])
    4.0
    """
    total, last = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


def _kernels(bench: Bench, setup: Setup, executor: Executor) -> float:
    """Count the kernels of a client, per step."""
    work = partial(_train, executor, *bench.clients(setup, 1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps = work()
        bench.wait()
    count: int = sum(event.count for event in profile.key_averages())
    return count / max(1, steps)


def bare(bench: Bench) -> dict[str, Any]:
    """A plain SimCLR step as one CUDA graph, without views and without a federation."""
    if not bench.on_gpu:
        return {"skipped": "only a GPU has graphs"}
    return {
        "bf16" if bf16 else "fp32": {"images_per_second": _graph_speed(bench, bf16)}
        for bf16 in (False, True)
    }


def _graph_speed(bench: Bench, bf16: bool) -> float:
    style = Style("resnet8" if bench.smoke else "resnet18", bf16)
    net = make_net(style).to(bench.device)
    optimizer = make_optimizer(net)
    first, second = (torch.randn(BATCH, 3, 32, 32, device=bench.device) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        simclr_loss(net, first, second, style).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    repeats = 300

    def replays() -> None:
        for _ in range(repeats):
            graph.replay()

    return repeats * BATCH / bench.timed(replays, 1)[0]


def evaluation(bench: Bench) -> dict[str, Any]:
    """Seconds of k-NN and the linear probe on the device and on the CPU."""
    setup, results = bench.setup("simclr"), dict[str, Any]()
    for device in dict.fromkeys((bench.device, torch.device("cpu"))):
        net = setup.make_net()
        binding = setup.layout(net).bind(net, device)
        work = partial(evaluate, setup, binding, lambda _: None, ("knn", "linear"), device)
        seconds, metrics = bench.timed(work, 2)
        results[str(device)] = {"seconds": seconds, "linear_acc": metrics["linear_acc"]}
    return results


PARTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "environment": environment,
    "methods": methods,
    "lanes": lanes,
    "steps": steps,
    "views": views,
    "rounds": rounds,
    "bare": bare,
    "evaluation": evaluation,
    "busy": busy,
}


def main() -> None:
    """Parse options, run the parts, write JSON after each."""
    parser = argparse.ArgumentParser(prog="python -m perf.gpu", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="no part starts, and no method, lane or step is measured, afterwards",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does everything run?")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --smoke tries every part without one")
    end = time.monotonic() + 60 * options.minutes
    content: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, reproducible(options.device):
        device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
        bench = Bench(device, Path(name), options.smoke, end)
        for part in options.only or PARTS:
            began = time.monotonic()
            try:
                result = CUT if began > bench.end else PARTS[part](bench)
            except Exception:  # the other parts are worth their minutes
                result = {"error": traceback.format_exc()}
            seconds = time.monotonic() - began
            content[part] = {"seconds": round(seconds, 1), **result}
            save(options.out, content)
            log(f"{part}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
