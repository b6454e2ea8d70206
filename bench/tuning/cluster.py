"""Concurrency of runs, the resources of each, and their predicted cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedbench.bench.experiment.arguments import as_path
from fedbench.bench.system.arguments import Option
from fedbench.bench.system.cores import usable_cores
from fedbench.bench.system.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from fedbench.bench.experiment.experiment import Experiment

_PANEL = "Runs at a time"
_share = partial(Option, panel=_PANEL)
_MANY, CORES = {"min": 1, "max": 100_000}, {"min": 1, "max": 1024}
LANES = Option(
    "Clients at a time in one process; steps are recorded once and replayed, as CUDA graphs.",
    limits={"min": 1, "max": 256},
)

_RAY_SECONDS = 5.0
"""Start and end of Ray, mostly waits of fixed length: 2.1 to 3.1 s and 1.1 to 1.4 s, and Tune's
import. Measured with Ray 2.60 on one machine of 2 cores."""
_DEVICES = (1, 8, 64)
"""Numbers of devices with a finishing time, besides the number of this command."""


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
        if self.gpus:
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


def estimate_device(share: Share) -> str:
    """Return the device for estimates: `cuda` if runs claim GPUs and this machine has any."""
    return "cuda" if share.gpus and local_gpus() else "cpu"


def _here(share: Share) -> dict[str, float]:
    """Return the resources of this machine; GPUs only if the share has any."""
    return {"CPU": float(usable_cores()), "GPU": float(local_gpus()) if share.gpus else 0.0}


@dataclass(frozen=True)
class Cost:
    """Predicted cost of runs, on devices like this machine's.

    A device here is the share of a run: a core (or several), a GPU, or a part of one.
    """

    hours: float  # start, training and evaluation at the given concurrency
    device_hours: float  # all runs one after the other, without the start
    finish_hours: dict[int, float]  # number of devices -> time until the last run has ended
    bytes_up: int  # from clients to server, all runs
    bytes_down: int
    concurrency: int  # runs at a time
    device: str  # that was measured, `cpu` or `cuda`


def estimate_cost(
    runs: "Sequence[Experiment]",
    cluster: Cluster,
    share: Share,
    trained: "Sequence[Experiment]" = (),
) -> Cost:
    """Estimate the cost of runs from a round of each distinct model; seeds change no cost.

    Of `trained` the store has the weights: they are evaluated only.
    """
    from fedbench.bench.execution.estimate import Estimator, start_seconds
    from fedbench.bench.system.compute import choose_devices

    device = estimate_device(share)
    estimator = Estimator(choose_devices(device, share.cpus))
    both = [*((True, run) for run in runs), *((False, run) for run in trained)]
    keys = [(t, run.config.model_copy(update={"seed": 0}).model_dump_json()) for t, run in both]
    distinct = dict(zip(keys, both, strict=True))
    estimates = {key: estimator(run, trains=t) for key, (t, run) in distinct.items()}
    costs = [estimates[key] for key in keys]
    at_a_time = max(1, min(cluster.at_a_time(share) or usable_cores(), len(costs)))
    work = [cost.train_seconds + cost.evaluation_seconds for cost in costs]
    # This command, the trial processes, and Ray between them start one after the other.
    starting = 2 * start_seconds() + _RAY_SECONDS if costs else 0.0

    def finish(devices: int) -> float:
        return (starting + max(sum(work) / devices, *work, 0.0)) / 3600

    return Cost(
        hours=finish(at_a_time),
        device_hours=sum(work) / 3600,
        finish_hours={n: finish(n) for n in sorted({*_DEVICES, at_a_time})},
        bytes_up=sum(cost.bytes_up for cost in costs),
        bytes_down=sum(cost.bytes_down for cost in costs),
        concurrency=at_a_time,
        device=device,
    )
