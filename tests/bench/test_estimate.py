"""Estimates: bytes and steps are those of the run, time is positive."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.bench.errors import ConfigError
from fedbench.bench.estimate import Estimator
from fedbench.bench.testing import tiny_config, tiny_setup, train


@pytest.mark.parametrize("keep_last", [True, False])
def test_bytes_and_steps_are_those_of_the_run(tmp_path: Path, keep_last: bool) -> None:
    config = tiny_config(
        "simclr+uv",
        federation__participation=0.5,
        client__local_epochs=2,
        client__keep_last_batch=keep_last,
    )
    estimate = Estimator()(config)
    trainer = train(tiny_setup(config), tmp_path)
    assert estimate.bytes_up == trainer.ledger.bytes_up
    assert estimate.bytes_down == trainer.ledger.bytes_down
    assert estimate.num_steps == sum(record.num_steps for record in trainer.history)
    assert estimate.seconds > 0
    stored = sum(path.stat().st_size for path in tmp_path.glob("round-*"))
    assert estimate.disk_bytes >= stored * 0.5


def test_one_measurement_serves_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = Estimator()
    first = estimator(tiny_config("simclr", federation__num_rounds=2))
    monkeypatch.setattr(Estimator, "_measure", None)  # measuring again would fail
    doubled = estimator(tiny_config("simclr", federation__num_rounds=4, seed=3))
    assert doubled.bytes_up == 2 * first.bytes_up
    assert doubled.num_steps == 2 * first.num_steps


def test_a_bad_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="--device"):
        Estimator(device="tpu")
