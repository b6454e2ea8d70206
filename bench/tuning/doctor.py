"""What this machine, or a cluster, has for fedbench and what it lacks, before anything is run."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import FedbenchError, ResourceError

Status = Literal["ok", "warning", "problem"]
_LITTLE_MEMORY, _LITTLE_DISK, _LITTLE_SHM = 2e9, 2e9, 100e6


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        status: `ok`, `warning` (things work, but perhaps not as meant), or `problem`.
        detail: what was found.
        remedy: what to do about it; empty if nothing.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Checkup:
    """All checks; `exit_code` is that of the first problem, else 0."""

    checks: tuple[Check, ...]
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench doctor --json` prints."""
        return {"ok": self.exit_code == 0, "checks": [asdict(check) for check in self.checks]}


def checkup(store: Store, data_dir: Path | None = None, address: str | None = None) -> Checkup:
    """Look at everything, changing nothing.

    Args:
        store: where results are to go.
        data_dir: cache of data sets; None = the default one.
        address: of a Ray cluster, whose nodes are asked too; None = start Ray here.
    """
    found: list[Check] = []
    code = 0
    parts: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("packages", _packages),
        ("methods", _methods),
        ("processor", _processor),
        ("gpu", _gpus),
        ("store", lambda: _store(store)),
        ("data", lambda: _data(data_dir)),
        ("ray", lambda: _ray(address)),
    ]
    for name, look in parts:
        try:
            found += look()
        except FedbenchError as err:
            found.append(Check(name, "problem", str(err)))
            code = code or err.exit_code
    if any(check.status == "problem" for check in found):
        code = code or ResourceError.exit_code
    return Checkup(tuple(found), code)


def _packages() -> Iterator[Check]:
    from fedbench.bench.tuning.ray.nodes import versions

    installed = versions()
    yield Check("python", "ok", platform.python_version())
    missing = [name for name, version in installed.items() if version is None]
    if missing:
        yield Check(
            "packages", "problem", f"missing: {', '.join(missing)}", "install fedbench anew"
        )
    texts = [f"{name} {version}" for name, version in installed.items() if version is not None]
    yield Check("packages", "ok", ", ".join(texts))


def _methods() -> Iterator[Check]:
    from fedbench.bench.method import registry

    names = [name for name, entry in registry.entries().items() if not entry.is_addon]
    yield Check("methods", "ok", ", ".join(names))


def _processor() -> Iterator[Check]:
    from fedbench.bench.system.compute import physical_cores

    memory = psutil.virtual_memory()
    little = memory.available < _LITTLE_MEMORY
    yield Check(
        "processor",
        "warning" if little else "ok",
        f"{physical_cores()} cores, {memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB of"
        " memory free",
        "lower --workers or --concurrency" if little else "",
    )


def _gpus() -> Iterator[Check]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        lacks = "torch sees none" if built else "torch is built without CUDA"
        yield Check("gpu", "ok", f"none ({lacks}): runs use the processor")
        return
    for index in range(torch.cuda.device_count()):
        kind = torch.cuda.get_device_properties(index)
        yield Check("gpu", "ok", f"{kind.name}, {kind.total_memory / 1e9:.0f} GB")


def _store(store: Store) -> Iterator[Check]:
    store.check_writable()
    problems = store.problems()
    free = _free(store.root)
    rows = len(store.rows())
    text = f"{store.root}: {rows} rows, {free / 1e9:.1f} GB free"
    if free < _LITTLE_DISK:
        yield Check("store", "warning", text, "free some space, or choose another --store")
    else:
        yield Check("store", "ok", text)
    for problem in problems:
        yield Check("store", "warning", problem, "delete the file to run its cell again")


def _data(data_dir: Path | None) -> Iterator[Check]:
    from fedbench.bench.data.datasets import dataset_records

    ready = [record["name"] for record in dataset_records(data_dir) if record["cached"]]
    detail = f"ready: {', '.join(dict.fromkeys(['digits', *ready]))}"
    yield Check("data", "ok", detail, "`fedbench datasets` says how to get others")


def _free(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _ray(address: str | None) -> Iterator[Check]:
    from fedbench.bench.tuning.ray.session import auth_state, has_token, short_folder

    yield Check("temporary files", "ok", str(short_folder()))
    shm = Path(os.sep, "dev", "shm")
    if shm.is_dir() and (free := shutil.disk_usage(shm).free) < _LITTLE_SHM:
        detail = f"{free / 1e6:.0f} MB free: Ray falls back to the disk"
        yield Check("shared memory", "warning", detail, "docker run --shm-size=1g")
    if address is None:
        yield from _ray_here()
        return
    if not has_token() or os.environ.get("RAY_AUTH_MODE") == "disabled":
        remedy = f"{auth_state()}; docs/cluster.md"
        detail = "no token: whoever reaches the cluster's port can run code on it"
        yield Check("authentication", "warning", detail, remedy)
    yield from _nodes(address)


def _ray_here() -> Iterator[Check]:
    from fedbench.bench.tuning.ray.session import ray_session

    with ray_session(1):
        import ray

        offered = ray.cluster_resources()
    yield Check("ray", "ok", f"starts on this machine ({offered.get('CPU', 0):g} CPU for the test)")


def _nodes(address: str) -> Iterator[Check]:
    from fedbench.bench.tuning.ray.nodes import survey
    from fedbench.bench.tuning.ray.session import ray_session

    with ray_session(None, address):
        reports = survey(gpus=True)
    yield Check("ray", "ok", f"{address}: {len(reports)} nodes")
    for report in reports:
        offers = [f"{report.resources.get(name, 0):g} {name}" for name in ("CPU", "GPU")]
        facts = report.facts
        if facts:
            offers.append(f"{facts['memory_bytes'] / 1e9:.0f} GB of memory")
            offers += sorted(set((facts["gpus"] or {}).get("names", ())))
        name, detail = f"node {report.name}", ", ".join(offers)
        if report.problems:
            text = f"{detail}; {'; '.join(report.problems)}"
            yield Check(name, "problem", text, "install the same packages as here on every node")
        elif report.differences:
            text = f"{detail}; {', '.join(report.differences)}"
            yield Check(name, "warning", text, "results may differ in their last digits")
        else:
            yield Check(name, "ok", detail)
