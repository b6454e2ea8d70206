"""How many runs go on at a time, and the resources of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from fedbench.bench.experiment.common_options import CORES, LANES, as_path
from fedbench.bench.system.arguments import Option
from fedbench.bench.system.cores import usable_cores
from fedbench.bench.system.errors import ConfigError, ResourceError

_PANEL = "Runs at a time"
_share = partial(Option, panel=_PANEL)
_MANY = {"min": 1, "max": 100_000}


@dataclass(frozen=True)
class Share:
    """Resources of a node that one run claims."""

    cpus: int = 1
    gpus: float = 0.0  # from 0 to 1; part of a GPU is a fraction
    automatic: bool = field(default=False, compare=False)  # one GPU if the joined cluster has any

    @property
    def resources(self) -> dict[str, float]:
        """The share under Ray's names of resources."""
        return {"CPU": float(self.cpus), "GPU": float(self.gpus)}

    def fits(self, node: Mapping[str, float]) -> int:
        """Return how many such runs a node holds at a time; none is spread over two GPUs."""
        runs = int(node.get("CPU", 0)) // self.cpus
        if self.gpus:  # 1e-9: 1 / (1 / 93) is below 93
            runs = min(runs, int(node.get("GPU", 0)) * int(1 / self.gpus + 1e-9))
        return runs

    def excess_option(self, best: Mapping[str, float]) -> str:
        """Return the option that asks for more than a node offers at best."""
        return "--gpus-per-trial" if self.gpus > best.get("GPU", 0) else "--workers"

    def __str__(self) -> str:
        return listed({name: n for name, n in self.resources.items() if n or name == "CPU"})


def listed(resources: Mapping[str, float]) -> str:
    """Return resources as text: `4 CPU and 0.5 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())


def local_gpus() -> int:
    """Return the number of GPUs that torch sees on this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@dataclass(frozen=True)
class Cluster:
    """Number of runs at a time, and their resources."""

    concurrency: Annotated[
        int | None, _share("Runs at a time; default: as many as fit.", limits=_MANY)
    ] = None
    gpus_per_trial: Annotated[
        float | None, _share("GPUs per run; may be a fraction, such as 0.5.", limits={"min": 0})
    ] = None
    workers: Annotated[
        int, _share("Processes that train one run's clients.", "--workers --cpus-per-trial", CORES)
    ] = 1
    lanes: Annotated[int | None, replace(LANES, panel=_PANEL)] = None
    address: Annotated[
        str | None, _share("Ray cluster to join, or auto; default: none.", metavar="HOST:PORT")
    ] = None
    wait_for_nodes: Annotated[
        float, _share("Seconds to wait for a node, asked of an autoscaler.", limits={"min": 0})
    ] = 0.0
    checkpoint_dir: Annotated[
        Path | str | None,
        _share("Folder for checkpoints that all nodes see.", kind=Path | None, metavar="DIR"),
    ] = None

    def share(self, device: str) -> Share:
        """Return the share of each run on `auto`, `cpu` or `cuda`; refuse bad combinations."""
        from fedbench.bench.system.compute import choose_devices

        if self.wait_for_nodes and self.address is None:
            raise ConfigError("--wait-for-nodes: waits for nodes of a cluster; give its --address")
        choose_devices("cpu", self.workers, self.lanes)  # refuses what a run would refuse
        given, joins = self.gpus_per_trial, self.address is not None
        wanted = device == "cuda" if joins else choose_devices(device, 1)[0] != "cpu"
        gpus = float(wanted) if given is None else given
        if device == "cpu" and gpus > 0:
            raise ConfigError(f"--device cpu and --gpus-per-trial {gpus:g} exclude each other")
        if device == "cuda" and gpus == 0:
            raise ConfigError("--device cuda: needs --gpus-per-trial above 0")
        if not 0 <= gpus <= 1:
            raise ConfigError(
                "--gpus-per-trial: must be between 0 and 1, since a run uses one GPU"
                f" (got {gpus:g})"
            )
        late = device == "auto" and joins and given is None
        share = Share(self.workers, gpus, automatic=late)
        here = _here(share)
        if not joins and not share.fits(here):
            raise ResourceError(
                f"a trial asks for {share}, this machine offers {listed(here)};"
                f" lower {share.excess_option(here)}, or join a cluster with --address"
            )
        return share

    def at_a_time(self, share: Share) -> int | None:
        """Return the number of runs at a time; None in a cluster = as many as it holds."""
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"--concurrency: must be at least 1 (got {self.concurrency})")
        if self.concurrency is not None or self.address is not None:
            return self.concurrency
        return max(1, share.fits(_here(share)))

    @property
    def checkpoints(self) -> Path | None:
        """The folder of checkpoints as an absolute path; None = the store."""
        folder = as_path(self.checkpoint_dir)
        return None if folder is None else folder.resolve()


def _here(share: Share) -> dict[str, float]:
    """Return the resources of this machine; GPUs only if the share has any."""
    return {"CPU": float(usable_cores()), "GPU": float(local_gpus()) if share.gpus else 0.0}
