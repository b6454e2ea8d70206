"""Methods and parts on a fake GPU: one device, and no wait within a recorded step."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.evaluation import suite
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.method import RoundPlan, registry
from fedbench.bench.method import net as net_module
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.lanes import LaneExecutor, reason_to_run_eagerly
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer
from tests.contract.expected_runs import variants
from tests.gpu.fake_gpu import CUDA, DeviceMismatchError, FakeGPU, without_onednn
from tests.specs import HOOKS, SPECS, extended

FEDU2 = ("byol+fedu2", "simclr+fedu2", "simsiam+fedu2")
WAITS = {"mim": 1, "semifed": 7, "semifed+uv": 7, **dict.fromkeys(FEDU2, 3)}
CPU = torch.device("cpu")
SOME = {"data__label_fraction": 0.5}
ALL = {"federation__participation": 1.0}
CCT = {"model__backbone": "cct-4-3x2", "model__width": 8}
THOROUGH = ("byol", "orchestra", "pfedae", "semifed", "cbafed", "simclr+uv", "single-ae")
EVERYWHERE: tuple[dict[str, Any], ...] = (
    {"client__precision": "bf16"}, {"model__norm": "group"}, {"model__norm": "batch-local"},
    {"client__optimizer": "adam"},
)  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((spec, values) for spec in THOROUGH for values in EVERYWHERE),
    *(
        (spec, {key.replace(".", "__"): value for key, value in values.items()})
        for name in registry.entries()
        for spec, values in variants(name)
    ),
    *((spec, SOME) for spec in ("simclr", "spectral", "simsiam", "simclr+uv")),
    ("simclr+uv", {"method__uv__uv_on": "unlabelled", **SOME}),
    ("simclr+uv", {"method__uv__rows": "mean", "server__optimizer": "adam"}),
    ("simclr", {"server__optimizer": "yogi"}),
    *(("simclr", {"server__aggregator": name}) for name in ("trimmed-mean", "median")),
    ("simclr", {"server__aggregator": "krum", "server__num_byzantine": 0, **ALL}),
    ("simclr", {"privacy__clip": 1.0, "model__norm": "group"}),
    ("simclr", {"data__partition": "rotation"}),
    ("orchestra", {"method__sinkhorn_strength": 60.0}),
    *((spec, CCT) for spec in ("simclr", "orchestra")),
]


def setup_of(spec: str, **values: Any) -> Setup:
    given: dict[str, Any] = {"model__norm": "batch", "client__batch_size": 8}
    if spec.split("+")[0] in ("semifed", "cbafed"):
        given["data__label_fraction"] = 0.5
    return tiny_setup(tiny_config(spec, **{**given, **values}))


def trained(setup: Setup, device: torch.device, folder: Path) -> tuple[list[float], Tensor]:
    """Train for a round, and to the end in a second attempt."""
    with single_thread():
        for until in (1, None):
            trainer = Trainer(
                setup,
                folder,
                "0" * 20,
                device,
                CollapseMonitor(setup, device, PersonalStore(folder / "clients")),
            )
            executor = LaneExecutor(setup, device, folder / "clients")
            for _ in trainer.rounds(executor, until=until):
                pass
    return [record.loss or 0.0 for record in trainer.history], trainer.vector.cpu()


@pytest.mark.parametrize(
    ("spec", "values"),
    extended(
        [*((spec, {}) for spec in SPECS), *VARIANTS], lambda case: case[0] not in HOOKS or case[1]
    ),
)
def test_a_run_keeps_to_one_device_and_learns_as_on_the_cpu(
    spec: str, values: dict[str, Any], tmp_path: Path
) -> None:
    rounds = 2 if values else 1
    share = 0.5 if values else 0.25
    given = {"federation__num_rounds": rounds, "federation__participation": share, **values}
    setup = setup_of(spec, **given)
    with FakeGPU() as gpu:
        there, weights = trained(setup, CUDA, tmp_path / "gpu")
    assert not gpu.draws
    views_at_once = mock.patch.object(net_module, "_in_one_pass", return_value=True)  # as there
    with without_onednn(), views_at_once:
        here, expected = trained(setup, CPU, tmp_path / "cpu")
    if values:
        within = 0.05 if "client__precision" in values else 0.02
        assert there == pytest.approx(here, rel=within, abs=1e-3)
    else:
        assert there == pytest.approx(here, rel=1e-5)  # sums of turned images run in another order
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("spec", THOROUGH)
def test_every_evaluation_keeps_to_one_device(spec: str) -> None:
    protocols = ("knn", "linear", "mlp", "local", "angles")
    setup = setup_of(spec, federation__num_rounds=1, evaluation__mlp_epochs=2)
    with FakeGPU():
        there = suite.evaluate(setup, setup.bound(CUDA), lambda _: None, protocols, CUDA)
    here = suite.evaluate(setup, setup.bound(CPU), lambda _: None, protocols, CPU)
    assert there == pytest.approx(here, abs=0.05, nan_ok=True)


@pytest.mark.parametrize(
    "spec", extended(SPECS, lambda spec: "+" in spec and spec not in {"simclr+fedu2", "simclr+uv"})
)
def test_a_steady_step_waits_for_nothing_and_repeats_itself(spec: str, tmp_path: Path) -> None:
    """The full-batch steps of a client; a recorded one would bake its numbers in."""
    setup, waits = setup_of(spec), 0
    signatures: list[Any] = []
    with FakeGPU() as gpu, single_thread():
        runner = ClientRunner(setup, CUDA, tmp_path)
        first = min(1, setup.needs.preparatory_rounds)
        task = Task(int(setup.partition.sizes.argmax()), first, RoundPlan(3))
        local = runner.begin(task, runner.binding.server.data.clone())
        optimizer = runner.optimizer(local)
        size = setup.config.client.batch_size
        for batch in islice((b for b in local.batches if len(b.labels) == size), 3):
            gpu.reset()
            runner.step(batch, local.client, optimizer)
            signatures.append(list(gpu.signature))
            waits = sum(gpu.waits.values())
            assert not gpu.draws
    assert len(signatures) == 3
    assert waits == WAITS.get(spec, 0)
    if not reason_to_run_eagerly(setup):
        assert not waits
        assert signatures[-2] == signatures[-1]


FAULTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "two devices": lambda z1, z2, _: F.cross_entropy(z1 @ z2.T, torch.arange(len(z1))),
    "generator": lambda z1, z2, _: (
        z1 * torch.randn(z1.shape, generator=torch.Generator(), device=z1.device)
    ).sum(),
    "numpy": lambda z1, z2, _: torch.tensor(z1.detach().numpy().sum()) * z1.sum(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, tmp_path: Path) -> None:
    planted = mock.patch("fedbench.methods.simclr.nt_xent", FAULTS[fault])
    with planted, FakeGPU(), pytest.raises((DeviceMismatchError, TypeError)):
        trained(setup_of("simclr"), CUDA, tmp_path)
