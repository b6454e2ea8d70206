"""Whether a trial fits what there is, asked before anything waits for it."""

from __future__ import annotations

from collections.abc import Mapping

from fedbench.bench.devices import physical_cores
from fedbench.bench.errors import ConfigError, ResourceError


def check_trial_resources(gpus_per_trial: float, address: str | None) -> None:
    """Refuse, before Ray starts, a trial that this machine cannot hold.

    Raises:
        ConfigError: for a negative share, or more than one GPU in parts.
        ResourceError: if it has too few GPUs; names what is asked for and what is there.
    """
    if gpus_per_trial < 0 or (gpus_per_trial > 1 and gpus_per_trial != int(gpus_per_trial)):
        raise ConfigError(
            "--gpus-per-trial: must be 0, a fraction below 1, or a whole number"
            f" (got {gpus_per_trial:g})"
        )
    if address is None and gpus_per_trial > local_gpus():
        raise ResourceError(
            f"a trial asks for {gpus_per_trial:g} GPU and 1 CPU, this machine offers"
            f" {local_gpus()} GPU and {physical_cores()} CPU;"
            " lower --gpus-per-trial, or join a cluster with --address"
        )


def check_cluster(gpus_per_trial: float) -> None:
    """Refuse a trial that fits no single node of the running Ray.

    Raises:
        ResourceError: with what is asked for and the best that a node offers.
    """
    import ray

    need = {"CPU": 1.0, "GPU": float(gpus_per_trial)}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= asked for name, asked in need.items()) for node in nodes):
        best = {name: max((node.get(name, 0) for node in nodes), default=0) for name in need}
        raise ResourceError(
            f"a trial asks for {_show(need)}, but no node of the cluster offers it (best per node:"
            f" {_show(best)}; {len(nodes)} nodes); lower --gpus-per-trial or add a node"
        )


def cluster_slots(gpus_per_trial: float) -> int:
    """How many trials all nodes of the running Ray hold at a time; at least 1."""
    import ray

    need = {"CPU": 1.0, "GPU": float(gpus_per_trial)}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    per_node = (
        min(int(node.get(name, 0) / asked + 1e-9) for name, asked in need.items() if asked)
        for node in nodes
    )
    return max(1, sum(per_node))


def local_gpus() -> int:
    """GPUs that torch sees on this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _show(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
