"""Cores that this process may use: of the machine, its affinity and the quotas of containers."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

MAX_WORKERS, MAX_LANES = 1024, 256  # of one run; a larger number is a slip of the finger
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the number of physical cores that this process may use; at least 1.

    The smallest of the machine's cores, the cores of the process' affinity (`taskset`, cpusets) and
    the CPU quota of its cgroups (`docker --cpus`, limits of Kubernetes, `CPUQuota` of systemd).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = [psutil.cpu_count(logical=False), affinity, cpu_quota()]
    return max(1, min(count or 1 for count in counts if count is not None))


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int | None:
    """Return the CPUs that the cgroups of this process may use, rounded up; None = no quota.

    Of v1 and v2 alike the smallest quota counts from the process' own cgroup up to the root, since
    a cgroup has what its parents leave it. A container may see its own cgroup as the root, under
    which the path that the kernel names does not exist.

    Args:
        groups: where cgroups are mounted.
        own: the kernel's list of this process' cgroups, lines such as `0::/a/b`, `4:cpu:/a/b`.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return None
    quotas = [
        quota
        for line in lines
        for folder in _folders(groups, *line.split(":", 2)[1:])
        if (quota := _quota(folder)) is not None
    ]
    return math.ceil(min(quotas)) if quotas else None


def _folders(groups: Path, controllers: str, path: str) -> Iterator[Path]:
    """Yield the folder of a cgroup and its parents, wherever a system mounts them."""
    if controllers and "cpu" not in controllers.split(","):
        return
    # Beside v1, v2 has a folder of its own; v1 has one by controller, whose links may be missing.
    roots = (groups / controllers, groups / "cpu") if controllers else (groups, groups / "unified")
    steps = [step for step in PurePosixPath(path).parts if step not in ("/", "..")]
    for root in dict.fromkeys(roots):
        yield from (root.joinpath(*steps[:count]) for count in range(len(steps), -1, -1))


def _quota(folder: Path) -> float | None:
    """Return the CPUs that one cgroup may use; None = without a bound, or no cgroup is here."""
    try:
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((folder / name).read_text().strip() for name in names)
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
