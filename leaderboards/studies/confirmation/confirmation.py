"""Print the outcome of the study `confirmation`, from the release leaderboards/confirmation.

Usage: `python leaderboards/studies/confirmation/confirmation.py [--store DIR] [--grid]`;
README.md says what is
asked and how it is decided. With --grid: the grid of its runs.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from fedbench import open_store
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.tuning.grid import load_grid, plan
from fedbench.leaderboards.studies.rules import RULES, board_rule, judge
from fedbench.leaderboards.studies.selection.selection import (
    BUDGETS,
    COUNT,
    DRAWS,
    RUNGS,
    Array,
    _interval,
    _round,
    accuracies,
    halved,
    regret,
    scores,
    tau,
    taus,
)

FOLDER = Path(__file__).resolve().parent
GRID = FOLDER / "confirmation.yaml"
STORE = FOLDER.parents[1] / "confirmation"
SOBOL_SEED, SEEDS, ALPHA = 20261124, (200, 201), 0.1
HYPOTHESES = (
    ("loss+sep", "objective"),
    ("objective+sep", "objective"),
    ("loss", "objective"),
    ("loss+sep", "loss"),
)

Draw = Callable[[float], Any]


def _log(low: float, high: float) -> Draw:
    return lambda x: _round(low * (high / low) ** x)


def _choice(*values: float) -> Draw:
    return lambda x: values[int(len(values) * x)]


SPACES: Mapping[str, Mapping[str, Draw]] = {  # those of search_spaces/, but for the highest rate
    "aligned": {"method.uniformity": _choice(0.5, 1.0, 2.0), "method.t": _choice(1.0, 2.0, 4.0)},
    "simsiam": {},
    "featarc": {"method.temperature": _log(0.05, 1.0), "method.align_weight": _log(0.05, 1.0)},
    "lejepa": {"method.weight": _log(0.005, 0.2), "method.projection_dim": _choice(16, 64, 128)},
}


def configurations(method: str) -> list[dict[str, Any]]:
    """Return a method's configurations: the preset's, which is empty, and the Sobol points."""
    from scipy.stats import qmc

    space = {"client.lr": _log(0.001, 0.1), **SPACES[method]}
    sampler = qmc.Sobol(len(space), seed=SOBOL_SEED + list(SPACES).index(method))
    points = sampler.random(32)[: COUNT - 1]
    drawn = [
        {key: draw(float(x)) for (key, draw), x in zip(space.items(), point, strict=True)}
        for point in points
    ]
    return [{}, *drawn]


def grid_text() -> str:
    """Return the grid of the study's runs."""
    grid = {
        "grid": "confirmation",
        "description": "Sobol configurations of four methods that the study of selection had not",
        "source": "ours; written by leaderboards/studies/confirmation/confirmation.py",
        "axes": {"data.alpha": [ALPHA]},
        "points": [
            {"method": method, **values}
            for index in range(COUNT)
            for method in SPACES
            for values in [configurations(method)[index]]
        ],
        "methods": list(SPACES),
        "seeds": list(SEEDS),
    }
    return yaml.safe_dump(grid, sort_keys=False, width=100)


def complete(rows: Sequence[Row]) -> dict[str, list[list[Row]]]:
    """Return method -> configuration -> its rows by seed, of the methods of which all have run."""
    by_id = {row.row_id: row for row in rows}
    tables: dict[str, dict[int, list[Row]]] = {}
    if not rows:
        return {}
    revision = rows[0].dataset_revision
    for cell in plan(load_grid(GRID), preset="laptop", environ={}):  # seed by seed, in order
        row = by_id.get(row_id(cell.config, revision))
        by_seed = tables.setdefault(cell.config.spec, {seed: [] for seed in SEEDS})
        by_seed[cell.config.seed] += [row] if row is not None else []
    return {
        method: [list(entry) for entry in zip(*by_seed.values(), strict=True)]
        for method, by_seed in tables.items()
        if all(len(found) == COUNT for found in by_seed.values())
    }


def measured(table: Sequence[Sequence[Row]]) -> dict[str, Array]:
    """Return loss, objective and SEP, (configurations, seeds); nan of a run that diverged."""

    def value(row: Row, name: str) -> float:
        known = {"loss": row.final_loss, "objective": row.objective}
        known["sep"] = row.further.get("sep")
        found = known[name] if row.status == "ok" else None
        return math.nan if found is None else found

    names = ("loss", "objective", "sep")
    return {name: np.array([[value(row, name) for row in e] for e in table]) for name in names}


def lost(rule: str, values: Mapping[str, Array], accuracy: Array, budget: int) -> float:
    """Return the regret of the best of `budget` random configurations by a rule.

    Args:
        rule: one of `RULES`.
        values: of `judge`, (n,).
        accuracy: (n,).
        budget: from 1 to n.
    """
    if rule != "loss+sep" or budget == 1:
        return regret(judge(rule, values), accuracy, budget)
    rng = np.random.default_rng(SOBOL_SEED)
    picked = []
    for _ in range(DRAWS):  # ranks are among what was drawn
        drawn = np.sort(rng.choice(len(accuracy), budget, replace=False))
        score = judge(rule, {name: by[drawn] for name, by in values.items()})
        picked.append(accuracy[drawn[score == score.max()]].mean())  # sums of ranks are often equal
    return float(accuracy.max() - np.mean(picked))


