"""The nodes of a running Ray: what each has, and whether trials there are as here."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedbench.bench.system.compute import physical_cores
from fedbench.bench.system.errors import ConfigError, ResourceError


@dataclass(frozen=True)
class Share:
    """What one trial claims of a node; a part of a GPU is a fraction."""

    cpus: int = 1
    gpus: float = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """As Ray counts."""
        return {"CPU": float(self.cpus), "GPU": float(self.gpus)}

    def fits(self, node: Mapping[str, float]) -> int:
        """How many such trials a node holds at a time."""
        need = self.resources.items()
        return min(int(node.get(name, 0) / asked + 1e-9) for name, asked in need if asked)

    def __str__(self) -> str:
        return _show({name: n for name, n in self.resources.items() if n or name == "CPU"})


def check_trial_resources(need: Share, address: str | None) -> None:
    """Refuse, before Ray starts, a trial that this machine cannot hold.

    Raises:
        ConfigError: for a negative share, or more than one GPU in parts.
        ResourceError: if it has too few; names what is asked for and what is there.
    """
    gpus_per_trial = need.gpus
    if need.cpus < 1:
        raise ConfigError(f"--cpus-per-trial: must be at least 1 (got {need.cpus})")
    if gpus_per_trial < 0 or (gpus_per_trial > 1 and gpus_per_trial != int(gpus_per_trial)):
        raise ConfigError(
            "--gpus-per-trial: must be 0, a fraction below 1, or a whole number"
            f" (got {gpus_per_trial:g})"
        )
    here = {"CPU": float(physical_cores()), "GPU": float(local_gpus()) if gpus_per_trial else 0.0}
    if address is None and not need.fits(here):
        raise ResourceError(
            f"a trial asks for {need}, this machine offers {_show(here)};"
            f" lower {need_option(need, here)}, or join a cluster with --address"
        )


def need_option(need: Share, best: Mapping[str, float]) -> str:
    """The option that asks for too much."""
    lacks_gpu = need.gpus > best.get("GPU", 0)
    return "--gpus-per-trial" if lacks_gpu else "--cpus-per-trial"


def live_nodes() -> list[dict[str, Any]]:
    """The nodes of the running Ray that are up."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_cluster(need: Share) -> None:
    """Refuse a trial that fits no single node of the running Ray.

    Raises:
        ResourceError: with what is asked for and the best that a node offers.
    """
    nodes = [node["Resources"] for node in live_nodes()]
    if not any(map(need.fits, nodes)):
        names = need.resources
        best = {name: max((node.get(name, 0) for node in nodes), default=0) for name in names}
        raise ResourceError(
            f"a trial asks for {need}, but no node of the cluster offers it (best per node:"
            f" {_show(best)}; {len(nodes)} nodes); lower {need_option(need, best)} or add a node"
        )


def cluster_slots(need: Share) -> int:
    """How many trials all nodes of the running Ray hold at a time; at least 1."""
    return max(1, sum(need.fits(node["Resources"]) for node in live_nodes()))


def local_gpus() -> int:
    """GPUs that torch sees on this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _show(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())


PACKAGES = (
    *("fedbench", "ray", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "optuna"),
    *("pyarrow", "pandas", "pydantic", "pyyaml", "safetensors", "psutil", "pillow"),
)
"""What trials import, directly or not."""
_SECONDS = 60.0


@dataclass(frozen=True)
class NodeReport:
    """One node.

    Attributes:
        node_id: Ray's name of it.
        address: its IP address.
        resources: what it offers to Ray.
        facts: `host python packages gpus memory_bytes shm_bytes disk_bytes`; empty if it did not
            answer.
        problems: what keeps a trial from running there.
        differences: versions that are not the driver's, which may change results' last digits.
    """

    node_id: str
    address: str
    resources: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.facts['host']} ({self.address})" if self.facts else self.address


def survey(*, gpus: bool = False) -> list[NodeReport]:
    """Ask every live node of the running Ray, all at once; one that dies meanwhile is left out.

    Args:
        gpus: ask torch for GPUs, which takes a node some seconds.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = live_nodes()
    task = ray.remote(num_cpus=0, max_retries=0)(_prober(PACKAGES, gpus))
    asked = {}
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        asked[node["NodeID"]] = task.options(scheduling_strategy=place).remote()
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=_SECONDS)
    reports = [_report(node, asked[node["NodeID"]]) for node in nodes]
    alive = {node["NodeID"] for node in live_nodes()}
    return [report for report in reports if report is not None and report.node_id in alive]


