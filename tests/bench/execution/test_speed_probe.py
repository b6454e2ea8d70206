"""A run that asks for speed is told what it costs on this processor, by a measurement."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedbench.bench.execution import speed_probe
from fedbench.bench.execution.run import plan_run, run
from fedbench.bench.execution.speed_probe import bf16_ratio, tell_slow
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.store import Store
from fedbench.bench.testing import tiny_config


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
    tell_slow(Experiment(tiny_config("simclr", client__precision="bf16")), "cuda:0")
    tell_slow(Experiment(tiny_config("simclr")), "cpu")
    assert not caplog.messages


def test_what_compiling_costs_on_a_processor_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tell_slow(Experiment(tiny_config("simclr", client__compile=True)), "cpu")
    assert "client.compile=true: processors have taken 0.9 times (ResNet-18) to 1.3" in caplog.text
