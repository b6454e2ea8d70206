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
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor, nn

from fedbench.bench.data.datasets import reopen
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.method import RoundPlan, net, registry
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.packages import DISTRIBUTION, installed_version
from fedbench.bench.system.regime import reproducible
from fedbench.bench.training.client import Task
from fedbench.bench.training.clients import Executor
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.setup import Setup
from fedbench.bench.tuning.doctor import first_run
from perf.context import dataset_folder
from perf.gpu_profile import kernels, launches, orchestra_parts
from perf.measure import log, save, spread
from perf.ours import W1, W3
from perf.plain import BATCH, Style, make_net, make_optimizer, simclr_loss, step

PAPER_IMAGES = 100 * 50 * 10 * 496
"""Images of a cross-device run: 100 rounds, 50 clients, 10 epochs, 31 batches of 16."""
METHODS = ("simclr", "orchestra", "simsiam", "byol")
REGIMES = ("fp32", "tf32", "bf16")
COMPILED = " compiled"
"""Suffix of a precision in whose runs `client.compile` is true."""
LANES: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("simclr", "bf16 compiled"): (1, 8, 16, 32),
    ("orchestra", "bf16 compiled"): (1, 16),
    ("simclr", "tf32 compiled"): (1, 16),
    ("simclr", "bf16"): (1, 16),
    ("simclr", "tf32"): (1, 16),
    ("simclr", "fp32"): (1, 16),
    ("orchestra", "bf16"): (1, 16),
}
"""Numbers of lanes by method and precision, the most telling first."""
_PROFILED = 10
"""Steps of each client under the profiler."""
CUT = {"cut": "no time was left"}
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Device, sizes and time of all parts."""

    device: torch.device
    folder: Path
    smoke: bool
    end: float
    keep: Callable[[dict[str, Any]], None] = lambda _: None  # called with a part's results so far

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
        compiled = precision.endswith(COMPILED)
        values = {**W3, **changes, "client.precision": precision.removesuffix(COMPILED)}
        values["client.compile"] = compiled
        values["client.batch_size"] = batch
        heads = {f"method.{name}": values.pop(f"method.{name}") for name in _HEADS}
        values |= {name: v for name, v in heads.items() if spec in METHODS}
        values |= {"data.num_clients": clients, "federation.participation": 1.0}
        config = Fields.of(spec).build(values)
        dataset = reopen(dataset_folder(None, self.folder, images, 500))
        return Experiment(config).on(dataset).setup

    def executor(self, setup: Setup, lanes: int | None = None) -> LaneExecutor:
        """Return an executor on the device: lanes, or one client after another."""
        return LaneExecutor(setup, self.device, self.folder / "clients", lanes)

    def until_end(self, items: Iterable[T], results: dict[str, Any]) -> Iterator[T]:
        """Return items while there is time; then note in the results that they are cut."""
        for item in items:
            if time.monotonic() > self.end:
                results.update(CUT)
                return
            yield item
            self.keep(results)

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
        server = setup.bound(self.device).server.data
        # More than one epoch, or begin and end of clients would weigh more than in a run.
        plan, config = RoundPlan(4 if self.on_gpu else 1), setup.config.data
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
    smoke = {("simclr", "fp32"): (1, 2), ("orchestra", "fp32"): (1, 2)}
    for spec, regime in bench.until_end(smoke if bench.smoke else LANES, results):
        setup = bench.setup(spec, regime)
        first: list[Tensor] = []
        for count in bench.until_end((smoke if bench.smoke else LANES)[spec, regime], results):
            executor = LaneExecutor(setup, bench.device, bench.folder / "clients", count)
            speeds = _speeds(bench, setup, executor, max(2, count))
            uploads = [upload.clone() for _, upload in executor.train(*bench.clients(setup, 2))]
            first = first or uploads
            results[f"{spec} {regime} {count}"] = {
                "images_per_second": spread(speeds),
                "paper_hours": PAPER_IMAGES / statistics.median(speeds) / 3600,
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


def _speeds(bench: Bench, setup: Setup, executor: Executor, clients: int) -> list[float]:
    """Train so many clients several times; return the images per second of each time."""
    work = partial(_train, executor, *bench.clients(setup, clients))
    work()  # records the steps
    times = [bench.timed(work, 1) for _ in range(1 if bench.smoke else 3)]
    return [steps * setup.config.client.batch_size / seconds for seconds, steps in times]


def _images_per_second(bench: Bench, setup: Setup, executor: Executor, clients: int) -> float:
    """Return the median of a few speeds."""
    return statistics.median(_speeds(bench, setup, executor, clients))


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


def profile(bench: Bench) -> dict[str, Any]:
    """Kernels, launches and overlap of SimCLR and Orchestra, and the latter's parts."""
    results: dict[str, Any] = {}
    regimes = ("bf16", "bf16 compiled") if bench.on_gpu else ("fp32",)
    settings = itertools.product(METHODS[:2], regimes, (1, 2 if bench.smoke else 16))
    for spec, regime, count in bench.until_end(settings, results):
        setup = bench.setup(spec, regime)
        executor = LaneExecutor(setup, bench.device, bench.folder / "clients", count)
        tasks, server = bench.clients(setup, count)
        work = partial(_train, executor, tasks, server)
        work()  # records the steps
        bench.wait()
        figures: dict[str, Any] = dict(launches(work)) if bench.on_gpu else {}
        bench.wait()
        if bench.on_gpu:  # a profiler's events of all steps would take minutes to read
            few = [replace(task, max_steps=_PROFILED) for task in tasks]
            figures |= kernels(partial(_train, executor, few, server))
        if spec == "orchestra":
            figures |= orchestra_parts(executor, partial(_in_round, executor, tasks, server))
        results[f"{spec} {regime} {count}"] = figures
        del executor, work
    return results


