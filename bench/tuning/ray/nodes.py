"""Nodes of a running Ray: their resources, their software, and the share of a trial."""

from __future__ import annotations

import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedbench.bench.system.compute import physical_cores
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.system.packages import DISTRIBUTION, installed_version

PACKAGES = (
    *(DISTRIBUTION, "ray", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "optuna"),
    *("pyarrow", "pandas", "pydantic", "pyyaml", "safetensors", "psutil", "pillow"),
)
"""Packages that trials import, directly or not."""
_SECONDS = 60.0
_FAULTS = 2
_SECONDS_BETWEEN_LOOKS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """Resources of a node that one trial claims; part of a GPU is a fraction.

    Attributes:
        cpus: CPU cores.
        gpus: from 0 to 1.
        automatic: claim one GPU if the cluster that is joined offers any.
    """

    cpus: int = 1
    gpus: float = 0.0
    automatic: bool = field(default=False, compare=False)

    @property
    def resources(self) -> dict[str, float]:
        """The share under Ray's names of resources."""
        return {"CPU": float(self.cpus), "GPU": float(self.gpus)}

    def fits(self, node: Mapping[str, float]) -> int:
        """Return how many such trials a node holds at a time."""
        share = self.resources.items()
        return min(int(node.get(name, 0) / amount + 1e-9) for name, amount in share if amount)

    def __str__(self) -> str:
        return _show({name: n for name, n in self.resources.items() if n or name == "CPU"})


def check_trial_resources(need: Share, address: str | None) -> None:
    """Refuse a trial that this machine cannot hold; Ray need not run.

    Raises:
        ConfigError: for less than one CPU, a number of GPUs outside of 0 to 1.
        ResourceError: if it has too few; names the share and the resources of this machine.
    """
    if need.cpus < 1:
        raise ConfigError(f"--cpus-per-trial: must be at least 1 (got {need.cpus})")
    if not 0 <= need.gpus <= 1:
        raise ConfigError(
            "--gpus-per-trial: must be between 0 and 1, since a run uses one GPU"
            f" (got {need.gpus:g})"
        )
    here = {"CPU": float(physical_cores()), "GPU": float(local_gpus()) if need.gpus else 0.0}
    if address is None and not need.fits(here):
        raise ResourceError(
            f"a trial asks for {need}, this machine offers {_show(here)};"
            f" lower {_excess_option(need, here)}, or join a cluster with --address"
        )


def _excess_option(need: Share, best: Mapping[str, float]) -> str:
    """Return the option that asks for too much."""
    lacks_gpu = need.gpus > best.get("GPU", 0)
    return "--gpus-per-trial" if lacks_gpu else "--cpus-per-trial"


def share_in_cluster(need: Share) -> Share:
    """Return the share with one GPU, if it is automatic and the running Ray offers any GPU."""
    if not need.automatic or not any(node["Resources"].get("GPU") for node in live_nodes()):
        return need
    _log.warning("the cluster has GPUs: each run claims one; --gpus-per-trial sets another share")
    return replace(need, gpus=1.0, automatic=False)


def live_nodes() -> list[dict[str, Any]]:
    """Return the nodes of the running Ray that are up."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_cluster(need: Share) -> None:
    """Refuse a trial that fits no single node of the running Ray.

    Raises:
        ResourceError: names the share and the best that a node offers.
    """
    nodes = [node["Resources"] for node in live_nodes()]
    if not any(map(need.fits, nodes)):
        names = need.resources
        best = {name: max((node.get(name, 0) for node in nodes), default=0) for name in names}
        raise ResourceError(
            f"a trial asks for {need}, but no node of the cluster offers it (best per node:"
            f" {_show(best)}; {len(nodes)} nodes); lower {_excess_option(need, best)} or add a node"
            " (--wait-for-nodes waits for one)"
        )


def local_gpus() -> int:
    """Return the number of GPUs that torch sees on this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _show(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())


