"""Variants of methods, interrupted runs and every evaluation on a fake GPU; all are extended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fedbench.bench.evaluation import suite
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.method import net as net_module
from fedbench.bench.system.numerics import measure
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training import trainer as trainer_module
from fedbench.bench.training.client import ClientRunner
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer
from fedbench.bench.training.workers import InProcess
from tests.gpu.fake_gpu import CUDA, FakeGPU, without_onednn
from tests.gpu.test_methods_on_a_gpu import CPU, setup_of

pytestmark = pytest.mark.extended

Values = Mapping[str, Any]
SOME = {"data__label_fraction": 0.5}
THOROUGH = ("byol", "orchestra", "pfedae", "semifed", "cbafed", "simclr+uv", "single-ae")
EVERYWHERE: tuple[Values, ...] = (
    {"client__precision": "bf16"},
    {"model__norm": "group"},
    {"model__norm": "batch-local"},
    {"client__optimizer": "adam"},
)
VARIANTS: list[tuple[str, Values]] = [
    *((spec, values) for spec in THOROUGH for values in EVERYWHERE),
    *((spec, SOME) for spec in ("simclr", "spectral", "simsiam", "simclr+uv")),
    ("simclr+uv", {"method__uv__uv_on": "unlabelled", **SOME}),
    ("simclr+uv", {"method__uv__rows": "mean", "server__optimizer": "adam"}),
    ("simclr", {"method__augmentation": "simclr-m"}),
    ("simclr", {"method__augmentation": "simclr-m-pad4"}),
    ("simclr", {"method__variant": "info-nce"}),
    *(
        ("simclr", {"server__optimizer": optimizer})
        for optimizer in ("momentum", "adam", "adam-reddi", "yogi", "adagrad")
    ),
    ("simclr", {"privacy__clip": 1.0, "model__norm": "group"}),
    ("simclr", {"data__partition": "rotation"}),
    ("byol", {"method__target": "personal"}),
    ("byol", {"method__target": "reinit"}),
    ("byol", {"method__target": "personal", "method__update": "fedu"}),
    ("byol", {"method__target": "personal", "method__update": "fedema"}),
    ("byol", {"method__update": "frozen-predictor"}),
    *(("simsiam", {"method__update": name}) for name in ("fedu", "fedema", "frozen-predictor")),
    ("simsiam", {"method__heads": "m"}),
    *(("orchestra", {"method__representations": name}) for name in ("memory", "private", "random")),
    ("orchestra", {"method__strict_k_anonymity": True}),
    ("orchestra", {"method__target": False}),
    ("orchestra", {"method__target_view": "plain", "method__degeneracy": False}),
    ("orchestra", {"method__sinkhorn_strength": 60.0}),
    *(("pfedae", {"method__gradient": gradient}) for gradient in ("ste", "ship")),
    ("pfedae", {"method__server_steps": "single", "method__latent_dim": 8}),
    ("featarc", {"method__anchor": "backbone-clean", "method__projection_dim": 16}),
    ("simclr", {"model__backbone": "cct-4-3x2", "model__width": 8}),
    ("orchestra", {"model__backbone": "cct-4-3x2", "model__width": 8}),
]


def interrupted(setup: Setup, device: torch.device, folder: Path) -> Trainer:
    """Train for a round, and to the end in a second attempt."""
    with single_thread():
        for until in (1, None):
            trainer = Trainer(setup, folder, "0" * 20, device, CollapseMonitor(setup, device))
            executor = InProcess(ClientRunner(setup, device, folder / "clients"))
            for _ in trainer.rounds(executor, until=until):
                pass
    return trainer


def on_both(setup: Setup, folder: Path) -> tuple[Trainer, Trainer]:
    at_once = mock.patch.object(net_module, "_in_one_pass", return_value=True)
    # A fingerprint of the fake GPU would say nothing.
    with mock.patch.object(trainer_module, "measure", return_value=measure("cpu")), at_once:
        with FakeGPU() as gpu:
            there = interrupted(setup, CUDA, folder / "gpu")
        assert not gpu.draws
        with without_onednn():
            return there, interrupted(setup, CPU, folder / "cpu")


@pytest.mark.parametrize(("spec", "values"), VARIANTS)
def test_a_variant_keeps_to_one_device_and_learns_as_on_the_cpu(
    spec: str, values: Values, tmp_path: Path
) -> None:
    there, here = on_both(setup_of(spec, federation__participation=0.5, **values), tmp_path)
    bf16 = values.get("client__precision") == "bf16"
    losses: list[list[float]] = [[r.loss or 0.0 for r in run.history] for run in (there, here)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05 if bf16 else 0.02, abs=1e-3)


@pytest.mark.parametrize("spec", THOROUGH)
def test_every_evaluation_keeps_to_one_device(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols = ("knn", "linear", "mlp", "local", "angles")
    setup = setup_of(spec, federation__num_rounds=1, evaluation__mlp_epochs=2)
    with FakeGPU():
        net = setup.make_net()
        binding = setup.layout(net).bind(net, CUDA)
        there = suite.evaluate(setup, binding, lambda _: None, protocols, CUDA)
    net = setup.make_net()
    binding = setup.layout(net).bind(net, CPU)
    here = suite.evaluate(setup, binding, lambda _: None, protocols, CPU)
    assert there == pytest.approx(here, abs=0.05, nan_ok=True)
