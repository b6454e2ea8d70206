"""Tiny runs on a GPU beside the same ones on the CPU: what of fedbench holds on it."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import build_config
from fedbench.bench.system import first_use
from fedbench.bench.system.regime import TF32
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer

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
    return Experiment(build_config(spec, values)).setup


def _train(
    setup: Setup, device: torch.device, lanes: int | None = None
) -> tuple[float, Tensor, str]:
    """Return the loss of the first round with steps, the last weights, and the lanes' summary."""
    with tempfile.TemporaryDirectory() as name, single_thread():
        folder = Path(name)
        trainer = Trainer(setup, folder, "0" * 20, device, CollapseMonitor(setup, device))
        executor = LaneExecutor(setup, device, folder / "clients", lanes)
        rounds = list(trainer.rounds(executor))
        losses = [record.loss for record in rounds if record.loss is not None]
        return losses[0], trainer.vector.cpu().clone(), executor.summary
