"""Nodes of a running Ray: their resources, their software, and which of them get trials."""

import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedbench.bench.system.errors import ResourceError
from fedbench.bench.system.packages import DISTRIBUTION, installed_version
from fedbench.bench.tuning.cluster import Share, listed, local_gpus

PACKAGES = (
    DISTRIBUTION, "ray", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "optuna",
    "pyarrow", "pandas", "pydantic", "pyyaml", "safetensors", "psutil", "pillow",
)  # fmt: skip
"""Packages that trials import, directly or not."""
_SECONDS = 180.0  # in which a node answers: a busy one imports for long; Ray finds a dead one
_FAULTS = 2  # runs under which CUDA fails on a node: one alone may break it everywhere
_SECONDS_BETWEEN_LOOKS = 1.0
_log = logging.getLogger(__name__)


def live_nodes() -> list[dict[str, Any]]:
    """Return the nodes of the running Ray that are up."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def share_in_cluster(share: Share) -> Share:
    """Return the share with one GPU, if it is automatic and the running Ray offers any GPU."""
    if not share.automatic or not any(node["Resources"].get("GPU") for node in live_nodes()):
        return share
    _log.warning("the cluster has GPUs: each run claims one; --gpus-per-trial sets another share")
    return replace(share, gpus=1.0, automatic=False)


@dataclass(frozen=True)
class NodeReport:
    """State of one node."""

    node_id: str  # in Ray
    address: str
    resources: Mapping[str, float]  # that Ray may use
    facts: Mapping[str, Any] = field(default_factory=dict)  # see `facts`; empty without an answer
    problems: tuple[str, ...] = ()  # why no trial can run there
    differences: tuple[str, ...] = ()  # versions unlike here, which may change the last digits

    @property
    def name(self) -> str:
        """Host name and address, for messages."""
        return f"{self.facts['host']} ({self.address})" if self.facts else self.address


def report_nodes(nodes: Sequence[Mapping[str, Any]], *, gpus: bool) -> list[NodeReport]:
    """Ask nodes of the running Ray at once; one that dies is left out.

    With `gpus`, torch is asked for GPUs there too.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(facts)
    answers = []
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        answers.append(task.options(scheduling_strategy=place).remote(gpus))
    ray.wait(answers, num_returns=len(answers), timeout=_SECONDS)
    reports = [_report(node, answer) for node, answer in zip(nodes, answers, strict=True)]
    alive = {node["NodeID"] for node in live_nodes()}
    return [report for report in reports if report is not None and report.node_id in alive]


def _report(node: Mapping[str, Any], answer: Any) -> NodeReport | None:
    """Make a report; None for a dead node, which Ray may list as alive for some seconds."""
    import ray

    resources = node["Resources"]
    report = NodeReport(node["NodeID"], str(node["NodeManagerAddress"]), resources)
    try:
        known = ray.get(answer, timeout=0)
    except ray.exceptions.NodeDiedError:
        return None
    except ray.exceptions.GetTimeoutError:
        return replace(report, problems=(f"does not answer within {_SECONDS:.0f} s",))
    except ray.exceptions.RayError as err:  # it has no fedbench, say
        return replace(report, problems=(" ".join(str(err).split())[-200:],))
    problems, differences = compare(known, resources)
    return replace(report, facts=known, problems=problems, differences=differences)


def compare(
    there: Mapping[str, Any], resources: Mapping[str, float]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the problems of a node, and its versions that differ from this machine's."""
    here, theirs, seen = facts(), there["packages"], there["gpus"]
    ours = here["packages"]
    problems = [f"{name} is not installed" for name in PACKAGES if ours[name] and not theirs[name]]
    if theirs[DISTRIBUTION] and theirs[DISTRIBUTION] != ours[DISTRIBUTION]:
        problems.append(f"fedbench is {theirs[DISTRIBUTION]} there and {ours[DISTRIBUTION]} here")
    if there["commit"] and here["commit"] and there["commit"] != here["commit"]:
        problems.append(f"fedbench is of commit {there['commit']} there and {here['commit']} here")
    if seen is not None and len(seen) < resources.get("GPU", 0):
        problems.append(f"Ray offers {resources['GPU']:g} GPU, torch sees {len(seen)}")
    versions = {name: (theirs[name], ours[name]) for name in PACKAGES[1:]}
    versions["python"] = there["python"], here["python"]
    differences = [
        f"{name} {found} (here {expected})"
        for name, (found, expected) in versions.items()
        if found and expected and found != expected
    ]
    return tuple(problems), tuple(differences)


def facts(gpus: bool = False) -> dict[str, Any]:
    """Return `host python packages commit memory_bytes gpus` of the machine that runs this.

    `packages` are the versions of `PACKAGES`, None for one that is missing.
    """
    from fedbench.bench.execution.execute import git_sha

    names = None
    if gpus:
        import torch

        names = [torch.cuda.get_device_name(index) for index in range(local_gpus())]
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in PACKAGES},
        "commit": git_sha(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": names,
    }