@dataclass(frozen=True)
class NodeReport:
    """State of one node.

    Attributes:
        node_id: id in Ray.
        address: IP address.
        resources: CPUs, GPUs and memory that Ray may use.
        facts: `host python packages commit gpus memory_bytes shm_bytes disk_bytes`; empty if it
            did not answer.
        problems: reasons why no trial can run there.
        differences: versions unlike the driver's, which may change the last digits of results.
    """

    node_id: str
    address: str
    resources: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Host name and address, for messages."""
        return f"{self.facts['host']} ({self.address})" if self.facts else self.address


def survey(*, gpus: bool = False, only: Collection[str] | None = None) -> list[NodeReport]:
    """Ask all live nodes of the running Ray at once; one that dies meanwhile is left out.

    Args:
        gpus: ask torch for GPUs too, which takes some seconds per node.
        only: ids of the nodes to ask; None = all.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in live_nodes() if only is None or node["NodeID"] in only]
    task = ray.remote(num_cpus=0, max_retries=0)(_prober(PACKAGES, gpus))
    answers = []
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        answers.append(task.options(scheduling_strategy=place).remote())
    ray.wait(answers, num_returns=len(answers), timeout=_SECONDS)
    reports = [_report(node, answer) for node, answer in zip(nodes, answers, strict=True)]
    alive = {node["NodeID"] for node in live_nodes()}
    return [report for report in reports if report is not None and report.node_id in alive]


