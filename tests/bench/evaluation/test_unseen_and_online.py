"""Probes after every round, and on clients that took no part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedbench
from fedbench.bench.data.partition import make_partition
from fedbench.bench.evaluation import unseen
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import get
from fedbench.bench.evaluation.online import online_accuracy
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import tiny_config, tiny_setup
from tests.specs import measured

SMALL: dict[str, Any] = {
    "data__train_subset": 80, "data__test_subset": 40, "data__num_clients": 2,
    "evaluation__protocols": ["linear"], "federation__num_rounds": 1,
}  # fmt: skip


def test_every_round_has_the_online_accuracy_and_the_row_is_as_without(tmp_path: Path) -> None:
    """All images fit into its draws here, so that it is the linear probe itself."""
    fields: dict[str, Any] = {**SMALL, "federation__num_rounds": 2}
    plain = fedbench.run(tiny_config("simclr", **fields), store=tmp_path, workers=1)
    curve: list[dict[str, float]] = []
    online = fedbench.run(
        tiny_config("simclr", **fields, evaluation__online=True),
        store=tmp_path,
        workers=1,
        on_round=lambda record, _: curve.append(dict(record.metrics)),
    )
    assert [set(point) for point in curve] == [{"online_acc"}] * 2
    assert curve[-1]["online_acc"] == pytest.approx(online.metrics["linear_acc"], abs=0.05)
    assert online.metrics["linear_acc"] == plain.metrics["linear_acc"]
    metric = get("online_acc")
    assert metric is not None
    assert metric.needs_labels


def test_encoders_of_clients_have_no_online_accuracy() -> None:
    binding: Any = None
    setup = tiny_setup(tiny_config("single-ae"))
    assert online_accuracy(setup, binding, torch.device("cpu")) == {}


def test_an_encoder_that_diverged_has_no_metrics() -> None:
    setup, cpu = tiny_setup(tiny_config("simclr")), torch.device("cpu")
    binding = setup.bound()
    binding.server.data.fill_(torch.nan)
    assert online_accuracy(setup, binding, cpu) == {}
    assert evaluate(setup, binding, lambda k: None, ["linear"], cpu) == {}


UNSEEN: dict[str, Any] = {**SMALL, "data__held_out": 0.4, "evaluation__unseen_clients": 3}


@pytest.mark.parametrize("kind", ["dirichlet", "rotation"])
def test_unseen_clients_hold_what_no_client_trained_on(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def record(labels: Any, num_classes: int, data: Any, seed: int) -> Any:
        made.append((labels, data, seed, make_partition(labels, num_classes, data, seed)))
        return made[-1][3]

    monkeypatch.setattr(unseen, "make_partition", record)
    config = tiny_config("simclr", **UNSEEN, evaluation__unseen_alpha=100.0, data__partition=kind)
    setup = tiny_setup(config)
    setup = replace(setup, transfer=(replace(setup.dataset, name="other"),))
    found = measured(setup, config.evaluation.protocols)
    labels, data, seed, partition = made[0]
    assert (data.num_clients, data.held_out, data.alpha) == (3, 0.0, 100.0)
    assert seed != config.seed
    assert partition.sizes.sum() == len(labels)
    assert (partition.angles is not None) == (kind == "rotation")
    assert 0 <= found["unseen_linear_acc"] <= 1
    assert found["unseen_linear_acc_std"] >= 0
    assert "transfer_other_linear_acc" in found
    assert "transfer_other_unseen_linear_acc" not in found
    metric = needed("target_unseen_linear_acc")
    assert metric.needs_labels
    assert {"unseen_clients", "unseen_alpha"} < {*metric.reads}


def test_the_deviation_is_over_encoders_where_they_differ() -> None:
    found = measured(tiny_setup(tiny_config("single-ae", **UNSEEN)), ["linear"])
    assert {name for name in found if name.startswith("unseen")} == {
        "unseen_linear_acc",
        "unseen_linear_acc_std",
    }


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "data.held_out: must be above 0"),
        ({"data.held_out": 0.1, "evaluation.labels_from": "held-out"}, "evaluation.labels_from"),
    ],
)
def test_unseen_clients_need_images_of_their_own(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve("simclr", set={"evaluation.unseen_clients": 3, **given}, environ={})


def test_more_unseen_clients_than_their_images_allow_are_refused_before_a_round(
    tmp_path: Path,
) -> None:
    rounds: list[Any] = []
    config = tiny_config(
        "simclr",
        **{**UNSEEN, "evaluation__unseen_clients": 33},
        data__partition="pathological",
    )
    with pytest.raises(ConfigError, match="unseen_clients=33, of the 32 images"):
        fedbench.run(
            config, store=tmp_path, workers=1, on_round=lambda record, _: rounds.append(record)
        )
    assert not rounds
