"""The studies `board` and `confirmation` choose, compare and decide as they announce."""

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedbench.bench.results.chance import Marks
from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import load_grid, plan
from fedbench.leaderboards.studies import compare, rules
from fedbench.leaderboards.studies.board import board
from fedbench.leaderboards.studies.confirmation import confirmation

from .conftest import made

METHODS = ["simclr", "byol", "rotpred"]


def test_scores_of_rules_by_hand() -> None:
    values = {
        "loss": np.array([1.0, 2.0, 3.0, np.nan]),
        "objective": np.array([0.1, 0.4, 0.2, np.nan]),
        "sep": np.array([-9.0, 0.5, 0.6, np.nan]),
    }
    never = -np.inf
    assert rules.judge("loss", values).tolist() == [-1.0, -2.0, -3.0, never]
    assert rules.judge("sep", values).tolist() == [-1.0, 0.5, 0.6, never]
    summed = rules.judge("objective+sep", values)
    assert summed.tolist() == pytest.approx([-0.9, 0.9, 0.8, never])
    # Ranks from the worst, which is the run that diverged: loss 4, 3, 2, SEP 2, 3, 4.
    assert rules.judge("loss+sep", values).tolist() == [6.0, 6.0, 6.0, never]


def test_all_pairs_are_tested_with_one_variance() -> None:
    groups = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "c": [4.5, 5.5, 6.5]}
    table = compare.compare_pairs(groups)
    assert [*table.index] == [("a", "b"), ("a", "c"), ("b", "c")]
    # Variance 1 in each, so t = difference / sqrt(2/3) with 6 degrees of freedom, for which
    # p = 1 - s (1 + c / 2 + 3 c^2 / 8) with c = 6 / (6 + t^2) and s = sqrt(1 - c).
    assert table.loc[("b", "c"), "p"] == pytest.approx(0.562764, abs=1e-6)  # t^2 = 0.375
    assert table.loc[("a", "b"), "p"] == pytest.approx(2 * 0.010402, abs=1e-6)  # t^2 = 13.5
    assert compare.compare(groups, "a")["difference"].to_dict() == {"b": -3.0, "c": -3.5}


