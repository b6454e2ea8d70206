"""Switches of a GPU's bits: set before CUDA starts wherever a run computes, restored afterwards."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.execution import workers
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.estimate import Estimator
from fedbench.bench.execution.execute import execute, untrained_figures
from fedbench.bench.execution.run import run
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import Loss, RoundPlan
from fedbench.bench.results.store.store import Store
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import ResourceError
from fedbench.bench.system.regime import (
    check_precision,
    products,
    reproducible,
)
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.client import ClientRunner, Task
from tests.specs import setup_of

CPU = torch.device("cpu")


class Started(Exception):  # noqa: N818
    """CUDA would start now."""


def switches() -> dict[str, Any]:
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fills": getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009
        "cudnn": torch.backends.cudnn.deterministic,
        "tunes": torch.backends.cudnn.benchmark,
        "convolutions": torch.backends.cudnn.allow_tf32,
        "products": torch.backends.cuda.matmul.allow_tf32,
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


REPRODUCIBLE = {
    "deterministic": True,
    "warns": True,
    "fills": False,
    "cudnn": True,
    "tunes": False,
    "convolutions": False,
    "products": False,
    "flash": False,
    "efficient": False,
    "workspace": ":4096:8",
}


@pytest.fixture(autouse=True)
def no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that a change of it is undone
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A GPU that stops a process at its first use, and the switches at that moment."""
    seen: list[dict[str, Any]] = []

    def start() -> None:
        seen.append(switches())
        raise Started

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", start)
    real = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        if "cuda" in f"{args}{kwargs}":  # in a process that had a fake GPU torch starts none again
            start()
        return real(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "to", to)
    return seen


def test_a_gpu_is_reproducible_inside_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before = switches()
    with reproducible("cuda:0"):
        assert switches() == REPRODUCIBLE
        with products(tf32=True):
            assert switches() == {**REPRODUCIBLE, "convolutions": True, "products": True}
        assert switches() == REPRODUCIBLE
    assert {**switches(), "workspace": None} == before
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # the user's is as good
    with reproducible("cuda:0"):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process, from its first message to its answer."""
    run = Experiment(tiny_config("simclr")), tmp_path
    sent: list[Any] = []

    class Pipe:
        """The other end asks for one client, and raises what comes back."""

        asked: Iterator[Any] = iter(
            [(run, "cuda:0", 1, 1, 1, {}), (0, Task(0, 0, RoundPlan(1)), 0)]
        )

        def __init__(self, channel: int) -> None:
            pass

        def recv(self) -> Any:
            return next(self.asked)

        def send(self, answer: tuple[Any, ...]) -> None:
            sent.append(answer)
            raise Started if "Started" in answer[2] else AssertionError(answer)

    monkeypatch.setattr(workers, "Connection", Pipe)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("warnings.simplefilter", lambda *_, **__: None)
    monkeypatch.setattr(logging.getLogger(first_use.__name__), "disabled", False)  # restored
    memory = workers._shared_memory(8)
    workers._run_worker(0, memory)


PROCESSES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "run": lambda tmp_path, _: execute(
        Experiment(tiny_config("simclr")), Where(tmp_path, ["cuda:0"])
    ),
    "worker": worker,
    "estimate": lambda tmp_path, _: Estimator(["cuda:0"])(Experiment(tiny_config("simclr"))),
    "untrained": lambda tmp_path, _: untrained_figures(Experiment(tiny_config("simclr")), "cuda:0"),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_switches_are_set_before_cuda_starts(
    process: str, gpu: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {**switches(), "workspace": ":4096:8"}
    with pytest.raises(Started):
        PROCESSES[process](tmp_path, monkeypatch)
    assert gpu[:1] == [REPRODUCIBLE]
    assert switches() == before


def test_tf32_is_for_gpus(tmp_path: Path) -> None:
    config = tiny_config("simclr", client__precision="tf32")
    message = "client.precision=tf32"
    with pytest.raises(ResourceError, match=message) as refused:
        run(config, store=Store(tmp_path / "store"), workers=1, device="cpu")
    assert refused.value.exit_code == 3
    assert not (tmp_path / "store" / "rows").exists()
    with pytest.raises(ResourceError, match=message):
        Estimator(["cpu"])(Experiment(config))
    for precision, device in (("fp32", "cpu"), ("bf16", "cpu"), ("tf32", "cuda:1")):
        check_precision(precision, device)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_tf32_is_on_while_clients_train_and_off_otherwise(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products of a GPU's regime, seen from the hooks of a method on a CPU."""
    monkeypatch.setattr("fedbench.bench.training.client.check_precision", lambda *_: None)
    setup = setup_of("simclr", client__precision=precision)
    seen: dict[str, set[bool]] = {}

    def note(hook: str) -> None:
        now = switches()
        seen.setdefault(hook, set()).update((now["convolutions"], now["products"]))

    loss = type(setup.method).loss

    def noted(*given: Any) -> Loss:
        note("loss")
        return loss(*given)

    monkeypatch.setattr(type(setup.method), "loss", noted)
    runner = ClientRunner(setup, CPU, tmp_path)
    upload = torch.empty(runner.layout.upload_size)
    with reproducible("cuda"):
        runner.run(Task(0, 0, RoundPlan(1)), runner.binding.server.data.clone(), upload)
        note("server")
    assert seen == {"loss": {precision == "tf32"}, "server": {False}}
