"""Where the time of local training goes on a GPU: kernels, launches, overlap, Orchestra's parts."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from fedbench.bench.nn.clustering import cluster_globally, random_units
from fedbench.bench.system import first_use
from fedbench.bench.training.lanes import LaneExecutor

Span = tuple[float, float]
BUSY = (1, 4, 8)
"""Numbers of kernels at work at the same time whose share of the time is told."""
_TOP = 40


def kernels(work: Callable[[], int]) -> dict[str, Any]:
    """Run some work, which returns its steps, and describe its kernels, per step.

    Times are microseconds. Bytes are no part: the profiler of torch does not read the counters.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        steps = max(1, work())
        torch.cuda.synchronize()
    names: dict[str, list[float]] = defaultdict(list)
    spans: list[Span] = []
    for event in profiled.events() or ():
        if event.device_type.name == "CUDA":
            spans.append((event.time_range.start, event.time_range.end))
            names[event.name].append(event.time_range.end - event.time_range.start)
    longest = sorted(names.items(), key=lambda item: -sum(item[1]))[:_TOP]
    return {
        "kernels": len(spans) / steps,
        "microseconds_in_kernels": sum(end - start for start, end in spans) / steps,
        "microseconds": (max(end for _, end in spans) - min(start for start, _ in spans)) / steps,
        "busy": {f"at least {count}": share for count, share in overlap(spans, BUSY).items()},
        "longest": [
            {"name": name[:120], "count": len(times) / steps, "microseconds": sum(times) / steps}
            for name, times in longest
        ],
    }


def overlap(spans: Iterable[Span], counts: Iterable[int]) -> dict[int, float]:
    """Return the share of the time, first start to last end, with so many spans at once.

    >>> overlap([(0, 4), (2, 6), (9, 10)], (1, 2))
    {1: 0.7, 2: 0.2}
    """
    edges = sorted(edge for start, end in spans for edge in ((start, 1), (end, -1)))
    lengths: dict[int, float] = defaultdict(float)
    active, last = 0, edges[0][0] if edges else 0.0
    for at, change in edges:
        lengths[active] += at - last
        active, last = active + change, at
    whole = sum(lengths.values()) or 1.0
    return {n: sum(v for k, v in lengths.items() if k >= n) / whole for n in counts}


@contextmanager
def timed_calls(owner: Any, name: str) -> Iterator[list[float]]:
    """Collect the host's seconds of each call of a function inside the block."""
    seconds: list[float] = []
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - began)

    with mock.patch.object(owner, name, timed):
        yield seconds


def launches(work: Callable[[], int]) -> dict[str, float]:
    """Run some work; return the host's microseconds per step, and those in launches of graphs."""
    with timed_calls(torch.cuda.CUDAGraph, "replay") as seconds:
        began = time.perf_counter()
        steps = max(1, work())
        host = time.perf_counter() - began
    return {
        "host_microseconds": 1e6 * host / steps,
        "launch_microseconds": 1e6 * sum(seconds) / max(1, len(seconds)),
    }


def orchestra_parts(executor: LaneExecutor, train: Callable[[int], int]) -> dict[str, float]:
    """Return the seconds of Orchestra's rounds, hooks and clustering, on its device and on the CPU.

    `train` trains the same clients in the round of this number and returns their steps.
    """
    runner = executor.runner
    device, method = runner.device, runner.setup.method
    results: dict[str, float] = {}
    for number in (0, 1):
        with ExitStack() as stack:
            hooks = {
                hook: stack.enter_context(timed_calls(type(method), hook))
                for hook in ("before_local", "after_local")
            }
            began = time.perf_counter()
            train(number)
            wait(device)
            results[f"round {number}"] = time.perf_counter() - began
        for hook, seconds in hooks.items():
            results[f"round {number}, {hook} of a client"] = sum(seconds) / max(1, len(seconds))
    rng = torch.Generator().manual_seed(0)
    points, centroids = random_units(400, 512, rng), random_units(32, 512, rng)
    for how in ("recorded", "plainly"):
        first_use.begin_run()
        first_use.switch_off({first_use.RECORDED_CLUSTERING: "timed"} if how == "plainly" else {})
        for place in dict.fromkeys((device, torch.device("cpu"))):
            inputs = points.to(place), centroids.to(place)
            for _ in range(2):  # the first one loads libraries, records and compares
                began = time.perf_counter()
                cluster_globally(*inputs)
                wait(place)
                taken = time.perf_counter() - began
            results[f"500 steps of clustering on {place.type}, {how}"] = taken
    return results


def wait(device: torch.device) -> None:
    """Wait until a device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
