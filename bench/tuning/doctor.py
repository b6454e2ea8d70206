"""Checks of this machine, or of a cluster, before anything is run."""

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
_DEVICES = Path(os.sep, "dev")
_LITTLE_MEMORY, _LITTLE_DISK, _LITTLE_SHM = 2e9, 2e9, 100e6


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: of the part that was checked.
        status: `ok`, `warning` (fedbench works, but perhaps not as intended), or `problem`.
        detail: state of that part.
        remedy: advice to the user; empty if none is needed.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Checkup:
    """All checks, with the exit code of the first problem, else 0."""

    checks: tuple[Check, ...]
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `fedbench doctor --json`."""
        return {"ok": self.exit_code == 0, "checks": [asdict(check) for check in self.checks]}


def checkup(store: Store, data_dir: Path | None = None, address: str | None = None) -> Checkup:
    """Run all checks; changes nothing.

    Args:
        store: the store that results would go to.
        data_dir: cache of data sets; None = the default one.
        address: of a Ray cluster, to check its nodes too; None = start Ray here.
    """
    checks: list[Check] = []
    code = 0
    parts: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("packages", _packages),
        ("methods", _methods),
        ("processor", _processor),
        ("gpu", _gpus),
        ("numeric platform", _numerics),
        ("store", lambda: _store(store)),
        ("data", lambda: _data(data_dir)),
        ("ray", lambda: _ray(address)),
    ]
    for name, check_part in parts:
        try:
            checks += check_part()
        except FedbenchError as err:
            checks.append(Check(name, "problem", str(err)))
            code = code or err.exit_code
    if any(check.status == "problem" for check in checks):
        code = code or ResourceError.exit_code
    return Checkup(tuple(checks), code)


def _packages() -> Iterator[Check]:
    from fedbench.bench.tuning.ray.nodes import versions

    installed = versions()
    yield Check("python", "ok", platform.python_version())
    missing = [name for name, version in installed.items() if version is None]
    if missing:
        detail = f"missing: {', '.join(missing)}"
        yield Check("packages", "problem", detail, "reinstall fedbench")
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


def _numerics() -> Iterator[Check]:
    import torch

    from fedbench.bench.system.numerics import measure

    measured = measure("cuda" if torch.cuda.is_available() else "cpu")
    detail = f"{measured} ({measured.numpy_blas}; {measured.torch_blas}; {measured.precision})"
    yield Check("numeric platform", "ok", detail)


def _gpus() -> Iterator[Check]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = "torch sees none" if built else "torch is built without CUDA"
        present = sorted(path.name for path in _DEVICES.glob("nvidia[0-9]*"))
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not present:
            yield Check("gpu", "ok", f"none ({reason}): runs use the processor")
        elif hidden in ("", "-1"):
            detail = (
                f"CUDA_VISIBLE_DEVICES={hidden} hides {', '.join(present)}: runs use the processor"
            )
            yield Check("gpu", "ok", detail)
        else:
            needs = (
                f"a driver for CUDA {built}, or torch for an older CUDA"
                if built
                else "CUDA's torch"
            )
            detail = f"/dev has {', '.join(present)}, but {reason}: runs use the processor"
            yield Check("gpu", "warning", detail, f"install {needs}")
        return
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        yield Check("gpu", "ok", f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB")


def _store(store: Store) -> Iterator[Check]:
    store.check_writable()
    problems = store.problems()
    folder = store.root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{store.root}: {len(store.rows())} rows, {free / 1e9:.1f} GB free"
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
    yield Check("data", "ok", detail, "`fedbench datasets` shows how to get others")


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
        detail = "no token: everybody who reaches the cluster's port can run code on it"
        yield Check("authentication", "warning", detail, f"{auth_state()}; docs/cluster.md")
    yield from _nodes(address)


def _ray_here() -> Iterator[Check]:
    from fedbench.bench.tuning.ray.session import ray_session

    with ray_session(1):
        import ray

        offered = ray.cluster_resources()
    yield Check("ray", "ok", f"starts on this machine ({offered.get('CPU', 0):g} CPU for the test)")


def _nodes(address: str) -> Iterator[Check]:
    from fedbench.bench.tuning.ray.nodes import report_nodes
    from fedbench.bench.tuning.ray.session import ray_session

    with ray_session(None, address):
        reports = report_nodes(gpus=True)
    yield Check("ray", "ok", f"{address}: {len(reports)} nodes")
    for report in reports:
        offers = [f"{report.resources.get(name, 0):g} {name}" for name in ("CPU", "GPU")]
        facts = report.facts
        if facts:
            offers.append(f"{facts['memory_bytes'] / 1e9:.0f} GB of memory")
            offers += sorted(set(facts["gpus"] or ()))
        name, detail = f"node {report.name}", ", ".join(offers)
        if report.problems:
            detail = "; ".join((detail, *report.problems))
            yield Check(name, "problem", detail, "install the same packages as here on every node")
        elif report.differences:
            detail = f"{detail}; {', '.join(report.differences)}"
            yield Check(name, "warning", detail, "results may differ in their last digits")
        else:
            yield Check(name, "ok", detail)
