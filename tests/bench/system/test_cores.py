"""The quotas of cgroups v1 and v2 count where they hold: here, or in a group above."""

import os
from pathlib import Path

import psutil
import pytest

from fedbench.bench.system import cores
from fedbench.bench.system.cores import cpu_quota, usable_cores

NESTED = {"kube/cpu.max": "350000 100000", "kube/pod/cpu.max": "max 100000"}


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/kube/pod", NESTED, 4),  # of 3.5
        ("0::/kube/pod", NESTED | {"kube/pod/cpu.max": "20000 100000"}, 1),
        ("0::/kube/other", NESTED | {"cpu.max": "800000 100000"}, 4),
        ("0::/elsewhere", NESTED, None),
        ("0::/docker/0123abc", {"cpu.max": "150000 100000"}, 2),  # its own is the root it sees
        ("0::/../../other", {"cpu.max": "150000 100000"}, 2),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1"}, None),
        ("4:cpu,cpuacct:/d/1", {"cpu,cpuacct/d/cpu.cfs_quota_us": "250000"}, 3),
        ("1:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "200000", "unified/cpu.max": "100000 50000"}, 2),
        ("3:cpuset:/\n2:cpuacct:/", {"cpuset/cpu.cfs_quota_us": "100000"}, None),
    ],
)
def test_quotas(own: str, files: dict[str, str], quota: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        if name.endswith("quota_us"):
            file.with_name("cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == quota
    assert cpu_quota(tmp_path / "groups", tmp_path / "absent") is None  # not Linux


def test_the_smallest_of_cores_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 8)
    for affinity, quota, usable in ((16, None, 8), (6, None, 6), (6, 3, 3), (6, 12, 6)):
        allowed = {*range(affinity)}
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, a=allowed: a, raising=False)
        monkeypatch.setattr(cores, "cpu_quota", lambda q=quota: q)
        assert usable_cores() == usable
