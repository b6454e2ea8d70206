"""Client-level privacy: clipping against a slow loop, scale of the noise, epsilon in the row."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedbench.bench.config import ServerConfig
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import execute
from fedbench.bench.execution.guarantees import check_privacy, columns, declared, needed_one_by_one
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import Extra, Needs, Net, Sharing, registry
from fedbench.bench.method.clipped_mean import ClippedMean
from fedbench.bench.nn.budget import ClusterBudget
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.aggregate import ServerUpdate
from fedbench.bench.training.layout import VectorLayout
from fedbench.bench.training.server_optimizers import server_optimizer
from fedbench.methods.supervised import Supervised
from tests.specs import setup_of


def layout_of(size: int) -> VectorLayout:
    net = Net({"encoder": torch.nn.Linear(size - 1, 1)})
    net.register_buffer("average", torch.zeros(size))  # averaged, but not trained
    return VectorLayout.of(net, {"*": Sharing.AVERAGED})


def averaged(before: Tensor, uploads: list[Tensor], **protection: Any) -> Tensor:
    layout = layout_of(len(before) // 2)
    theta = before.clone()
    given = {"clip": 1.0, "noise": 0.0, "expected_clients": 4.0, "rng": generator(0, "noise")}
    update = ServerUpdate(layout, "cpu", ClippedMean(theta, **{**given, **protection}))
    for client_id, upload in enumerate(uploads):
        update.fold(client_id, 1.0, upload)
    update.apply(theta, server_optimizer(ServerConfig(), layout.num_trained, "cpu"))
    return theta


def test_changes_are_cut_to_the_norm_and_divided_by_the_expected_number() -> None:
    rng = generator(0, "uploads")
    before = torch.randn(20, generator=rng)
    changes = [torch.randn(20, generator=rng) * scale for scale in (0.01, 0.15, 1.0, 30.0)]
    result = averaged(before, [before + change for change in changes], clip=0.5)
    expected = []
    for i in range(20):
        total = 0.0
        for change in changes:
            length = math.sqrt(sum(float(number) ** 2 for number in change))
            total += float(change[i]) * min(1.0, 0.5 / length)
        expected.append(float(before[i]) + total / 4.0)
    torch.testing.assert_close(result, torch.tensor(expected))


def test_the_noise_is_gaussian_of_the_claimed_scale() -> None:
    """The standard deviation is noise / expected_clients for trained and untrained numbers."""
    before = torch.zeros(20_000)
    result = averaged(before, [before, before], noise=3.0, expected_clients=5.0).double()
    assert float(result.std()) == pytest.approx(0.6, rel=0.02)  # +- 0.5 % for 20,000 numbers
    assert stats.kstest(result.numpy() / 0.6, "norm").pvalue > 0.01
    for half in result.split(10_000):
        assert float(half.std()) == pytest.approx(0.6, rel=0.03)
    nobody = averaged(before, [], noise=3.0, expected_clients=5.0)
    torch.testing.assert_close(nobody.double(), result)  # an empty cohort shows nothing


def test_without_noise_and_under_a_wide_norm_it_is_federated_averaging(tmp_path: Path) -> None:
    plain = train(setup_of("supervised"), tmp_path / "plain")
    wide = {"privacy__clip": 1e6, "privacy__noise_multiplier": 0.0}
    private = train(setup_of("supervised", **wide), tmp_path / "private")
    torch.testing.assert_close(private.vector, plain.vector)
    assert columns(private)["epsilon"] is None
    assert [record.parts["clipped"] for record in private.history] == [0.0, 0.0]


def test_the_row_has_epsilon(tmp_path: Path) -> None:
    """All clients in every round equal one Gaussian with noise multiplier z / sqrt(rounds)."""
    fields = {"privacy__clip": 0.01, "privacy__noise_multiplier": 2.0, "privacy__delta": 1e-3}
    setup = setup_of("supervised", federation__num_rounds=3, **fields)
    trainer = train(setup, tmp_path)
    values = columns(trainer)
    exact = dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(3), 1e-3)
    assert values["epsilon"] == pytest.approx(exact, rel=1e-3)
    assert (values["delta"], values["epsilon_of"]) == (1e-3, "a client, in all it sends")
    assert values["privacy"] == {"noise_std": 0.02, "rounds": {"1": 3}}
    assert trainer.history[0].parts["clipped"] == 1.0
    moved = float((trainer.vector - trainer.initial).norm())
    noise = 0.02 / 4 * math.sqrt(3 * trainer.layout.num_averaged)
    assert moved == pytest.approx(noise, rel=0.5)


def test_the_round_that_ends_a_run_counts(tmp_path: Path) -> None:
    """The run diverges in its first training round, after its clients have sent updates."""
    fields = {"privacy__clip": 1.0, "privacy__noise_multiplier": 2.0, "privacy__delta": 1e-3}
    row = execute(
        Experiment(tiny_config("supervised", client__lr=1e30, **fields)), Where(tmp_path / "a")
    )
    assert (row.status, row.rounds_done) == ("diverged", 0)
    assert row.epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0, 1e-3), rel=1e-3)
    assert row.privacy["rounds"] == {"1": 1}
    assert 0 < (row.bytes_up or 0) <= (row.bytes_down or 0)


def test_the_row_of_private_clusters_says_what_epsilon_holds_for(tmp_path: Path) -> None:
    """The second of two rounds is the first that trains, and it ends the run."""
    fields = {"method__representations": "private", "method__epsilon": 10.0}
    config = tiny_config("orchestra", client__lr=1e30, method__global_steps=2, **fields)
    row = execute(Experiment(config), Where(tmp_path))
    assert (row.status, row.rounds_done) == ("diverged", 1)
    assert row.epsilon == ClusterBudget(10.0, 1e-3).composed(2)
    assert row.epsilon_of == "an image, in centroids only, given the received weights"
    details = row.privacy
    assert details["rounds"] == 2
    assert details["given"].endswith("in which no image is protected from round 2 on")
    assert details["centroids"]["epsilon_per_round"] == 10.0


def test_clients_are_drawn_independently_and_resume_keeps_the_bits(tmp_path: Path) -> None:
    fields = {"privacy__clip": 1.0, "federation__participation": 0.2}
    config = tiny_config("supervised", federation__num_rounds=6, **fields)
    setup = tiny_setup(config, shares=[[3 * k, 3 * k + 1, 3 * k + 2] for k in range(4)])
    whole = train(setup, tmp_path / "whole")
    sizes = [record.cohort_size for record in whole.history]
    assert len(set(sizes)) > 1
    assert 0 in sizes  # no client took part, and the round went on
    assert sizes == [len(setup.cohort(index)) for index in range(6)]
    drawn = [setup.cohort(index) for index in range(4_000)]
    for client_id in range(4):  # 0.2 +- 4 standard deviations of 0.006
        share = sum(client_id in cohort for cohort in drawn) / 4_000
        assert share == pytest.approx(0.2, abs=0.03)
    pairs = sum(0 in cohort and 1 in cohort for cohort in drawn) / 4_000
    assert pairs == pytest.approx(0.04, abs=0.015)
    train(setup, tmp_path / "cut", rounds=3)
    assert_same_run(whole, train(setup, tmp_path / "cut"))


@pytest.mark.parametrize(
    ("spec", "values", "match"),
    [
        ("simclr+uv", {}, "clients of 'simclr.uv' also send uv.weight, which"),
        (
            "orchestra",
            {},
            "'orchestra' also send centroids, min_cluster_size, which",
        ),
        ("simclr+scaffold", {}, "whether they made a step"),
        ("simclr", {"model__norm": "batch"}, "set model.norm=group or batch-local"),
        ("byol", {"model__head_norm": "batch"}, "and model.head_norm=encoder"),
        ("simclr", {"server__weighting": "examples"}, r"weighting must be uniform \(got 'examples"),
        ("central-ae", {}, "pooled"),
        (
            "simclr",
            {"evaluation__objective_noise": 1.0, "evaluation__objective_max_examples": 19},
            "objective_max_examples=20",
        ),
    ],
)
def test_what_would_not_be_private_is_refused(
    spec: str, values: dict[str, Any], match: str, tmp_path: Path
) -> None:
    config = tiny_config(spec, privacy__clip=1.0, **values)
    with pytest.raises(ConfigError, match=match):
        execute(Experiment(config), Where(tmp_path))


def test_summed_extras_are_not_covered_either() -> None:
    class Counts(Supervised):
        def needs(self) -> Needs:
            return dataclasses.replace(super().needs(), extras={"counts": Extra(summed=True)})

    setup = setup_of("supervised", privacy__clip=1.0)
    with pytest.raises(ConfigError, match="counts"):
        check_privacy(dataclasses.replace(setup, method=Counts()))
    assert needed_one_by_one(Counts(), ServerConfig()) == ""


@pytest.mark.parametrize("spec", ["simclr", "byol", "supervised"])
def test_who_works_under_secure_sums(spec: str) -> None:
    assert needed_one_by_one(registry.create(spec, {}), ServerConfig()) == ""


def test_who_keeps_nothing_between_rounds() -> None:
    """Table 3 of Lubana et al. 2022; BYOL as in its cross-device setting."""
    known = registry.entries()
    found = {name for name in known if not declared(known[name], [*known])["stateless"]}
    assert found == {"pfedae", "single-ae", "central-ae", "scaffold"}