def check_software(need: Share) -> list[str]:
    """Refuse a cluster with a node that would be given trials and could not run them.

    Returns:
        One line for each node whose versions differ in a way that is no obstacle.

    Raises:
        ResourceError: names the node and what it lacks.
    """
    able = [report for report in survey() if need.fits(report.resources)]
    for report in able:
        if report.problems:
            raise ResourceError(
                f"node {report.name} cannot run trials: {'; '.join(report.problems)};"
                " `fedbench doctor --address …` shows every node"
            )
    return [f"node {r.name}: {', '.join(r.differences)}" for r in able if r.differences]


def _report(node: Mapping[str, Any], answer: Any) -> NodeReport | None:
    """None if the node died, which Ray may list as alive for some seconds more."""
    import ray

    resources = {k: v for k, v in node["Resources"].items() if k in ("CPU", "GPU", "memory")}
    base = NodeReport(node["NodeID"], str(node["NodeManagerAddress"]), resources)
    try:
        facts = ray.get(answer, timeout=0)
    except ray.exceptions.NodeDiedError:
        return None
    except ray.exceptions.GetTimeoutError:
        return _with(base, (f"does not answer within {_SECONDS:.0f} s",))
    except ray.exceptions.RayError as err:
        return _with(base, (" ".join(str(err).split())[:200],))
    problems, differences = compare(facts, resources)
    return NodeReport(base.node_id, base.address, resources, facts, problems, differences)


def _with(report: NodeReport, problems: tuple[str, ...]) -> NodeReport:
    return NodeReport(report.node_id, report.address, report.resources, {}, problems)


def compare(
    facts: Mapping[str, Any], resources: Mapping[str, float]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What keeps a node from running trials, and which versions are not those of this machine."""
    here, there = versions(PACKAGES), facts["packages"]
    problems = [f"{name} is not installed" for name in PACKAGES if here[name] and not there[name]]
    if there["fedbench"] and there["fedbench"] != here["fedbench"]:
        problems.append(f"fedbench is {there['fedbench']} there and {here['fedbench']} here")
    seen = facts["gpus"]
    if seen is not None and seen["count"] < resources.get("GPU", 0):
        problems.append(f"Ray offers {resources['GPU']:g} GPU, torch sees {seen['count']}")
    differences = [
        f"{name} {there[name]} (here {here[name]})"
        for name in PACKAGES[1:]
        if there[name] and here[name] and there[name] != here[name]
    ]
    if facts["python"] != platform.python_version():
        differences.append(f"python {facts['python']} (here {platform.python_version()})")
    return tuple(problems), tuple(differences)


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions; None for a package that is not there."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _prober(packages: tuple[str, ...], gpus: bool) -> Callable[[], dict[str, Any]]:
    """A function that needs nothing of fedbench, since a node may lack it: Ray sends it whole."""

    def probe() -> dict[str, Any]:
        import os
        import platform
        import shutil
        import socket
        import tempfile
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        found: dict[str, str | None] = {}
        for name in packages:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
        seen = None
        if gpus and found.get("torch"):
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            kinds = [torch.cuda.get_device_properties(index) for index in range(count)]
            seen = {
                "count": count,
                "names": [kind.name for kind in kinds],
                "memory_bytes": [kind.total_memory for kind in kinds],
            }
        shm = Path("/dev/shm")
        return {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "packages": found,
            "gpus": seen,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "shm_bytes": shutil.disk_usage(shm).free if shm.is_dir() else None,
            "disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        }

    return probe
