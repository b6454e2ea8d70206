"""Compiled passes compute the plain step up to rounding, and the same bits in any lanes.

Torch's compiler runs without its code generator here, which needs a C++ compiler and minutes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from fedbench.bench.method import Net, RoundPlan
from fedbench.bench.nn import compiled
from fedbench.bench.nn.norms import BatchNorm1d
from fedbench.bench.system import first_use
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.setup import Setup
from tests.specs import extended

CPU = torch.device("cpu")
pytestmark = pytest.mark.onednn


@pytest.fixture(autouse=True)
def _without_code_generator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    first_use.begin_run()
    yield
    first_use.begin_run()


def setup_of(spec: str, **values: Any) -> Setup:
    given: dict[str, Any] = {
        "data__num_clients": 2, "model__norm": "batch", "client__batch_size": 8,
        "client__keep_last_batch": True, "client__lr": 0.003,
    }  # fmt: skip
    return tiny_setup(
        tiny_config(spec, **{**given, **values}), shares=[list(range(20)), list(range(20, 36))]
    )


def uploads(setup: Setup, folder: Path, lanes: int | None) -> list[Tensor]:
    tasks = [Task(client, 1, RoundPlan(1)) for client in range(2)]
    server = setup.bound().server.data.clone()
    executor = LaneExecutor(setup, CPU, folder, lanes)
    return [upload.clone() for _, upload in executor.train(tasks, server)]


SHORT: list[tuple[str, dict[str, Any]]] = [
    ("simclr", {}),
    ("simclr", {"client__precision": "bf16", "model__norm": "group"}),
]
LONG: list[tuple[str, dict[str, Any]]] = [
    ("byol", {}), ("orchestra", {}), ("simclr+uv", {}), ("simclr+scaffold", {}),
    ("simclr+fedprox", {}),
    ("byol", {"method__target": "personal"}), ("spectral", {"model__norm": "group"}),
]  # fmt: skip


@pytest.mark.parametrize(("width", "expected"), [(8, False), (9, True)])
def test_a_narrow_encoder_does_not_compute_in_channels_last_on_a_cpu(
    width: int, expected: bool, tmp_path: Path
) -> None:
    """There oneDNN writes past its buffers: 8 is the last such width."""
    setup = setup_of("simclr", client__compile=True, model__width=width)
    binding = ClientRunner(setup, CPU, tmp_path).binding
    assert any(slot.channels_last for slot in binding.layout.server) is expected


@pytest.mark.parametrize(("spec", "values"), [*SHORT, *extended(LONG, bool)])
def test_compiled_passes_compute_the_plain_step(
    spec: str, values: dict[str, Any], tmp_path: Path
) -> None:
    plain = uploads(setup_of(spec, **values), tmp_path / "plain", None)
    setup = setup_of(spec, client__compile=True, **values)
    alone = uploads(setup, tmp_path / "alone", None)
    assert any("encoder" in name for name in first_use.agreed())
    assert not first_use.switched_off()
    within = 0.3 if "client__precision" in values else 0.02
    start = uploads(setup_of(spec, **{**values, "client__lr": 1e-12}), tmp_path / "start", None)
    for first, expected, found in zip(start, plain, alone, strict=True):
        assert (found - expected).norm() < within * (expected - first).norm()
    for expected, found in zip(alone, uploads(setup, tmp_path, 2), strict=True):
        assert torch.equal(expected, found)


def test_what_does_not_compile_is_computed_plainly_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Tensor:
        raise TorchDynamoException("no compiler\nhere\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(compiled.CompiledParts, "run", fails)
    found = uploads(setup_of("simclr", client__compile=True), tmp_path / "a", 2)
    reason = "TorchDynamoException: no compiler here"
    assert first_use.switched_off() == {first_use.COMPILER: reason}
    assert len(caplog.records) == 1
    plain = uploads(setup_of("simclr"), tmp_path / "b", 2)
    for expected, other in zip(plain, found, strict=True):
        torch.testing.assert_close(other, expected, rtol=1e-3, atol=1e-4)  # views at once


def test_only_factors_of_products_are_read_in_bf16(tmp_path: Path) -> None:
    """Positions are added: in bf16 they would bring all tokens of a transformer to bf16."""
    values = {"model__backbone": "cct-4-3x2", "model__width": 24, "client__precision": "bf16"}
    step = ClientRunner(setup_of("simclr", client__compile=True, **values), CPU, tmp_path)._compiled
    assert step is not None
    read = step.tensors("encoder")
    matrices = {name for name, value in read.items() if value.dim() > 1}
    copied = {name for name, value in read.items() if value.dtype == torch.bfloat16}
    assert matrices - copied == {"positions"}
    assert copied < matrices


def test_only_whole_batches_are_compiled(tmp_path: Path) -> None:
    """The target of SemiFed sees the images without a label, as many as a batch happens to have."""
    setup = setup_of("semifed", client__compile=True, data__label_fraction=0.5)
    uploads(setup, tmp_path, None)
    assert {int(name.rpartition(" ")[2]) % 8 for name in first_use.agreed()} == {0}


def test_a_pass_of_one_net_leaves_the_modes_of_another() -> None:
    parts = compiled.CompiledParts("fp32")
    nets = [Net({"head": nn.Sequential(nn.Linear(2, 3), BatchNorm1d(3))}) for _ in range(2)]
    first, other = (net["head"] for net in nets)
    x = torch.rand(4, 2)
    parts.run("head", first, dict(first.state_dict()), x)
    y = parts.run("head", other.eval(), dict(other.state_dict()), x)
    torch.testing.assert_close(y, other(x))
    assert all(module.training for module in first.modules())


class Held(nn.Linear):
    """A layer that finds its weight in a list, which swapped tensors do not reach."""

    def __init__(self) -> None:
        super().__init__(2, 3, bias=False)
        self.held = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.held[0].T


class Passes:
    def __init__(self, net: Net, parts: compiled.CompiledParts) -> None:
        self._net, self._parts = net, parts

    def takes(self, x: Tensor) -> bool:
        return True

    def tensors(self, part: str) -> dict[str, Tensor]:
        return dict(self._net[part].named_parameters())

    def run(self, part: str, x: Tensor) -> Tensor:
        return self._parts.run(part, self._net[part], self.tensors(part), x)


def test_code_of_one_net_is_compared_in_each_other() -> None:
    parts, x = compiled.CompiledParts("fp32"), torch.rand(4, 2)
    for off in (False, True):
        net = Net({"head": Held()})
        net.compiled = Passes(net, parts)
        torch.testing.assert_close(net(x, "head"), x @ net.tensor("head.weight").T)
        assert bool(first_use.switched_off()) == off