def test_pooled_and_welch_tests_are_those_of_scipy() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 5), rng.normal(1, 1, 5)
    row = compare.compare({"a": a, "b": b}, "a").loc["b"]
    expected = stats.ttest_ind(a, b)
    assert row["test"] == "pooled"
    assert row["p"] == pytest.approx(expected.pvalue)
    assert (row["low"], row["high"]) == pytest.approx(expected.confidence_interval())
    a, b = rng.normal(0, 1, 15), rng.normal(0, 9, 15)
    row = compare.compare({"a": a, "b": b}, "a").loc["b"]
    assert row["test"] == "Welch"
    assert row["p"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_letters_are_stretches_in_which_no_pair_differs() -> None:
    p = {("a", "b"): 0.9, ("a", "c"): 0.01, ("a", "d"): 0.01, ("b", "c"): 0.3, ("b", "d"): 0.02}
    table = pd.DataFrame({"p": {**p, ("c", "d"): 0.6}})
    assert compare.tie_groups("abcd", table) == {"a": "a", "b": "ab", "c": "bc", "d": "c"}


def test_the_detectable_difference_is_found_with_probability_four_fifths() -> None:
    error = math.sqrt(2 / 5)  # five values each of standard deviation 1
    difference = compare.detectable(error, 8.0)
    rng = np.random.default_rng(2)
    drawn = rng.normal(size=(2, 20_000, 5))
    drawn[0] += difference
    found = stats.ttest_ind(drawn[0], drawn[1], axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)  # standard error 0.003


def test_the_board_is_chosen_and_judged_as_announced(row: Row) -> None:
    planned = partial(plan, preset="laptop", environ={})

    def trial(config: Any) -> dict[str, Any]:
        rate, spec = config.client.lr, config.spec
        # byol collapses at the highest rate: the lowest loss, and the lowest SEP.
        loss = {0.003: 4.0, 0.01: 3.0, 0.03: 2.0, 0.1: 1.0 if spec == "byol" else 2.5}[rate]
        sep = {0.003: 0.1, 0.01: 0.5, 0.03: 0.4, 0.1: -0.7}[rate]
        diverged = spec == "rotpred" and rate == 0.03 and config.seed == 101
        return {
            "status": "diverged" if diverged else "ok",
            "further": {"sep": sep},
            "objective": rate,
            "final_loss": loss,
            "linear_acc": 0.4 + rate,
        }

    rows = made(row, planned(board.RATES, methods=METHODS), trial)
    assert {*board.trials(rows[:-1], "cifar10")["method"]} == {"simclr", "byol"}
    tried = board.trials(rows, "cifar10")
    rates = board.chosen(tried).to_dict()
    # byol's ranks of loss and SEP: 1 + 2, 2 + 4, 3 + 3, 4 + 1; the lower loss of the two with 6.
    assert rates == {"simclr": 0.03, "byol": 0.03, "rotpred": 0.1}
    lost = board.regrets(tried)["regret"]
    assert lost["objective"] == pytest.approx(0.0, abs=1e-9)
    assert lost["of the board"] > 0
    assert lost["labels"] <= lost["of the board"]

    def judged(config: Any) -> dict[str, Any]:
        level = {"simclr": 0.45, "byol": 0.44, "rotpred": 0.25}[config.spec]
        lower = 0.05 if config.spec == "byol" and config.data.alpha == 0.1 else 0.0
        return {"linear_acc": level - lower + 0.002 * (config.seed - 2)}

    for method, rate in rates.items():
        grid = load_grid(board.FOLDER / "board.yaml")
        cells = planned(grid, methods=[method], set={"client.lr": rate})
        rows += made(row, cells, judged)
    blind = {r.row_id: Marks(("loss",)) for r in rows if (r.method, r.seed) == ("simclr", 3)}
    runs = board.judging(rows, "cifar10", rates, blind)
    assert len(runs) == 3 * 3 * 5
    table, tests = board.board(runs[runs["alpha"] == 0.1])
    assert table["mean"].tolist() == pytest.approx([45.0, 39.0, 25.0])
    assert table["n"].tolist() == [5, 5, 5]
    assert table["group"].tolist() == ["a", "b", ""]
    assert table["note"].tolist() == ["1 of 5 at chance", "", "failed"]
    assert [*tests.index] == [("simclr", "byol")]
    even, _ = board.board(runs[runs["alpha"] == 100.0])
    assert even["group"].tolist()[2] == ""
    lost = board.few_classes(runs)
    assert lost["difference"].to_dict() == pytest.approx({"simclr": 0.0, "byol": 5.0}, abs=1e-9)


def test_a_rule_is_confirmed_by_its_order_and_its_regret(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "DRAWS", 200)
    rng = np.random.default_rng(0)
    quality: dict[str, float] = {}

    def score(config: Any) -> dict[str, Any]:
        key = config.model_copy(update={"seed": 0}).model_dump_json()
        true = quality.setdefault(key, rng.uniform(0.2, 0.5))
        metrics = {"sep": rng.normal()}
        objective = rng.normal()
        return {
            **{"linear_acc": true, "final_loss": -true},
            **{"objective": objective, "further": metrics},
        }

    rows = made(row, plan(load_grid(confirmation.GRID), preset="laptop", environ={}), score)
    assert {*confirmation.complete(rows[:-1])} == {"aligned", "simsiam", "featarc"}
    table, tests = confirmation.outcome(rows)
    assert table.loc["loss", "tau"] == pytest.approx(1.0)
    assert table.loc["loss", "regret 24"] == pytest.approx(0.0)
    # A random configuration loses what the best is above the mean.
    best = [100 * (max(v) - np.mean(v)) for v in _by_method(rows).values()]
    assert table.loc["sep", "regret 1"] == pytest.approx(np.mean(best))
    assert tests.loc["loss > objective", "verdict"] == "confirmed"
    assert tests.loc["loss+sep > loss", "verdict"] == "refuted"
    assert tests.loc["objective+sep > objective", "verdict"] == "not confirmed"
    assert confirmation.outcome([])[0].empty


def _by_method(rows: list[Row]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.method, []).append(row.linear_acc or 0.0)
    return found