class Pool:
    """Nodes of the running Ray that get trials, `concurrency` at a time or as many as they hold.

    A node is left out if it cannot run trials: torch sees fewer GPUs than Ray offers, say, or it
    does not see the folder for checkpoints, or CUDA has failed there under two runs.
    """

    def __init__(
        self, need: Share, concurrency: int | None = None, *, joined: bool = False
    ) -> None:
        self.need, self._concurrency, self._joined = need, concurrency, joined
        self.left_out: dict[str, str] = {}  # node -> the reason
        self._names: dict[str, str] = {}
        self._failed_under: dict[str, set[str]] = {}

    @property
    def varies(self) -> bool:
        """True if nodes are looked at: they come and go in a cluster, and GPUs may be missing."""
        return self._joined or self.need.gpus > 0

    def open(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait for the first node, `seconds` at most, then ask all; ResourceError if none fits."""
        self.need = share_in_cluster(self.need)
        if self._joined:
            self.wait(seconds, interrupted)
        if interrupted():
            return
        self.check()
        if self.varies:
            self.admit_new()

    def admit_new(self) -> None:
        """Ask the nodes that were not asked before, warn of differences, leave out the unable."""
        new = [node for node in live_nodes() if node["NodeID"] not in self._names]
        for report in report_nodes(new, gpus=self.need.gpus > 0) if new else ():
            self._names[report.node_id] = report.name
            if not self.need.fits(report.resources):
                continue
            if report.problems:
                self.leave_out(report.node_id, "; ".join(report.problems))
            elif report.differences:
                _log.warning("node %s: %s", report.name, ", ".join(report.differences))

    def cuda_failed(self, node: str, run: str, error: str) -> None:
        """Leave a node out on which CUDA has failed under two runs: it is no fault of theirs."""
        runs = self._failed_under.setdefault(node, set())
        runs.add(run)
        _log.warning("node %s: %s; the run starts again", self._names.get(node, node), error)
        if len(runs) >= _FAULTS:
            self.leave_out(node, f"CUDA has failed there under {len(runs)} runs: {error}")

    def leave_out(self, node: str, problem: str) -> None:
        """Give a node that cannot run trials no more of them; see `check`."""
        if node in self.left_out:  # another trial was there
            return
        text = f"node {self._names.get(node, node)} cannot run trials: {problem}"
        self.left_out[node] = text
        _log.warning("%s; it gets none", text)
        self.check()

    def check(self) -> None:
        """Refuse a trial that fits no single node, or only nodes that are left out."""
        nodes = [node["Resources"] for node in live_nodes()]
        if not any(map(self.need.fits, nodes)):
            names = self.need.resources
            best = {name: max((node.get(name, 0) for node in nodes), default=0) for name in names}
            raise ResourceError(
                f"a trial asks for {self.need}, but no node of the cluster offers it (best per"
                f" node: {listed(best)}; {len(nodes)} nodes); lower"
                f" {self.need.excess_option(best)} or add a node (--wait-for-nodes waits for one)"
            )
        if not self._fits():
            raise ResourceError(
                f"no node is left for trials: {'; '.join(self.left_out.values())};"
                " `fedbench doctor` shows what torch sees, and the same command continues"
            )

    def wait(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait until a node can hold a trial, `seconds` at most; an autoscaler is asked for one."""
        if seconds <= 0 or self._fits():
            return
        from ray.autoscaler.sdk import request_resources

        _log.warning("waiting up to %.0f s for a node that offers %s", seconds, self.need)
        request_resources(bundles=[self.need.resources])
        end = time.monotonic() + seconds
        while time.monotonic() < end and not interrupted():
            if self._fits():
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        request_resources(bundles=[])  # from here on the trials themselves ask

    def slots(self) -> int:
        """Return how many trials run at a time, at least 1: those asked for, else all that fit."""
        return self._concurrency or max(1, self._fits())

    def _fits(self) -> int:
        """Return how many trials fit on the nodes that are not left out."""
        nodes = [node for node in live_nodes() if node["NodeID"] not in self.left_out]
        return sum(self.need.fits(node["Resources"]) for node in nodes)
