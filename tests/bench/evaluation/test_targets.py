"""Target encoders are evaluated beside the online one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import Needs
from fedbench.bench.system.errors import PluginError
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.setup import Setup
from fedbench.methods.byol import BYOL
from fedbench.methods.fedavg_ae import FedAvgAE
from tests import specs

CPU = torch.device("cpu")
BOTH = ("knn", "linear")
SETTINGS = {"evaluation__knn_neighbours": 5, "client__lr": 0.3, "evaluation__untrained": False}


def setup_of(spec: str, **fields: Any) -> Setup:
    return tiny_setup(tiny_config(spec, **SETTINGS, **fields))


def targets(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("target_")}


@pytest.mark.parametrize("spec", ["byol", "orchestra"])
def test_a_target_scores_what_it_would_score_in_the_encoders_place(
    spec: str, tmp_path: Path
) -> None:
    """For comparison its tensors are copied into the online encoder, which is then evaluated."""
    trainer = train(setup_of(spec, method__ema_decay=0.9), tmp_path)

    def measured(protocols: tuple[str, ...] = BOTH) -> dict[str, float]:
        return evaluate(trainer.setup, trainer.binding, lambda k: None, protocols, CPU)

    metrics, net = measured(), trainer.binding.net
    assert not any(name.endswith("_std") for name in targets(metrics))
    names = {"knn_acc", "linear_acc", "linear_train_acc"}
    assert set(targets(metrics)) == {f"target_{name}" for name in names}
    online, target = net["encoder"].state_dict(), net["target_encoder"].state_dict()
    assert any(not torch.equal(online[name], target[name]) for name in online)
    net["encoder"].load_state_dict(target)
    instead = measured()
    assert {name: metrics[f"target_{name}"] for name in names} == {n: instead[n] for n in names}
    linear = {"target_linear_acc", "target_linear_train_acc"}
    assert set(targets(measured(("linear",)))) == linear
    assert targets(measured(())) == {}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("byol", {"method__target": "personal"}),
        ("byol", {"method__target": "reinit"}),
        ("orchestra", {"method__target": False}),
        ("semifed", {"data__label_fraction": 0.5}),
    ],
)
def test_targets_that_the_server_does_not_have_are_not_scored(
    spec: str, fields: dict[str, Any]
) -> None:
    assert targets(specs.measured(setup_of(spec, **fields), BOTH)) == {}


def test_an_encoder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs(views=("plain",), encoders={"slow": "slow_encoder"})
    monkeypatch.setattr(BYOL, "needs", lambda self: needs)
    with pytest.raises(PluginError, match="'slow_encoder'"):
        setup_of("byol").make_net()


def test_further_encoders_get_pixels_in_the_range_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = Needs(views=("unit",), pixels="unit", encoders={"again": "encoder"})
    monkeypatch.setattr(FedAvgAE, "needs", lambda self: needs)
    found = specs.measured(setup_of("fedavg-ae"), BOTH)
    for name in ("knn_acc", "linear_acc", "linear_train_acc"):
        assert found[f"again_{name}"] == found[name]
