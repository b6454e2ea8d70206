"""What a trial needs, and whether that fits what there is, asked before anything waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.bench.devices import physical_cores
from fedbench.bench.errors import ConfigError, ResourceError


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
