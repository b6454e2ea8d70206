"""Checks of this machine, or of a cluster, before anything is run."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch import Tensor

from fedbench.bench.data.datasets import dataset_records
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.method import registry
from fedbench.bench.results.store.store import Store
from fedbench.bench.system import first_use
from fedbench.bench.system.cores import usable_cores
from fedbench.bench.system.errors import FedbenchError, ResourceError
from fedbench.bench.system.numerics import measure
from fedbench.bench.system.regime import TF32, reproducible
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer
from fedbench.bench.tuning.cluster import local_gpus
from fedbench.bench.tuning.job import one_line
from fedbench.bench.tuning.ray.nodes import facts, live_nodes, report_nodes
from fedbench.bench.tuning.ray.session import auth_state, has_token, ray_session

_DEVICES = Path(os.sep, "dev")
_LITTLE = 2e9  # bytes of memory or disk below which there is a warning
RUNS = (
    *((spec, "fp32") for spec in ("simclr", "simsiam", "byol", "orchestra")),
    ("simclr", "tf32"),
    ("simclr", "bf16"),
)
"""Method specs and precisions of the runs that `fedbench doctor --gpu` makes."""
_LANES = 2
_TINY: Mapping[str, Any] = {
    "data.train_subset": 160,
    "data.test_subset": 40,
    "data.num_clients": 4,
    "data.partition": "iid",
    "model.norm": "batch",
    "model.width": 4,
    "client.batch_size": 8,
    "client.lr": 1e-4,  # a larger one amplifies rounding: 0.5 % of the loss at 0.003, 6e-7 here
    "federation.num_rounds": 2,
}
# Beyond `RUNS`, perf/gpu.py makes this run of every method.
_BY_METHOD: Mapping[str, Mapping[str, Any]] = {
    "orchestra": {"method.global_steps": 5},
    "cbafed": {"data.label_fraction": 0.5},  # without labels it trains nothing
}


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str  # of the part that was checked
    status: Literal["ok", "warning", "problem"]  # warning: it works, perhaps not as intended
    detail: str  # state of that part
    remedy: str = ""


@dataclass(frozen=True)
class Checkup:
    """All checks, with the exit code of the first problem, else 0."""

    checks: tuple[Check, ...]
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `fedbench doctor --json`."""
        return {"ok": self.exit_code == 0, "checks": [asdict(check) for check in self.checks]}


def checkup(
    store: Store, data_dir: Path | None = None, address: str | None = None, *, gpu: bool = False
) -> Checkup:
    """Run all checks; changes nothing.

    Ray is started here, or the nodes of the cluster at `address` are checked. With `gpu`, tiny runs
    are made on this machine's GPU; ResourceError if torch sees none.
    """
    if gpu and not local_gpus():
        raise ResourceError("--gpu: torch sees no GPU; `fedbench doctor` says what it does see")
    checks: list[Check] = []
    code = 0
    parts: dict[str, Callable[[], Iterator[Check]]] = {
        "packages": _packages,
        "processor": _processor,
        "gpu": _gpus,
        "store": lambda: _store(store),
        "data": lambda: _data(data_dir),
        "ray": _ray_here if address is None else lambda: _nodes(address),
    }
    if gpu:
        parts["runs on the gpu"] = _first_runs
    for name, check_part in parts.items():
        try:
            checks += check_part()
        except FedbenchError as err:
            checks.append(Check(name, "problem", str(err)))
            code = code or err.exit_code
    if any(check.status == "problem" for check in checks):
        code = code or ResourceError.exit_code
    return Checkup(tuple(checks), code)


def _packages() -> Iterator[Check]:
    here = facts()
    installed = here["packages"]
    yield Check("python", "ok", here["python"])
    if missing := [name for name, version in installed.items() if version is None]:
        yield Check("packages", "problem", f"missing: {', '.join(missing)}", "reinstall fedbench")
    texts = [f"{name} {version}" for name, version in installed.items() if version is not None]
    yield Check("packages", "ok", ", ".join(texts))
    names = [name for name, entry in registry.entries().items() if not entry.is_addon]
    yield Check("methods", "ok", ", ".join(names))


