"""A run that asks for speed is told what it costs on this processor, by a measurement."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.execution import speed_probe
from fedbench.bench.execution.estimate import Estimator
from fedbench.bench.execution.run import plan_run, run
from fedbench.bench.execution.speed_probe import bf16_ratio, check_speed
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import tiny_config
from fedbench.bench.tuning import sweep as sweep_module
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.grid import Grid
from fedbench.bench.tuning.sweep import sweep
from fedbench.bench.tuning.tune import tune


def clock(plain: float, short: float) -> Iterator[float]:
    """Readings before and after passes in fp32 and bf16 in turns."""
    now = 0.0
    while True:
        for seconds in (plain, short):
            yield now
            now += seconds
            yield now


@pytest.mark.parametrize("short", [0.5, 1.0, 3.0])
def test_the_ratio_is_of_a_pass_forward_and_back(short: float) -> None:
    readings = clock(0.01, 0.01 * short)
    setup = Experiment(tiny_config("simclr")).setup
    assert bf16_ratio(setup, lambda: next(readings)) == pytest.approx(short)


def test_it_changes_nothing_of_the_run() -> None:
    setup = Experiment(tiny_config("orchestra", model__norm="batch")).setup
    before, state = setup.make_net(), torch.get_rng_state()
    assert bf16_ratio(setup) > 0
    after = setup.make_net()
    assert after.precision == before.precision
    pairs = zip(before.state_dict().values(), after.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("ratio", "told"), [(0.6, False), (1.05, False), (1.5, True)])
def test_slow_bf16_is_told_before_a_run_and_with_its_plan(
    ratio: float,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(speed_probe, "bf16_ratio", lambda setup: ratio)
    config, places = tiny_config("simclr", client__precision="bf16"), {"workers": 1}
    store = Store(tmp_path / "store")
    plan_run(config, store=store, **places, device="cpu")
    run(config, store=store, **places, device="cpu")
    lines = [line for line in caplog.messages if "client.precision=bf16" in line]
    assert len(lines) == 2 * told
    assert all("takes 1.5 times as long" in line for line in lines)


def test_a_gpu_and_a_plain_run_are_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for fields in ({"client__precision": "bf16"}, {"client__compile": True}):
        check_speed(Experiment(tiny_config("simclr", **fields)), "cuda:0", begun=False)
    check_speed(Experiment(tiny_config("simclr")), "cpu", begun=False)
    assert not caplog.messages


def compiling(monkeypatch: pytest.MonkeyPatch, compiled: float) -> None:
    """Let steps take 0.01 s, and `compiled` times as long after 8 s of compiling."""

    def step(_: Estimator, experiment: Experiment) -> tuple[float, float]:
        return (0.01 * compiled, 8.0) if experiment.config.client.compile else (0.01, 0.0)

    monkeypatch.setattr(Estimator, "step", step)


def test_what_compiling_gains_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiling(monkeypatch, 0.88)
    check_speed(Experiment(tiny_config("simclr", client__compile=True)), "cpu", begun=False)
    assert "takes 0.88 times as long for a step of this run as without, after 8 s" in caplog.text


@pytest.mark.parametrize("command", ["plan_run", "run", "sweep", "tune"])
def test_to_compile_slower_steps_is_refused_before_anything_is_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling(monkeypatch, 1.27)
    store = tmp_path / "store"
    axes = {"client.lr": (0.03,)}
    grid = Grid(grid="small", description="one cell", axes=axes, methods=("simclr",))
    few = {"data.train_subset": 80, "client.compile": True}
    asked: dict[str, Any] = {"preset": "demo", "set": few, "store": store, "device": "cpu"}
    calls: dict[str, Callable[[], object]] = {
        "plan_run": lambda: plan_run("simclr", workers=1, **asked),
        "run": lambda: run("simclr", workers=1, **asked),
        "sweep": lambda: sweep(grid, **asked),
        "tune": lambda: tune("simclr", trials=2, **asked),
    }
    with pytest.raises(ConfigError, match=r"client.compile=true: .* takes 1.27 times .*; leave"):
        calls[command]()
    assert not Store(store).rows()


def test_what_has_begun_is_told_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiling(monkeypatch, 1.27)
    check_speed(Experiment(tiny_config("simclr", client__compile=True)), "cpu", begun=True)
    assert "takes 1.27 times as long" in caplog.text


def test_what_trains_nothing_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without rounds, and one that is stored."""
    compiling(monkeypatch, 1.27)
    still = tiny_config("simclr", client__compile=True, federation__num_rounds=0)
    check_speed(Experiment(still), "cpu", begun=False)
    config = tiny_config("simclr", client__compile=True)
    row = run(tiny_config("simclr"), store=tmp_path, workers=1, device="cpu").row
    monkeypatch.setattr(Store, "finished", lambda *_: row)  # as if compiled
    assert plan_run(config, store=tmp_path, workers=1, device="cpu").stored


def test_a_step_is_measured() -> None:
    step, compiling = Estimator(["cpu"]).step(Experiment(tiny_config("simclr")))
    assert step > 0
    assert compiling == 0
    none = Experiment(tiny_config("simclr", federation__num_rounds=0))
    assert Estimator(["cpu"]).step(none) == (0, 0)


def test_a_sweep_that_has_begun_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a round of one of its cells on disk, though with no row; and one more is refused."""
    compiling(monkeypatch, 1.27)
    few = {"data.train_subset": 80, "client.compile": True}
    grid = Grid(grid="small", description="one cell", methods=("simclr",))
    asked: dict[str, Any] = {"preset": "demo", "device": "cpu", "dry_run": True}
    monkeypatch.setattr(Executor, "cost", lambda *_: None)
    with pytest.raises(ConfigError, match="leave it out"):
        sweep(grid, set=few, store=tmp_path, **asked)
    monkeypatch.setattr(sweep_module, "rounds_saved", lambda _: 1)
    assert sweep(grid, set=few, store=tmp_path, **asked).to_run == 1
    assert "takes 1.27 times as long" in caplog.text