def both_ways(of: Callable[[int], float]) -> float:
    """Return the mean of what is lost when each seed chooses and the other judges."""
    return float(np.mean([of(seed) for seed in range(len(SEEDS))]))


def outcome(rows: Sequence[Row]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table of the rules, and that of the hypotheses; empty without a method."""
    tables = complete(rows)
    if not tables:
        return pd.DataFrame(), pd.DataFrame()
    accuracy = {method: accuracies(table) for method, table in tables.items()}
    values = {method: measured(table) for method, table in tables.items()}
    rng = np.random.default_rng(SOBOL_SEED)
    equal = np.full(COUNT, 1 / COUNT)
    counts = {m: rng.multinomial(COUNT, equal, DRAWS).astype(float) for m in tables}

    def regrets(method: str, rule: str, budget: int) -> float:
        of = values[method]
        return both_ways(
            lambda s: lost(
                rule, {n: v[:, s] for n, v in of.items()}, accuracy[method][:, 1 - s], budget
            )
        )

    lines, by_method, draws = {}, {}, {}
    for rule in RULES:
        means = {m: {n: v.mean(axis=1) for n, v in of.items()} for m, of in values.items()}
        judged = {m: judge(rule, of) for m, of in means.items()}
        by_method[rule] = {m: tau(judged[m], accuracy[m].mean(1)) for m in tables}
        each = [taus(judged[m], accuracy[m].mean(1), counts[m]) for m in tables]
        draws[rule] = np.mean(each, axis=0)
        line = {"tau": np.mean([*by_method[rule].values()]), "95 %": _interval(draws[rule])}
        line |= {f"tau {method}": value for method, value in by_method[rule].items()}
        for budget in BUDGETS:
            line[f"regret {budget}"] = np.mean([regrets(m, rule, budget) for m in tables])
        lines[rule] = line
    of_board = [regrets(m, board_rule(m), COUNT) for m in tables]
    lines["of the board"] = {f"regret {COUNT}": np.mean(of_board)}
    preset = [both_ways(lambda s, a=a: a[:, 1 - s].max() - a[0, 1 - s]) for a in accuracy.values()]
    lines["of the preset"] = {f"regret {COUNT}": np.mean(preset)}
    table = pd.DataFrame.from_dict(lines, orient="index")
    tests = {}
    for first, second in HYPOTHESES:
        apart = draws[first] - draws[second]
        by = [by_method[first][m] - by_method[second][m] for m in tables]
        low, high = np.quantile(apart, (0.025, 0.975))
        line = {"difference": np.mean(by), "low": low, "high": high}
        line["p"] = (np.count_nonzero(apart <= 0) + 1) / (DRAWS + 1)
        line["above 0"] = sum(difference > 0 for difference in by)
        half = stats.t.ppf(0.975, len(by) - 1) * stats.sem(by) if len(by) > 1 else math.inf
        line["± over methods"] = half
        end = f"regret {COUNT}"
        line["regret no greater"] = lines[first][end] <= lines[second][end]
        tests[f"{first} > {second}"] = line
    found = pd.DataFrame.from_dict(tests, orient="index")
    found["p"] = holm([*found["p"]])
    return table, found.assign(verdict=[verdict(line) for _, line in found.iterrows()])


def verdict(line: Mapping[str, Any]) -> str:
    """Return what a hypothesis comes to, from its line with the adjusted p."""
    if line["p"] < 0.05 and line["above 0"] >= 3 and line["regret no greater"]:
        return "confirmed"
    return "refuted" if line["high"] < 0 else "not confirmed"


def halving(store: Store, rows: Sequence[Row]) -> pd.DataFrame:
    """Return the regrets of searches by the last loss: halving, all runs, four random full runs."""
    lines = {}
    for method, table in complete(rows).items():
        accuracy = accuracies(table)
        by_round = {rung: scores(store, table, "final_loss", rung) for rung in RUNGS}
        last = by_round[RUNGS[-1]]

        def left(
            seed: int, accuracy: Array = accuracy, by: Mapping[int, Array] = by_round
        ) -> float:
            (kept,) = halved({rung: found[:, seed] for rung, found in by.items()})[-1]
            return float(accuracy[:, 1 - seed].max() - accuracy[kept, 1 - seed])

        def of(budget: int, accuracy: Array = accuracy, last: Array = last) -> float:
            return both_ways(lambda s: regret(last[:, s], accuracy[:, 1 - s], budget))

        lines[method] = {"halving": both_ways(left), "all runs": of(COUNT), "4 random": of(4)}
    table = pd.DataFrame.from_dict(lines, orient="index")
    if len(table):
        table.loc["mean"] = table.mean()
    return table


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", action="store_true", help="print the grid and end")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    arguments = parser.parse_args()
    if arguments.grid:
        print(grid_text(), end="")
        return
    store = open_store(arguments.store)
    rules, tests = outcome(store.rows())
    for title, table in {
        "Rules": rules,
        "Hypotheses, p by Holm": tests,
        "Halving by the last loss": halving(store, store.rows()),
    }.items():
        print(f"\n## {title}\n")
        print(table.round(3).to_string(na_rep="") if len(table) else "no method has all its runs")


if __name__ == "__main__":
    main()
