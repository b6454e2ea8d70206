"""The analysis of long training finds what made-up runs hold."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedbench.bench.config import ClientConfig, DataConfig, RunConfig
from fedbench.bench.config.schema import FederationConfig
from fedbench.bench.results.store.store import Store
from fedbench.leaderboards.studies import compare
from fedbench.leaderboards.studies.long_training import long_training as study
from tests.bench.results.conftest import build_row

EFFECT = {"orchestra": 45.0, "simclr": 50.0, "byol": 45.2, "spectral": 40.0}
CROPS = {"orchestra": "orchestra-o", "byol": "byol-o"}
RATES = {"orchestra": 0.003, "simclr": 0.003, "byol": 0.01, "spectral": 0.003}
ROUNDS = [3, 7, 15, 30]  # trained at an evaluation before the end


def _write(store: Path, method: str, lr: float, seed: int, **row: Any) -> None:
    config = RunConfig(
        spec=method,
        seed=seed,
        data=DataConfig(num_clients=100, alpha=0.1),
        client=ClientConfig(local_epochs=4, lr=lr),
        federation=FederationConfig(participation=0.1, num_rounds=row.pop("num_rounds", 60)),
        method={"augmentation": CROPS.get(method, "simclr-o"), "representations": "centroids"},
    )
    values = {"final_loss": 1.0, "untrained_linear_acc": 0.31, "linear_acc": 0.5, **row}
    run, done = build_row(config, **values), Store(store)
    done.write_row(run)
    first = 0 if method == "orchestra" else 1  # whose round 0 trains nothing
    slope = (3.0 if method == "orchestra" else 1.0) + seed / 10
    at = {r - first: values["linear_acc"] - slope / 100 * math.log2(60 / r) for r in ROUNDS}
    points = [
        {
            "round_index": index,
            "metrics.linear_acc": at.get(index),
            "parts.clusters": 3.0,
            "parts.rotation": 1.3,
        }
        for index in range(61 - first)
    ]
    done.write_curve(run.row_id, points)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with five seeds of four methods; orchestra climbs fastest."""
    rng = np.random.default_rng(0)
    for method, mean in EFFECT.items():
        for seed in range(5):
            _write(tmp_path, method, RATES[method], seed, linear_acc=(mean + rng.normal()) / 100)
    return tmp_path


def test_the_recipe_decides_which_runs_are_compared(store: Path) -> None:
    rows = study.read(store)
    terms = study.gate(rows, store)
    assert not study.passed(terms)[0.003]  # rotations at 1.3 of ln 4 = 1.386
    terms["parts.rotation"] = 1.2
    assert study.passed(terms)[0.003]
    runs = study.recipe(rows, {}, published=True)
    assert runs.groupby("variant").size().to_dict() == {m: 5 for m in EFFECT if m != "spectral"}
    alike = study.recipe(rows, {"spectral": 0.003, "simclr": 0.03}, published=False)
    assert set(alike["variant"]) == {"spectral"}


def test_a_method_counts_when_all_its_seeds_have_run(store: Path) -> None:
    rows = study.read(store)
    (found,) = study.recipes(rows).values()
    assert set(found["variant"]) == {"orchestra", "simclr", "byol"}
    (found,) = study.recipes(rows[(rows["method"] != "byol") | (rows["seed"] != 4)]).values()
    assert set(found["variant"]) == {"orchestra", "simclr"}


