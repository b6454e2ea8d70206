"""Estimates: bytes and steps equal those of the run, times are positive."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.runs import estimate
from fedbench.bench.runs.estimate import Estimator, estimates
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.setup import Setup


@pytest.mark.parametrize(
    ("spec", "keep_last", "fields"),
    [
        ("simclr+uv", True, {}), ("simclr+uv", False, {}), ("orchestra", True, {}),
        pytest.param("pfedae", True, {}, marks=pytest.mark.extended),
        ("pfedae", False, {}), ("central-ae", True, {}),
        ("pfedae", True, {"method__gradient": "ship"}),
        pytest.param("pfedae", True, {"method__gradient": "ste"}, marks=pytest.mark.extended),
    ],
)  # fmt: skip
def test_bytes_and_steps_are_those_of_the_run(
    tmp_path: Path, spec: str, keep_last: bool, fields: dict[str, str]
) -> None:
    """This includes extras beside weights, preparatory rounds, and activations in training."""
    config = tiny_config(
        spec,
        **fields,
        federation__participation=0.5,
        client__local_epochs=2,
        client__keep_last_batch=keep_last,
    )
    estimate = Estimator()(config)
    trainer = train(tiny_setup(config), tmp_path)
    assert estimate.bytes_up == trainer.ledger.bytes_up
    assert estimate.bytes_down == trainer.ledger.bytes_down
    assert estimate.num_steps == sum(record.num_steps for record in trainer.history)
    assert estimate.seconds == pytest.approx(
        estimate.train_seconds + estimate.evaluation_seconds + estimate.start_seconds
    )
    assert min(estimate.train_seconds, estimate.evaluation_seconds, estimate.start_seconds) > 0
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert estimate.disk_bytes >= stored * 0.5


def test_incomplete_batches_are_measured_even_if_they_are_left_out() -> None:
    """Clients have fewer labelled images than a batch here, so a run may make no step at all."""
    config = tiny_config(
        "cbafed",
        data__label_fraction=0.1,
        client__batch_size=16,
        client__keep_last_batch=False,
        method__warmup_rounds=1,
    )
    assert Estimator()(config).step_seconds > 0


@pytest.mark.parametrize(
    "spec",
    [
        "simclr+uv", "semifed+uv", "central-ae",
        pytest.param("supervised", marks=pytest.mark.extended),
        pytest.param("cbafed+uv", marks=pytest.mark.extended),
    ],
)  # fmt: skip
def test_images_without_a_label_count_as_trained_on(tmp_path: Path, spec: str) -> None:
    """The estimate is an upper bound: only some rounds, or none, train on unlabelled images.

    Only the method knows these images, and for pseudo-labels only after it has learned.
    SemiFed starts on labelled images, the centralised autoencoder ends on them.
    """
    given: dict[str, Any] = {
        "semifed+uv": {"warmup_rounds": 1},
        "central-ae": {"pretrain_rounds": 2},
    }
    fields = {f"method__{name}": value for name, value in given.get(spec, {}).items()}
    values = {"federation__num_rounds": 3, "client__batch_size": 4, **fields}
    config = tiny_config(spec, data__label_fraction=0.25, **values)
    estimated = Estimator()(config)
    trainer = train(tiny_setup(config), tmp_path)
    num_steps = sum(record.num_steps for record in trainer.history)
    assert estimated.bytes_up == trainer.ledger.bytes_up
    if spec == "simclr+uv":  # reads no label
        assert estimated.num_steps == num_steps
    else:
        assert estimated.num_steps > num_steps


def test_pseudo_labels_may_be_given_to_every_image() -> None:
    config = tiny_config("cbafed+uv", data__label_fraction=0.25)
    assert Estimator()(config).num_steps == Estimator()(tiny_config("simclr")).num_steps


def _costs(estimator: Estimator) -> list[Any]:
    return [costs for alike in estimator._known.values() for costs in alike.values()]


def _after(estimator: Estimator, config: RunConfig) -> Estimator:
    estimator(config)
    return estimator


def test_one_measurement_serves_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = Estimator()
    first = estimator(tiny_config("simclr", federation__num_rounds=2))
    monkeypatch.setattr(Estimator, "_measure", None)  # measuring again would fail
    doubled = estimator(tiny_config("simclr", federation__num_rounds=4, seed=3))
    assert doubled.bytes_up == 2 * first.bytes_up
    assert doubled.num_steps == 2 * first.num_steps


def test_three_of_many_real_numbers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator, measured = Estimator(), []
    costs = next(iter(_costs(_after(estimator, tiny_config("simclr")))))

    def measure(_: Estimator, setup: Setup) -> Any:
        measured.append(setup.config.method["temperature"])
        return replace(costs, step=float(len(measured)))

    monkeypatch.setattr(Estimator, "_measure", measure)
    found = [
        estimator(tiny_config("simclr", method__temperature=t)).step_seconds
        for t in (0.1, 0.2, 0.3, 0.4, 0.1, 0.3)
    ]
    assert len(measured) == 2  # and the one of before
    assert found[2] == found[3] == max(found)
    estimator(tiny_config("simclr", method__hidden_dim=10))
    assert len(measured) == 3


def test_a_bad_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="--device"):
        Estimator(device="tpu")


def test_workers_share_the_clients_and_start_once_more() -> None:
    """With six clients on four workers the busiest trains two: a third of one worker's time."""
    config = tiny_config("supervised", data__num_clients=6, federation__participation=1.0)
    alone, shared = Estimator(device="cpu"), Estimator(device="cpu", workers=4)
    alone(config)
    shared._known = alone._known
    for seconds in _costs(alone):
        seconds.round = seconds.checkpoint = 0.0
    one, four = alone(config), shared(config)
    assert (one.workers, four.workers) == (1, 4)
    assert four.train_seconds == pytest.approx(one.train_seconds / 3)
    assert four.start_seconds == pytest.approx(2 * one.start_seconds)
    assert four.evaluation_seconds == one.evaluation_seconds


