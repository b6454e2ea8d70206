"""The study of equivalence decides as its plan says, on made-up rows and by hand."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from fedbench.bench.tuning.grid import load_grid
from fedbench.leaderboards.studies.equivalence import equivalence as study
from fedbench.leaderboards.studies.equivalence import failures

from .conftest import STUDIES


def made(of: Any) -> pd.DataFrame:
    """Return a row for each run of the plan, with what `of(method, index, seed)` gives."""
    lines = []
    for (data, method), seed in itertools.product(study.SPACES, study.SEEDS):
        for index, values in enumerate(study.configurations((data, method))):
            line = {"client.lr": study.RATES.get(method, 0.03), **values}
            line |= {"dataset": data, "method": method, "seed": seed, "status": "ok"}
            line |= {"knn_acc": 0.5, "untrained_linear_acc": 0.2, "final_loss": 1.0}
            lines.append({**line, "sep": 0.5, "linear_1pct_acc": 0.3, **of(method, index, seed)})
    return pd.DataFrame(lines).sample(frac=1, random_state=0)


def test_the_grids_are_those_that_the_script_writes() -> None:
    for name, file, runs in (("main", "equivalence", 320), ("transfer", "transfer", 96)):
        text = (STUDIES / "equivalence" / f"{file}.yaml").read_text(encoding="utf-8")
        assert text == study.grid_text(name)
        grid = load_grid(STUDIES / "equivalence" / f"{file}.yaml")
        assert len(grid.points) * len(grid.seeds) == runs
    confirmed = yaml.safe_load((STUDIES / "confirmation" / "confirmation.yaml").read_text())
    points = [p for p in confirmed["points"] if p["method"] == "featarc"][: study.COUNT]
    ours = study.configurations(("fashion-mnist", "featarc"))
    assert [{"method": "featarc", **values} for values in ours] == points


def test_each_seed_chooses_and_the_other_judges() -> None:
    """Accuracy rises by a point with the index; seed 300 scores it so, seed 301 backwards.

    Seed 300 picks 15 and loses 0; seed 301 picks 0 and loses 15: mean 7.5. Labels pick 15 both
    ways. Run 15 of ssd at seed 301 diverged and counts with its untrained encoder's 20 %: judged
    by it, choosing 15 loses 34 - 20 = 14, and labels of seed 301 pick 14, which loses a point.
    """

    def of(method: str, index: int, seed: int) -> dict[str, Any]:
        line: dict[str, Any] = {"linear_acc": 0.2 + index / 100}
        line |= {"objective": index * (1 if seed == 300 else -1.0)}
        if (method, index, seed) == ("ssd", 15, 301):
            line |= {"status": "diverged", "linear_acc": None, "untrained_linear_acc": None}
        return line

    found = study.tables(made(of))
    assert [*found] == [*study.SPACES]
    plain, broken = (study.figures(found[cell]) for cell in [*found][::6][:2])
    assert plain["objective"] == pytest.approx(7.5)
    assert plain["linear"] == pytest.approx(0.0)
    assert plain["random"] == pytest.approx(7.5)
    assert plain["preset"] == pytest.approx(15.0)
    assert plain["k-NN"] == pytest.approx(7.5)  # all equal: any
    assert broken["linear"] == pytest.approx((14 + 1) / 2)
    assert broken["objective"] == pytest.approx((14 + 15) / 2)


def test_a_choice_is_carried_to_other_data() -> None:
    """At home both seeds choose the best; abroad one seed chooses index 0 and one index 1."""
    home = {"linear_acc": [0.1, 0.2, 0.4] * 2, "objective": [0.0, 1.0, 2.0] * 2}
    away = {"linear_acc": [0.3] * 6, "objective": [2.0, 1.0, 0.0, 1.0, 2.0, 0.0]}
    more = {"status": "ok", "untrained_linear_acc": 0.1}
    line = study.transfer(pd.DataFrame(away | more), pd.DataFrame(home | more))
    assert line["at home"] == 0.0
    assert line["abroad"] == pytest.approx((30 + 20) / 2)
    assert line["random"] == pytest.approx((30 + 20 + 0) / 3)


def test_an_incomplete_cell_is_left_out() -> None:
    def of(method: str, index: int, seed: int) -> dict[str, Any]:
        return {"linear_acc": 0.3, "objective": float(index)}

    rows = made(of)
    gone = rows[(rows["method"] == "byol") & (rows["client.lr"] == 0.1)].index[0]
    assert {*study.tables(rows)} - {*study.tables(rows.drop(gone))} == {("fashion-mnist", "byol")}
    first = rows[rows["method"] == "simclr"].dropna(axis="columns", how="all")
    assert [*study.tables(first)] == [("fashion-mnist", "simclr")]


def test_the_best_of_some_random_trials() -> None:
    """By all sets of trials; equal scores are taken alike."""
    by, judge = np.array([3.0, 1.0, 3.0, -np.inf, 2.0]), np.array([10.0, 20.0, 40.0, 80.0, 5.0])
    for budget in range(1, 6):
        sets = [list(s) for s in itertools.combinations(range(5), budget)]
        expected = np.mean([judge[s][by[s] == by[s].max()].mean() for s in sets])
        assert study.taken(by, judge, budget) == pytest.approx(expected)


def test_equivalence_by_hand() -> None:
    """d = -0.5, 0, 0.5, 1: mean 0.25, deviation sqrt(5/12), error 0.3227; t(3) at 5 % is 2.3534.

    The interval is 0.25 ± 0.7596 and passes 1 by 0.0096: not settled; 0.02 lower it is shown.
    """
    d = np.array([-0.5, 0.0, 0.5, 1.0])
    assert study.equivalent(d + 1, d - 1) > 0.05 > study.equivalent(d - 0.02 + 1, d - 0.02 - 1)


def test_verdicts_follow_the_interval() -> None:
    names = [*study.METRICS, "random", "preset"]
    by_cell = pd.DataFrame(np.ones((10, len(names))), columns=names)
    by_cell["objective"] += np.linspace(-0.6, 1.0, 10)  # mean 0.2, deviation 0.538, t(9) 1.833
    by_cell["random"] += 4.0
    table = study.tests(by_cell).set_index("test")
    assert (table["family"] == "secondary").sum() == 7
    primary = table.iloc[0]
    assert (primary["low"], primary["high"]) == pytest.approx((-0.112, 0.512), abs=1e-3)
    assert primary["verdict"] == "shown"
    assert table.loc["objective loses less than random", "verdict"] == "shown"
    assert table.loc["objective loses less than preset", "verdict"] == "not settled"


def test_failures_are_counted_by_hand() -> None:
    """Accuracies 40, 50, 46, 35 with scores 3, 2, 1, 0.

    Pairs 5 points apart: (40, 50), (40, 46), (50, 35), (46, 35) and (40, 35); the objective prefers
    the worse of the first two. The only search of four picks 40 and loses 10.
    """
    rows = pd.DataFrame({"accuracy": [40.0, 50, 46, 35], "score": [3.0, 2, 1, 0]})
    rows = rows.assign(search="a", study="b", method="c", alpha=0.1, seed=0, status="ok")
    rows = rows.assign(row_id=[*"wxyz"], relative_movement=[0.01, 1, 1, 1])
    rows = rows.assign(**dict.fromkeys(failures.FIGURES[:-1], 0.5))
    pairs = failures.pairs(rows)
    assert {*map(tuple, pairs[pairs["failed"]][["worse", "better"]].to_numpy())} == {
        ("w", "x"),
        ("w", "y"),
    }
    assert len(pairs) == 5
    checked = failures.check(failures.searches(rows, 4))
    assert (checked["searches"], checked["loss with alarm"], checked["caught"]) == (1, 10.0, 1.0)
    assert failures.auc(pd.Series([1.0, 2, 2, 3]), pd.Series([False, False, True, True])) == 0.875