def test_gaps_and_slopes_hold_the_last_round_too(store: Path) -> None:
    runs = study.recipe(study.read(store), RATES, published=False)
    groups = study.by_variant(runs)
    verdicts = compare.compare(groups, "orchestra")["verdict"].to_dict()
    assert verdicts == {"byol": "not settled", "simclr": "contradicted", "spectral": "supported"}
    gaps = study.gaps(runs, store).loc["byol"]
    end = groups["orchestra"].mean() - groups["byol"].mean()
    assert gaps.to_dict() == pytest.approx({r: end - 2 * math.log2(60 / r) for r in [*ROUNDS, 60]})
    slope = study.slopes(runs, store).loc["byol"]  # 3.0 to 3.4 beside 1.0 to 1.4 a doubling
    test = stats.ttest_ind(np.arange(3, 3.5, 0.1), np.arange(1, 1.5, 0.1), equal_var=False)
    assert (slope["slope"], slope["p"]) == pytest.approx((2.0, 3 * test.pvalue))
    assert (slope["low"], slope["high"]) == pytest.approx(test.confidence_interval())


def test_a_rate_is_chosen_by_the_last_loss_of_two_seeds(tmp_path: Path) -> None:
    for rate, losses in {0.003: (3.0, 3.2), 0.01: (2.0, 4.0), 0.03: (1.0, 5.3)}.items():
        for seed, loss in zip((100, 101), losses, strict=True):
            if rate == 0.03 and seed == 101:
                assert study.chosen(study.read(tmp_path)).empty  # a run is missing
            _write(tmp_path, "simclr", rate, seed, final_loss=loss, num_rounds=12)
    assert study.chosen(study.read(tmp_path)).to_dict() == {"simclr": 0.01}  # 3.0 against 3.1


def test_runs_that_serve_both_recipes_count_once() -> None:
    """With one group of orchestra in both, the change is a difference of the other's two groups."""
    a, b, c = np.random.default_rng(1).normal(size=(3, 5))
    first, second = {"orchestra": a, "simclr": b, "byol": c}, {"orchestra": a, "simclr": c}
    table = study.interaction(first, second)
    pooled = (a.var(ddof=1) + b.var(ddof=1) + c.var(ddof=1)) / 3
    error = math.sqrt(pooled * 2 / 5)
    assert table.loc["simclr", "change"] == pytest.approx(c.mean() - b.mean())
    p = 2 * stats.t.sf(abs(c.mean() - b.mean()) / error, 12)
    assert table["p"].to_dict() == pytest.approx({"simclr": p})


def test_tau_between_orders_by_hand() -> None:
    """Groups that do not overlap keep their order in every draw; d is on one side alone."""
    here = {name: np.array([10.0 * i, 10.0 * i + 1]) for i, name in enumerate("abcd")}
    for order, tau in (("abc", 1.0), ("cba", -1.0), ("acb", 1 / 3)):  # 3, 0, 2 of 3 pairs agree
        there = {name: np.array([float(i)]) for i, name in enumerate(order)}
        found = study.agreement(here, there)
        assert found == pytest.approx({"methods": 3, "tau": tau, "low": tau, "high": tau})


def test_wide_crops_are_compared_with_wide_crops() -> None:
    values = np.array([0.0, 1.0, 5.0])
    groups = {"orchestra": values, "simclr": values + 1}
    found = study.crops({**groups, "simclr wide": values + 4})
    assert found["difference"].to_dict() == {"simclr wide": 3.0}
    names = ["orchestra", "byol", "simclr wide"]
    assert study.pairs(names) == [("orchestra", "byol")]
    wide = [("orchestra", "byol"), ("orchestra wide", "simclr wide")]
    assert study.pairs([*names, "orchestra wide"]) == wide
    other = study.with_wide({"simclr": values, "simclr wide": groups["simclr"]})
    assert other == {"simclr": pytest.approx(values + 1)}


def test_no_verdict_is_given_where_a_side_is_at_chance() -> None:
    at_chance = pd.Series({"orchestra": 0, "simclr": 0, "orchestra wide": 5, "simclr wide": 0})
    tests = pd.DataFrame({"verdict": {"simclr": "supported", "simclr wide": "contradicted"}})
    found = study.judged(tests, at_chance)["verdict"]
    assert found["simclr"] == "supported"
    assert "orchestra wide at chance, 5" in found["simclr wide"]