def test_checkpoints_of_long_runs_count_by_their_time() -> None:
    """One a second long: 1,000 of them in 1,000 rounds, but one every 10 s in longer runs."""
    estimator = Estimator(device="cpu")
    config = tiny_config("supervised", data__num_clients=1, federation__num_rounds=1000)
    longer = tiny_config("supervised", data__num_clients=1, federation__num_rounds=2000)
    estimator(config)
    for costs in _costs(estimator):
        costs.step, costs.client, costs.round, costs.checkpoint = 0.0, 0.0, 0.25, 1.0
    assert estimator(config).train_seconds == pytest.approx(1000 * 0.25 + 1000)
    assert estimator(longer).train_seconds == pytest.approx(2000 * 0.25 + 1 + 500 / 10)


def test_evaluation_of_many_images_is_measured_on_some(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("supervised")
    seen: list[int] = []

    def evaluated(setup: Setup, *rest: object) -> dict[str, float]:
        seen.append(len(setup.images) + len(setup.dataset.test_images))
        return {}

    monkeypatch.setattr(estimate, "evaluate", evaluated)
    monkeypatch.setattr(estimate, "_EVALUATED", (20, 10))
    Estimator(device="cpu")(config)
    assert seen == [5, 5, 30, 30]  # an eighth first, which is enough if it takes long
    seen.clear()
    monkeypatch.setattr(estimate, "_LONG", -1.0)
    Estimator(device="cpu")(config)
    assert seen == [5]


def test_a_gpu_is_measured_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process names `cuda`, and the other one is told that there is only a CPU."""
    configs = [tiny_config("simclr+uv", client__local_epochs=2)]
    here = estimates(configs, None, "cpu", 1)
    plain, asked = subprocess.run, []

    def on_cpu(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        order = {**json.loads(given["input"]), "device": "cpu"}
        return plain(command, **{**given, "input": json.dumps(order)})

    monkeypatch.setattr(Estimator, "__call__", None)  # measuring here would fail
    monkeypatch.setattr("torch.cuda._lazy_init", None)
    monkeypatch.setattr(subprocess, "run", on_cpu)
    apart = estimates(configs, None, "cuda", 1)
    assert len(asked) == 1
    for one, other in zip(here, apart, strict=True):
        assert (one.num_steps, one.bytes_up, one.disk_bytes) == (
            (other.num_steps, other.bytes_up, other.disk_bytes)
        )
        assert other.step_seconds > 0


def test_errors_of_the_measuring_process_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ResourceError):
        estimates([tiny_config("simclr")], None, "cuda", 1)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ResourceError, match="exit code 1"):
        estimates([tiny_config("simclr")], None, "cuda", 1)