def _in_round(executor: Executor, tasks: list[Task], server: Tensor, number: int) -> int:
    """Train clients in another round; Orchestra's round 0 makes no steps."""
    plan = RoundPlan(0) if number == 0 else tasks[0].plan
    changed = [replace(task, round_index=number, plan=plan) for task in tasks]
    return _train(executor, changed, server)


def _kernels(bench: Bench, setup: Setup, executor: Executor) -> float:
    """Count the kernels of a client, per step."""
    work = partial(_train, executor, *bench.clients(setup, 1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps = work()
        bench.wait()
    count: int = sum(event.count for event in profile.key_averages())
    return count / max(1, steps)


def bare(bench: Bench) -> dict[str, Any]:
    """A plain SimCLR step without views and without a federation: eagerly, and as a CUDA graph."""
    results: dict[str, Any] = {}
    for bf16 in (False, True) if bench.on_gpu else (False,):
        style = Style("resnet8" if bench.smoke else "resnet18", bf16)
        net = make_net(style).to(bench.device)
        optimizer = make_optimizer(net)
        views = [torch.randn(BATCH, 3, 32, 32, device=bench.device) for _ in range(2)]
        repeats = 2 if bench.smoke else 60
        eagerly = partial(
            _repeat, repeats, partial(step, net, optimizer, views[0], views[1], style)
        )
        eagerly()
        speeds = [repeats * BATCH / bench.timed(eagerly, 1)[0] for _ in range(3)]
        name = "bf16" if bf16 else "fp32"
        results[f"{name}, eager loop"] = {"images_per_second": spread(speeds)}
        if bench.on_gpu:
            replays = partial(_repeat, 5 * repeats, _recorded(net, optimizer, views, style).replay)
            speeds = [5 * repeats * BATCH / bench.timed(replays, 1)[0] for _ in range(3)]
            results[f"{name}, CUDA graph"] = {"images_per_second": spread(speeds)}
    return results


def _repeat(times: int, work: Callable[[], Any]) -> None:
    for _ in range(times):
        work()


def _recorded(
    net: nn.ModuleDict, optimizer: torch.optim.Optimizer, views: list[Tensor], style: Style
) -> torch.cuda.CUDAGraph:
    first, second = views

    def once() -> None:
        optimizer.zero_grad(set_to_none=False)
        simclr_loss(net, first, second, style).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph


def evaluation(bench: Bench) -> dict[str, Any]:
    """Seconds of k-NN and the linear probe on the device and on the CPU."""
    setup, results = bench.setup("simclr"), dict[str, Any]()
    for device in dict.fromkeys((bench.device, torch.device("cpu"))):
        work = partial(
            evaluate, setup, setup.bound(device), lambda _: None, ("knn", "linear"), device
        )
        seconds, metrics = bench.timed(work, 2)
        results[str(device)] = {"seconds": seconds, "linear_acc": metrics["linear_acc"]}
    return results


PARTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "environment": environment,
    "methods": methods,
    "profile": profile,
    "lanes": lanes,
    "steps": steps,
    "views": views,
    "rounds": rounds,
    "bare": bare,
    "evaluation": evaluation,
}


def _keep(out: Path, content: dict[str, Any], part: str, results: dict[str, Any]) -> None:
    save(out, content | {part: results})


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
                keep = partial(_keep, options.out, content, part)
                result = CUT if began > bench.end else PARTS[part](replace(bench, keep=keep))
            except Exception:  # the other parts are worth their minutes
                result = {"error": traceback.format_exc()}
            seconds = time.monotonic() - began
            content[part] = {"seconds": round(seconds, 1), **result}
            save(options.out, content)
            log(f"{part}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
