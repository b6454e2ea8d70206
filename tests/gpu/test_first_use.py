"""First use of what only a GPU has: what is wrong is noticed and left out, what is right stays."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from fedbench.bench.config import RunConfig
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import execute
from fedbench.bench.execution.workers import WorkerPool, _serve
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import RoundPlan
from fedbench.bench.method import net as net_module
from fedbench.bench.nn.norms import views_apart
from fedbench.bench.system import first_use
from fedbench.bench.system.first_use import (
    FUSED_SGD,
    RECORDED_CLUSTERING,
    RECORDED_STEPS,
    VIEWS_AT_ONCE,
)
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.checkpoint import newest_first, read_checkpoint
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.trainer import Trainer
from fedbench.bench.tuning import doctor
from tests.gpu.fake_gpu import FakeGPU, FakeGraph
from tests.specs import extended

SMALL: dict[str, Any] = {
    "model__norm": "batch",
    "client__batch_size": 8,
    "data__num_clients": 2,
    "federation__num_rounds": 1,
    "evaluation__protocols": [],
    "evaluation__untrained": False,
}
CONFIG = tiny_config("simclr", **SMALL)
Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    first_use.begin_run()
    yield
    first_use.begin_run()


def norms_that_mix_views(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(net_module, "views_apart", lambda norms, num_views: nullcontext())


def fused_sgd_without_weight_decay(patch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **settings: Any) -> None:
        sgd(*args, **settings | ({"weight_decay": 0.0} if settings["fused"] else {}))

    patch.setattr("fedbench.bench.nn.optimizers.sgd", wrong)


def graphs_without_the_first_sum(patch: pytest.MonkeyPatch) -> None:
    real = FakeGraph.replay

    def replay(graph: FakeGraph) -> None:
        names = [func.overloadpacket.__name__ for func, *_ in graph.operations]
        del graph.operations[names.index("add_")]  # of a residual block
        real(graph)

    patch.setattr(FakeGraph, "replay", replay)


def run(
    folder: Path, lanes: int | None = 2, config: RunConfig = CONFIG
) -> tuple[dict[str, Any], Tensor]:
    """Return the environment of a run's row, and its last weights."""
    with FakeGPU():
        row = execute(Experiment(config), Where(folder, ["cuda:0"], lanes))
    weights = read_checkpoint(newest_first(folder)[0]).tensors["server"]
    return row.environment, weights


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (VIEWS_AT_ONCE, norms_that_mix_views),
        (FUSED_SGD, fused_sgd_without_weight_decay),
        (RECORDED_STEPS, graphs_without_the_first_sum),
    ],
)
def test_what_is_wrong_is_done_without_and_the_row_says_so(
    name: str,
    fault: Fault,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = first_use.checked

    def without(what: str, fast: Any, plain: Any, *args: Any) -> Any:
        return plain() if what == name else real(what, fast, plain, *args)

    with mock.patch.object(first_use, "checked", without):
        env, expected = run(tmp_path / "without")
    assert "switched_off" not in env
    assert not caplog.records
    fault(monkeypatch)
    env, weights = run(tmp_path / "wrong")
    assert torch.equal(weights, expected)
    (line,) = caplog.messages
    assert name in line
    assert env["switched_off"].startswith(f"{name}: ")
    assert env["lanes"] == f"2, {6 if name == RECORDED_STEPS else 10} of 10 steps replayed"
    assert list(first_use.switched_off()) == [name]


@pytest.mark.parametrize(("limits", "refused"), [({}, False), ({"bf16": 5e-2}, True)])
def test_other_kernels_for_views_in_one_pass_are_rounding(
    limits: dict[str, float], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that round each weight otherwise stand for those of a larger batch."""
    draws = torch.Generator().manual_seed(0)

    @contextmanager
    def other_kernels(norms: Sequence[Any], num_views: int) -> Iterator[None]:
        weights = [norm.weight.data for norm in norms if isinstance(norm.weight, Tensor)]
        before = [weight.clone() for weight in weights]
        for weight in weights:
            noise = torch.randn(weight.shape, generator=draws).to(weight.device)
            weight.mul_(1 + 2**-8 * noise)
        with views_apart(norms, num_views):
            yield
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)

    monkeypatch.setattr(net_module, "views_apart", other_kernels)
    monkeypatch.setattr(first_use, "VIEWS_TOLERANCE", {**first_use.VIEWS_TOLERANCE, **limits})
    if limits:
        monkeypatch.setattr(first_use, "GRADIENT_FACTOR", 1)
    values = {**SMALL, "model__backbone": "resnet8", "client__precision": "bf16"}
    env, _ = run(tmp_path, None, tiny_config("simclr", **values))
    assert ("switched_off" in env) == refused


# An add-on trains a row of its own; a step of orchestra fills the client's memory; byol's target
# of a round lies outside the vectors.
@pytest.mark.parametrize(
    "spec", ["simclr+uv", "byol", *extended(["orchestra", "simclr"], lambda _: True)]
)
def test_what_is_right_stays_and_nothing_is_said(
    spec: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"method__target": "reinit"} if spec == "byol" else {}
    config = tiny_config(spec, **SMALL, **values)
    in_lanes = run(tmp_path / "lanes", 2, config)
    assert RECORDED_STEPS in first_use.agreed()
    alone = run(tmp_path / "alone", None, config)
    assert torch.equal(in_lanes[1], alone[1])
    assert not caplog.records
    assert "switched_off" not in in_lanes[0] | alone[0]


def test_a_resumed_run_and_a_worker_tell_what_they_do_without(tmp_path: Path) -> None:
    setup = tiny_setup(CONFIG)
    cpu = torch.device("cpu")

    def begin() -> Trainer:
        return Trainer(setup, tmp_path, "0" * 20, cpu, lambda *_: None)

    trainer = begin()
    first_use.switch_off({FUSED_SGD: "weights differ"})
    trainer.save()
    first_use.begin_run()
    begin()
    assert first_use.switched_off() == {FUSED_SGD: "weights differ"}

    run = Experiment(CONFIG), tmp_path / "clients"
    ours, theirs = Pipe()
    upload = torch.empty(trainer.layout.upload_size)
    worker = threading.Thread(
        target=_serve, args=(theirs, *run, "cpu", trainer.vector, [upload]), daemon=True
    )
    worker.start()
    ours.send((0, Task(0, 0, RoundPlan(1)), 0))
    message = ours.recv()
    ours.close()
    worker.join()
    first_use.begin_run()  # this process is now the parent
    receiver = mock.Mock(recv=lambda: message)
    _, trained, _ = WorkerPool._receive(cast(Any, None), receiver)
    assert isinstance(trained, Trained)
    assert first_use.switched_off() == {FUSED_SGD: "weights differ"}


def test_tiny_runs_on_a_gpu_say_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "RUNS", (("simclr", "fp32"), ("no-such-method", "fp32")))
    monkeypatch.setattr(doctor, "_TINY", {**doctor._TINY, "data.train_subset": 64})
    fused_sgd_without_weight_decay(monkeypatch)
    with FakeGPU():
        checks = {check.name: check for check in doctor._first_runs()}
    assert {name: check.status for name, check in checks.items()} == {
        "simclr in fp32": "ok",
        "no-such-method in fp32": "problem",
        VIEWS_AT_ONCE: "ok",
        FUSED_SGD: "warning",
        RECORDED_STEPS: "ok",
        RECORDED_CLUSTERING: "warning",  # which no run came to use
    }
    assert "momenta differ" in checks[FUSED_SGD].detail