def _processor() -> Iterator[Check]:
    free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    detail = f"{usable_cores()} cores, {free / 1e9:.1f} of {total / 1e9:.1f} GB of memory free"
    yield _enough("processor", free, detail, "lower --workers or --concurrency")
    measured = measure("cuda" if torch.cuda.is_available() else "cpu")
    detail = f"{measured} ({measured.numpy_blas}; {measured.torch_blas}; {measured.precision})"
    yield Check("numeric platform", "ok", detail)


def _enough(name: str, free: float, detail: str, remedy: str) -> Check:
    return Check(name, "warning", detail, remedy) if free < _LITTLE else Check(name, "ok", detail)


def _gpus() -> Iterator[Check]:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            yield Check("gpu", "ok", f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB")
        return
    present = ", ".join(sorted(path.name for path in _DEVICES.glob("nvidia[0-9]*")))
    if present and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        remedy = f"install a driver for torch's CUDA ({torch.version.cuda}), or torch for yours"
        detail = f"/dev has {present}, but torch sees none: runs use the processor"
        yield Check("gpu", "warning", detail, remedy)
    else:
        hidden = f" (CUDA_VISIBLE_DEVICES hides {present})" if present else ""
        yield Check("gpu", "ok", f"none{hidden}: runs use the processor")


def _store(store: Store) -> Iterator[Check]:
    store.check_writable()
    folder = next(f for f in (store.root, *store.root.absolute().parents) if f.exists())
    free = shutil.disk_usage(folder).free
    detail = f"{store.root}: {len(store.rows())} rows, {free / 1e9:.1f} GB free"
    yield _enough("store", free, detail, "free some space, or choose another --store")
    for problem in store.problems():
        yield Check("store", "warning", problem, "delete the file to run its cell again")


def _data(data_dir: Path | None) -> Iterator[Check]:
    ready = [record["name"] for record in dataset_records(data_dir) if record["cached"]]
    detail = f"ready: {', '.join(dict.fromkeys(['digits', *ready]))}"
    yield Check("data", "ok", detail, "`fedbench datasets` shows how to get others")


def _ray_here() -> Iterator[Check]:
    with ray_session(1):
        import ray  # the session is ready

        offered = ray.cluster_resources()
    yield Check("ray", "ok", f"starts on this machine ({offered.get('CPU', 0):g} CPU for the test)")


def _nodes(address: str) -> Iterator[Check]:
    if not has_token() or os.environ.get("RAY_AUTH_MODE") == "disabled":
        detail = "no token: everybody who reaches the cluster's port can run code on it"
        yield Check("authentication", "warning", detail, f"{auth_state()}; docs/cluster.md")
    with ray_session(None, address):
        reports = report_nodes(live_nodes(), gpus=True)
    yield Check("ray", "ok", f"{address}: {len(reports)} nodes")
    for report in reports:
        offers = [f"{report.resources.get(name, 0):g} {name}" for name in ("CPU", "GPU")]
        if found := report.facts:
            offers.append(f"{found['memory_bytes'] / 1e9:.0f} GB of memory")
            offers += sorted(set(found["gpus"] or ()))
        name, detail = f"node {report.name}", ", ".join(offers)
        if report.problems:
            detail = "; ".join((detail, *report.problems))
            yield Check(name, "problem", detail, "install the same packages as here on every node")
        elif report.differences:
            detail = f"{detail}; {', '.join(report.differences)}"
            yield Check(name, "warning", detail, "results may differ in their last digits")
        else:
            yield Check(name, "ok", detail)


@dataclass(frozen=True)
class FirstRun:
    """How a tiny run on a device compares with the same run on the CPU."""

    loss: float  # of the first round with steps: later ones of so small nets amplify rounding
    cpu_loss: float
    same_bits_twice: bool  # whether a second run there has the weights of the first
    same_bits_in_lanes: bool
    lanes: str  # what lanes recorded
    holds: tuple[str, ...]  # of `first_use.MEANS`, those that give what the plain way gives
    switched_off: Mapping[str, str]  # those that do not, and the difference


def first_run(spec: str, precision: str, device: torch.device) -> FirstRun:
    """Train a method for two rounds on a device: twice, in lanes, and on the CPU."""
    there = _setup(spec, precision)
    loss, weights, _ = _train(there, device)
    _, again, _ = _train(there, device)
    _, in_lanes, lanes = _train(there, device, _LANES)
    holds, off = first_use.agreed(), first_use.switched_off()
    on_cpu = _setup(spec, "fp32" if precision == TF32 else precision)
    cpu_loss, _, _ = _train(on_cpu, torch.device("cpu"))
    return FirstRun(
        loss,
        cpu_loss,
        torch.equal(weights, again),
        torch.equal(weights, in_lanes),
        lanes,
        tuple(sorted(holds)),
        off,
    )


def _setup(spec: str, precision: str) -> Setup:
    values = {**_TINY, **_BY_METHOD.get(spec.partition("+")[0], {}), "client.precision": precision}
    return Experiment(Fields.of(spec).build(values)).setup


def _train(
    setup: Setup, device: torch.device, lanes: int | None = None
) -> tuple[float, Tensor, str]:
    """Return the loss of the first round with steps, the last weights, and the lanes' summary."""
    with tempfile.TemporaryDirectory() as name, single_thread():
        folder = Path(name)
        monitor = CollapseMonitor(setup, device, PersonalStore(folder / "clients"))
        trainer = Trainer(setup, folder, "0" * 20, device, monitor)
        executor = LaneExecutor(setup, device, folder / "clients", lanes)
        rounds = list(trainer.rounds(executor))
        losses = [record.loss for record in rounds if record.loss is not None]
        return losses[0], trainer.vector.cpu().clone(), executor.summary


def _first_runs() -> Iterator[Check]:
    """Make tiny runs, and say what of them holds and which means of speed are wrong."""
    device, off, holds = torch.device("cuda", 0), dict[str, str](), set[str]()
    with reproducible(device):
        for spec, precision in RUNS:
            name = f"{spec} in {precision}"
            try:
                run = first_run(spec, precision, device)
            except Exception as err:  # a run that fails is a result, and the others go on
                remedy = f"fedbench run {spec} --device cuda --debug shows where"
                yield Check(name, "problem", one_line(err), remedy)
                continue
            off |= run.switched_off
            holds |= {*run.holds}
            yield _first_run(name, run, 0.02 if precision == "fp32" else 0.05)
    for means in first_use.MEANS:
        if means in holds and means not in off:
            yield Check(means, "ok", "gives what the plain way gives")
        else:
            detail = off.get(means, "not compared: no run came to use it")
            yield Check(means, "warning", detail, "runs go on without, slower; their rows say so")


def _first_run(name: str, run: FirstRun, allowed: float) -> Check:
    loss = f"loss {run.loss:.4f}, on the CPU {run.cpu_loss:.4f}"
    if not abs(run.loss - run.cpu_loss) <= allowed * abs(run.cpu_loss):
        remedy = "use --device cpu: results made here would be wrong"
        return Check(name, "problem", loss, remedy)
    same = {"twice": run.same_bits_twice, "in lanes": run.same_bits_in_lanes}
    bits = ", ".join(f"{'same' if held else 'other'} bits {how}" for how, held in same.items())
    detail = f"{loss}; {bits}; lanes: {run.lanes}"
    if all(same.values()):
        return Check(name, "ok", detail)
    return Check(name, "warning", detail, "repeated runs differ in their last digits")
