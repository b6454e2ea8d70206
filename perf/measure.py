"""Interleaved repeats, medians and ratios; description of the machine."""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from perf.turn import ROOT, Contender


@dataclass
class Result:
    """Numbers of one work, by name, and facts needed to read them."""

    # the value of each repeat: seconds of a unit, or what the name says
    values: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, *values: float) -> None:
        """Add repeats of a value."""
        self.values.setdefault(name, []).extend(values)

    def divide(self, name: str, above: str, below: str) -> None:
        """Record the ratio of two values, repeat by repeat, if both were measured.

        The ratio of processor seconds is added; it says more where others use the machine.
        """
        for unit, suffix in (("", ""), (" cpu s", ", cpu")):
            if above + unit in self.values and below + unit in self.values:
                pairs = zip(self.values[above + unit], self.values[below + unit], strict=True)
                self.ratios[name + suffix] = [a / b for a, b in pairs if b > 0]

    def as_dict(self) -> dict[str, Any]:
        """Return every repeat, the median and the range, for JSON."""
        return {
            "values": {name: spread(values) for name, values in self.values.items()},
            "ratios": {name: spread(values) for name, values in self.ratios.items()},
            "notes": self.notes,
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, lowest, highest and all."""
    rounded = [float(f"{value:.5g}") for value in values]
    return {
        "median": float(f"{statistics.median(values):.5g}"),
        "min": min(rounded),
        "max": max(rounded),
        "all": rounded,
    }


def interleave(result: Result, contenders: Sequence[Contender], repeats: int) -> None:
    """Start all, then have each do a unit in turn; every second cycle in reverse order.

    Adds `<name>`, `<name> cpu s` and `<name> foreign`: seconds per unit, processor seconds of all
    its processes, cores that others used. Once `<name> startup s` and `<name> MB`: until the first
    unit is over, and the most that the processes held meanwhile.
    """
    with ExitStack() as stack:
        for contender in contenders:
            stack.enter_context(contender)
            result.add(f"{contender.name} startup s", contender.first["startup"])
            result.add(f"{contender.name} MB", contender.peak_bytes / 1e6)
            log(f"{contender.name}: ready after {contender.first['startup']:.1f} s")
        log(f"all {len(contenders)} are ready")
        for repeat in range(repeats):
            for contender in contenders[:: -1 if repeat % 2 else 1]:
                unit = contender.unit()
                result.add(contender.name, unit["seconds"])
                result.add(f"{contender.name} cpu s", unit["cpu"])
                result.add(f"{contender.name} foreign", unit["foreign"])
                log(f"{contender.name}: {unit}")


def time_calls(result: Result, calls: Mapping[str, Callable[[], object]], repeats: int) -> None:
    """Measure functions in this process in turn; each is called once before."""
    for call in calls.values():
        call()
    for repeat in range(repeats):
        for name, call in list(calls.items())[:: -1 if repeat % 2 else 1]:
            began = time.perf_counter()
            call()
            result.add(name, time.perf_counter() - began)


def log(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Describe the machine: processor, memory, versions, commit; no name of a host."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "cpu": _cpu(),
        "cores": psutil.cpu_count(logical=True),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "ray", "optuna")},
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in info.read_text().splitlines())
    lines = {name.strip(): value.strip() for name, _, value in pairs}
    flags = set(lines.get("flags", "").split())
    units = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{lines.get('model name', 'unknown')} ({', '.join(units)})"


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
