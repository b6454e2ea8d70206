"""Where a row was made: versions, hardware, commit. Recorded, never part of its identity."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from fedbench.bench.config import canonical_json

_PACKAGES = ("torch", "torchvision", "numpy", "ray", "optuna", "pyarrow", "scikit-learn")


@cache
def provenance() -> dict[str, str | None]:
    """The row's columns `git_sha package_version env_json hardware`."""
    env = {"python": platform.python_version(), "platform": platform.platform()}
    env |= {name: found for name in _PACKAGES if (found := _version(name)) is not None}
    if torch.version.cuda:
        env["cuda"] = torch.version.cuda
    return {
        "git_sha": _git_sha(),
        "package_version": _version("fedbench") or "unknown",
        "env_json": canonical_json(env),
        "hardware": _hardware(),
    }


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far; workers are not counted."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hardware() -> str:
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    parts = [f"{platform.machine()}, {cores} cores, {psutil.virtual_memory().total / 1e9:.0f} GB"]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        parts.append(f"{count} x {torch.cuda.get_device_name(0)}")
    return "; ".join(parts)


def _git_sha() -> str | None:
    """The commit of the checkout that this code runs from; None when it is installed as a wheel."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
