"""Aggregators that an add-on brings: before the optimizer, declared, and refused in places."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedbench.bench.config import ServerConfig
from fedbench.bench.execution.guarantees import columns, declared, needed_one_by_one
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.experiment.steps import without_effect
from fedbench.bench.method import (
    AddOn,
    Aggregator,
    ConfigError,
    Krum,
    Mean,
    PluginError,
    TrimmedMean,
    register,
    registry,
)
from fedbench.bench.testing import all_tensors, assert_same_run, tiny_config, train
from fedbench.bench.training.server_optimizers import server_optimizer
from tests.specs import setup_of

ADAPTIVE = {"adam": 0.01, "yogi": 0.01}


class Trimmed(AddOn):
    def aggregator(self, default: Aggregator, held: Tensor, round_index: int) -> Aggregator:
        return TrimmedMean(0.25)


class Seeing(Mean):
    """The mean, which also keeps each upload for the test."""

    uploads: ClassVar[list[list[Tensor]]] = []

    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        self.uploads[-1].append(upload.clone())
        super().fold(client_id, weight, upload)


class Watched(AddOn):
    def aggregator(self, default: Aggregator, held: Tensor, round_index: int) -> Aggregator:
        Seeing.uploads.append([])
        return Seeing()


class Short(AddOn):
    def aggregator(self, default: Aggregator, held: Tensor, round_index: int) -> Aggregator:
        class OneNumber(Mean):
            def result(self) -> Tensor:
                return super().result()[:1]

        return OneNumber()


def test_factors_scale_what_weights_have_weighed() -> None:
    """(1 * 2 + 3 * 4) / (1 + 3) = 3.5, and half of it where the factor is a half."""
    mean = Mean(weigh=lambda upload: [(slice(0, 1), 0.5)])
    mean.fold(0, 1.0, torch.tensor([2.0, 2.0]))
    mean.fold(1, 3.0, torch.tensor([4.0, 4.0]))
    assert mean.result().tolist() == [1.75, 3.5]


@pytest.fixture(autouse=True)
def _plugins(_own_registry: None) -> None:
    for name, cls in (("trimmed", Trimmed), ("watched", Watched), ("short", Short)):
        cls.name = ""
        register(name)(cls)
    Seeing.uploads.clear()


@pytest.mark.parametrize("optimizer", ["average", "adam", "yogi"])
def test_the_servers_optimizer_steps_towards_the_aggregate(optimizer: str, tmp_path: Path) -> None:
    """One round equals a loop over the numbers of the four uploads, then the optimizer's step.

    An add-on that brings the aggregator and the setting that names it give the same bits.
    """
    values: dict[str, Any] = {"server__lr": ADAPTIVE.get(optimizer, 1.0)}
    values |= {"server__optimizer": optimizer, "federation__num_rounds": 1}
    watched = train(setup_of("simclr+watched", **values), tmp_path / "watched")
    trimmed = train(setup_of("simclr+trimmed", **values), tmp_path / "trimmed")
    (rows,) = filter(None, Seeing.uploads)
    target = torch.stack(rows).double().sort(dim=0).values[1:3].mean(dim=0)  # of 4, 1 at either end
    theta, change = watched.initial.clone(), target - watched.initial[: len(target)].double()
    server_optimizer(trimmed.setup.config.server, len(theta), "cpu").step(theta, change)
    torch.testing.assert_close(trimmed.vector, theta, rtol=0, atol=1e-7)
    assert not torch.equal(trimmed.vector, watched.vector)
    named = {"server__aggregator": "trimmed-mean", "server__trim_fraction": 0.25}
    assert_same_run(train(setup_of("simclr", **values, **named), tmp_path / "named"), trimmed)


def test_lanes_change_no_bits_of_a_trimmed_mean(tmp_path: Path) -> None:
    setup = setup_of("simclr+trimmed")
    one, two = (train(setup, tmp_path / str(lanes), lanes=lanes) for lanes in (None, 2))
    assert_same_run(one, two)


def test_a_wrapped_mean_is_the_mean(tmp_path: Path) -> None:
    plain, wrapped = (train(setup_of(s), tmp_path / s) for s in ("simclr", "simclr+watched"))
    assert torch.equal(all_tensors(plain), all_tensors(wrapped))


def test_reading_uploads_one_by_one_is_declared_everywhere(tmp_path: Path) -> None:
    spec = "simclr+trimmed"
    assert needed_one_by_one(registry.create(spec, {}), ServerConfig()) == "single uploads"
    assert needed_one_by_one(registry.create("simclr+watched", {}), ServerConfig()) == ""
    listed = declared(registry.entries()["trimmed"], ["simclr"])
    expected = {"secure_sum": False, "aggregator": "TrimmedMean", "memory": "cohort"}
    assert expected.items() <= listed.items()
    trainer = train(setup_of(spec), tmp_path)
    assert columns(trainer)["secure_sum"] is False
    flows = trainer.ledger.flows["up"]
    assert all(flow.single == flow.messages == 8 for flow in flows.values())  # 2 rounds of 4
    assert "single" not in str(train(setup_of("simclr"), tmp_path / "mean").ledger.as_dict())


@pytest.mark.parametrize(
    ("spec", "values", "names"),
    [
        ("simclr+scaffold+trimmed", {}, "TrimmedMean .*control variate"),
        ("simclr+fedu2+trimmed", {}, "TrimmedMean .*single uploads"),
        ("simclr+l-dawa+trimmed", {}, "TrimmedMean .*scaled"),
        ("fedsc+trimmed", {}, "TrimmedMean .*statistics"),
        ("lejepa+trimmed", {"method.statistics": "global"}, "TrimmedMean .*statistics"),
        ("central-ae+trimmed", {}, "TrimmedMean .*one client"),
        ("single-ae+trimmed", {}, "TrimmedMean .*nothing is averaged"),
        ("simclr+uv+trimmed", {"method.uv.rows": "mean"}, "TrimmedMean .*rows"),
        ("simclr+trimmed", {"privacy.clip": 1.0}, "TrimmedMean .*privacy.clip"),
        # A mean, but another than scaffold's.
        ("simclr+scaffold+watched", {}, "Seeing .*control variate"),
        ("simclr+trimmed", {"server.aggregator": "median"}, "must be mean .*TrimmedMean"),
        ("simclr", {"server.aggregator": "krum", "server.num_byzantine": 3}, "= 9 .*for 8"),
        ("simclr", {"server.aggregator": "krum", "federation.participation": 0.25}, "= 5 .*for 2"),
        ("simclr", {"server.trim_fraction": 0.5}, "less than 0.5"),
        ("simclr", {"server.aggregator": "median", "privacy.clip": 1.0}, "Median .*privacy.clip"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    spec: str, values: dict[str, Any], names: str
) -> None:
    eight = {"data.num_clients": 8, "federation.participation": 1.0}
    with pytest.raises(ConfigError, match=names) as refused:
        resolve(spec, preset="demo", set={**eight, **values})
    assert "\n" not in str(refused.value)


def test_settings_that_do_nothing_are_named() -> None:
    def said(**values: Any) -> str:
        return " ".join(without_effect(Experiment(tiny_config("simclr", **values))))

    assert "nobody" in said(server__aggregator="trimmed-mean", server__trim_fraction=0.2)  # of 4
    assert "nobody" not in said(server__aggregator="trimmed-mean", server__trim_fraction=0.25)
    examples = said(server__aggregator="krum", server__weighting="examples")
    assert "server.weighting=examples" in examples
    assert "federation.participation=0.1" in said(federation__participation=0.1)  # 1 of 4 clients
    assert said(federation__participation=0.5) == said(data__num_clients=1) == ""


def test_krum_and_median_resume_and_end_with_the_same_bits(tmp_path: Path) -> None:
    for rule in ("krum", "median"):
        setup = setup_of("simclr", server__aggregator=rule, server__num_byzantine=0)
        whole = train(setup, tmp_path / rule)
        folder = tmp_path / f"{rule}-cut"
        train(setup, folder, rounds=1)
        assert torch.equal(all_tensors(train(setup, folder)), all_tensors(whole))
        assert columns(whole)["secure_sum"] is False


def test_a_result_of_another_shape_is_the_plugins_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"\[1\]"):
        train(setup_of("simclr+short"), tmp_path)


def test_krum_says_so_if_too_few_clients_made_a_step() -> None:
    krum = Krum(1)
    for client_id in range(4):
        krum.fold(client_id, 1.0, torch.zeros(3))
    with pytest.raises(ConfigError, match="5 uploads"):
        krum.result()
