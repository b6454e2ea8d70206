"""Lanes give the bits of clients that are trained one after another, whatever their turns."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.bench.data.batches import Batch
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.method import Client, Loss, Net
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.lanes import LaneExecutor, reason_to_run_eagerly
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer
from fedbench.methods.simclr import SimCLR
from tests.specs import SPECS, extended

CPU = torch.device("cpu")
pytestmark = pytest.mark.onednn
# Of 16, 4, 33, 0 and 1 images: full batches alone, too few for one, a rest, none, and one image.
SIZES = (16, 4, 33, 0, 1)
ENDS = itertools.accumulate(SIZES)
SHARES = [list(range(end - size, end)) for size, end in zip(SIZES, ENDS, strict=True)]
LABELLED = {"semifed", "cbafed"}
EAGER = {"pfedae", "single-ae", "central-ae", "semifed", "semifed+uv"}
EAGER |= {"byol+fedu2", "simclr+fedu2", "simsiam+fedu2", "mim"}


def setup_of(spec: str, **values: Any) -> Setup:
    given: dict[str, Any] = {
        "data__num_clients": len(SIZES), "model__norm": "batch", "client__batch_size": 8,
        "client__keep_last_batch": True, "client__local_epochs": 2,
    }  # fmt: skip
    if spec.split("+")[0] in LABELLED:
        given["data__label_fraction"] = 0.5
    if spec == "orchestra":
        given["method__global_steps"] = 5
    return tiny_setup(tiny_config(spec, **{**given, **values}), shares=SHARES)


class Shuffled(list[Any]):
    """Lanes that take turns at random."""

    rng = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rng.choices(self, k=len(self)))


def train_in_lanes(setup: Setup, folder: Path, num_lanes: int) -> tuple[Trainer, LaneExecutor]:
    with single_thread():
        trainer = Trainer(
            setup,
            folder,
            "0" * 20,
            CPU,
            CollapseMonitor(setup, CPU, PersonalStore(folder / "clients")),
        )
        executor = LaneExecutor(setup, CPU, folder / "clients", num_lanes)
        executor._lanes = Shuffled(executor._lanes)
        for _ in trainer.rounds(executor):
            pass
    return trainer, executor


@pytest.mark.parametrize("spec", SPECS)
def test_methods_that_fit_are_the_ones_that_are_recorded(spec: str) -> None:
    assert (spec in EAGER) == bool(reason_to_run_eagerly(setup_of(spec)))


VARIANTS: list[tuple[str, Mapping[str, Any]]] = [
    ("simclr+uv", {}),
    ("simclr", {"client__precision": "bf16"}),
    ("simclr", {"model__norm": "batch-local"}),
    ("simclr", {"client__momentum": 0.0}),
    ("byol", {"method__target": "personal"}),
]
FURTHER: list[tuple[str, Mapping[str, Any]]] = [
    ("simclr+uv", {"method__uv__rows": "mean", "server__optimizer": "adam"}),
    ("orchestra", {"method__memory_size": 4, "model__norm": "group"}),
    ("orchestra", {"method__representations": "private"}),
]


@pytest.mark.parametrize(("spec", "values"), [*VARIANTS, *extended(FURTHER, bool)])
def test_variants_have_the_same_bits(spec: str, values: Any, tmp_path: Path) -> None:
    setup = setup_of(spec, **values)
    alone = train(setup, tmp_path / "alone")
    trainer, executor = train_in_lanes(setup, tmp_path / "lanes", 2)
    assert_same_run(alone, trainer)
    assert (executor.replayed > 0) == (spec not in EAGER)
    assert ("steps replayed" in executor.summary) == (spec not in EAGER)


@pytest.mark.parametrize(
    ("spec", "values", "reason"),
    [
        ("pfedae", {}, "capturable"),
        ("simclr", {"data__label_fraction": 0.5}, "labels of a batch"),
        ("simclr", {"client__optimizer": "adam"}, "client.optimizer=sgd"),
        ("simclr+uv", {"method__uv__uv_on": "unlabelled"}, "capturable"),
    ],
)
def test_unfit_runs_name_their_reason(spec: str, values: Any, reason: str) -> None:
    assert reason in reason_to_run_eagerly(setup_of(spec, **values))


@pytest.mark.parametrize("draw", [np.random.rand, random.random, lambda: torch.rand(()).item()])
@pytest.mark.parametrize("hook", ["loss", "draws"])
def test_a_step_that_draws_from_a_global_generator_is_refused(
    hook: str, draw: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(SimCLR, hook)

    def drawing(*given: Any) -> Any:
        draw()
        return real(*given)

    monkeypatch.setattr(SimCLR, hook, drawing)
    with pytest.raises(PluginError, match="draws from a global generator"):
        train_in_lanes(setup_of("simclr"), tmp_path, 2)


def test_a_step_that_reads_the_client_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SimCLR.loss

    def nosy(self: SimCLR, net: Net, batch: Batch, client: Client) -> Loss:
        return real(self, net, batch, client).plus("nosy", torch.tensor(float(client.id)))

    monkeypatch.setattr(SimCLR, "loss", nosy)
    with pytest.raises(PluginError, match=r"reads client\.id in it") as caught:
        train_in_lanes(setup_of("simclr"), tmp_path, 2)
    assert "client 0, round 1" in "".join(caught.value.__notes__)