class Pool:
    """Nodes of the running Ray that get trials.

    A GPU is left out after two faults, and a node with its last GPU. So is a node that cannot run
    trials (torch sees fewer GPUs than Ray offers, say, or it does not see the folder for
    checkpoints).

    Args:
        need: resources of a trial.

    Attributes:
        left_out: ids of nodes that get no trials.
        broken: names of the GPUs that get none, by node; processes that Ray puts there hold them.
    """

    def __init__(self, need: Share) -> None:
        self.need = need
        self.left_out: list[str] = []
        self.broken: dict[str, list[str]] = {}
        self._reasons: list[str] = []
        self._names: dict[str, str] = {}
        self._faults = Counter[tuple[str, str]]()

    def survey(self) -> None:
        """Ask the nodes that were not asked before, warn of differences, leave out the unable.

        Raises:
            ResourceError: if no node is left; names each node and its problems.
        """
        new = {node["NodeID"] for node in live_nodes()} - set(self._names)
        if not new:
            return
        for report in survey(gpus=self.need.gpus > 0, only=new):
            self._names[report.node_id] = report.name
            if not self.need.fits(report.resources):
                continue
            if report.problems:
                reason = f"cannot run trials: {'; '.join(report.problems)}"
                self._leave_out(report.node_id, reason)
            elif report.differences:
                _log.warning("node %s: %s", report.name, ", ".join(report.differences))
        self.check()

    def fault(self, message: Mapping[str, Any]) -> None:
        """Leave out a node that cannot run cells, or a GPU that has had its second fault.

        Args:
            message: a report of `cell.fault_report` or `cell.unfit_report`.

        Raises:
            ResourceError: if no node is left; names node and GPU.
        """
        node, gpu = message["node"], message.get("gpus", "")
        if node in self.left_out or gpu in self.broken.get(node, ()):  # another trial was there
            return
        if message["status"] == "unfit":
            self._leave_out(node, f"cannot run trials: {message['error']}")
            self.check()
            return
        self._faults[node, gpu] += 1
        _log.warning(
            "node %s, GPU %s: %s; its run is repeated in a new process",
            *(self._name(node), gpu or "?", message["error"]),
        )
        if self._faults[node, gpu] < _FAULTS:
            return
        text = f"GPU {gpu or '?'} has failed {_FAULTS} times: {message['error']}"
        self.broken.setdefault(node, []).append(gpu)
        if gpu and any(self.need.fits(left) for i, left in self._resources() if i == node):
            self._reasons.append(f"node {self._name(node)} {text}")
            _log.warning("node %s %s; the GPU gets no trials", self._name(node), text)
            return
        self._leave_out(node, text)
        self.check()

    def check(self) -> None:
        """Refuse a trial that fits no single node, or only nodes that are left out.

        Raises:
            ResourceError: names the share and the best that a node offers, or the nodes left out.
        """
        check_cluster(self.need)
        if not self._any():
            raise ResourceError(
                f"no node is left for trials: {'; '.join(self._reasons)};"
                " `fedbench doctor` shows what torch sees, and the same command continues"
            )

    def wait(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait until a node can hold a trial; an autoscaler is asked for one.

        Args:
            seconds: at most this long; `check` says afterwards whether there is one.
            interrupted: returns True after a signal.
        """
        if seconds <= 0 or self._any():
            return
        from ray.autoscaler.sdk import request_resources

        text = f"waiting up to {seconds:.0f} s for a node that offers {self.need}"
        _log.warning("%s", text)
        request_resources(bundles=[self.need.resources])
        end = time.monotonic() + seconds
        while time.monotonic() < end and not interrupted():
            if self._any():
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        request_resources(bundles=[])  # from here on the trials themselves ask

    def slots(self) -> int:
        """Return how many trials the nodes hold at a time; at least 1."""
        return max(1, sum(self.need.fits(left) for _, left in self._resources()))

    def _any(self) -> bool:
        return any(self.need.fits(left) for _, left in self._resources())

    def _resources(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the id of each node that is not left out, and its resources but broken GPUs."""
        for node in live_nodes():
            name, resources = node["NodeID"], node["Resources"]
            if name not in self.left_out:
                yield (
                    name,
                    {**resources, "GPU": resources.get("GPU", 0) - len(self.broken.get(name, ()))},
                )

    def _name(self, node: str) -> str:
        if node not in self._names:
            addresses = {n["NodeID"]: str(n["NodeManagerAddress"]) for n in live_nodes()}
            self._names[node] = addresses.get(node, node)
        return self._names[node]

    def _leave_out(self, node: str, reason: str) -> None:
        text = f"node {self._name(node)} {reason}"
        self.left_out = [*self.left_out, node]
        self._reasons.append(text)
        _log.warning("%s; it gets no trials", text)


def _report(node: Mapping[str, Any], answer: Any) -> NodeReport | None:
    """Make a report; None for a dead node, which Ray may list as alive for some seconds."""
    import ray

    resources = {k: v for k, v in node["Resources"].items() if k in ("CPU", "GPU", "memory")}
    report = NodeReport(node["NodeID"], str(node["NodeManagerAddress"]), resources)
    try:
        facts = ray.get(answer, timeout=0)
    except ray.exceptions.NodeDiedError:
        return None
    except ray.exceptions.GetTimeoutError:
        return replace(report, problems=(f"does not answer within {_SECONDS:.0f} s",))
    except ray.exceptions.RayError as err:
        return replace(report, problems=(" ".join(str(err).split())[:200],))
    problems, differences = compare(facts, resources)
    return replace(report, facts=facts, problems=problems, differences=differences)


def compare(
    facts: Mapping[str, Any], resources: Mapping[str, float]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the problems of a node, and its versions that differ from this machine's."""
    here, there = versions(), facts["packages"]
    problems = [f"{name} is not installed" for name in PACKAGES if here[name] and not there[name]]
    if there[DISTRIBUTION] and there[DISTRIBUTION] != here[DISTRIBUTION]:
        problems.append(f"fedbench is {there[DISTRIBUTION]} there and {here[DISTRIBUTION]} here")
    commit, ours = facts["commit"], _prober((), False)()["commit"]
    if commit and ours and commit != ours:
        problems.append(f"fedbench is of commit {commit} there and {ours} here")
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


def versions() -> dict[str, str | None]:
    """Return the versions of `PACKAGES` on this machine; None for a package that is missing."""
    return {name: installed_version(name) for name in PACKAGES}


def _prober(packages: tuple[str, ...], gpus: bool) -> Callable[[], dict[str, Any]]:
    """Make a function without imports of fedbench, which a node may lack; Ray sends its code."""

    def probe() -> dict[str, Any]:
        import os
        import platform
        import shutil
        import socket
        import subprocess
        import tempfile
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec
        from pathlib import Path

        installed: dict[str, str | None] = {}
        for name in packages:
            try:
                installed[name] = version(name)
            except PackageNotFoundError:
                installed[name] = None
        seen = None
        if gpus and installed.get("torch"):
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            kinds = [torch.cuda.get_device_properties(index) for index in range(count)]
            seen = {
                "count": count,
                "names": [kind.name for kind in kinds],
                "memory_bytes": [kind.total_memory for kind in kinds],
            }
        commit = None
        package = find_spec("fedbench")
        if package is not None and package.origin is not None and shutil.which("git"):
            root = Path(package.origin).resolve().parent.parent
            if (root / ".git").exists():  # no checkout of something else around a wheel
                command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                commit = done.stdout.strip() or None
        shm = Path("/dev/shm")
        return {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "packages": installed,
            "commit": commit,
            "gpus": seen,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "shm_bytes": shutil.disk_usage(shm).free if shm.is_dir() else None,
            "disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        }

    return probe
