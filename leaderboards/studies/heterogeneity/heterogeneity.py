"""Print the outcome of the study `heterogeneity`, from the rows in leaderboards/results.

Usage: `python leaderboards/studies/heterogeneity/heterogeneity.py [--rates] [--store DIR]`;
README.md says what is
asked and how it is decided. With --rates: the chosen learning rates and the commands that follow.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench import open_store
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.leaderboard.statistics import holm, mean, t_interval
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import plain_table
from fedbench.bench.tuning.grid import load_grid

# The module beside this one:
from fedbench.leaderboards.studies.cells import (
    PRESET,
    STORE,
    linear,
    minus,
    paired_p,
    ran,
    spread,
    unequal,
)
from fedbench.leaderboards.studies.rules import RULES, judge

FOLDER = Path(__file__).resolve().parent
RATES = load_grid(FOLDER / "rates.yaml")
COMPARISON = load_grid("heterogeneity")
SEEDS = (0, 1, 2)
ALPHAS = (0.1, 1.0, 100.0)
LARGE = 5.0  # points: the limit of claim 2
HEADER = ["method", "rate", *(f"α = {alpha:g}" for alpha in ALPHAS), "loss", "loss below 5"]
HEADER += ["beyond orchestra's", "p (Holm)", "verdict", "orchestra ahead", "p (Holm)", "verdict"]


def chosen_rates(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return each method's best rate by SEP, by the objective and by the linear probe.

    A rate that diverged is not chosen. Methods of which a rate has not run yet are left out.
    """
    chosen = {}
    for method in RATES.methods:
        trials = ran(rows, RATES, methods=[method])
        if len(trials) < len(RATES.axes["client.lr"]):
            continue
        finished = {key[1]: row for key, row in trials.items() if row.status == "ok"}
        by: dict[str, dict[float, Any]] = {
            "sep": {rate: row.further["sep"] for rate, row in finished.items()},
            "objective": {rate: row.objective for rate, row in finished.items()},
            "linear": {rate: row.linear_acc for rate, row in finished.items()},
        }
        chosen[method] = {name: max(values, key=values.__getitem__) for name, values in by.items()}
    return chosen


def regrets(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean loss to the best rate, in points of linear accuracy, of ways to choose one.

    Rates that diverged are not chosen, and count at random with their untrained encoder.
    """
    lost: dict[str, list[float]] = {}
    for method in RATES.methods:
        trials = {key[1]: row for key, row in ran(rows, RATES, methods=[method]).items()}
        accuracy = {rate: linear(row) for rate, row in trials.items()}
        done = {rate: row for rate, row in trials.items() if row.status == "ok"}
        sep = np.array([row.further["sep"] for row in done.values()])
        values = {"loss": np.array([row.final_loss for row in done.values()]), "sep": sep}
        values["objective"] = np.array([row.objective for row in done.values()])
        best = max(accuracy.values())
        for rule in RULES:
            rate = list(done)[int(np.argmax(judge(rule, values)))]
            lost.setdefault(rule, []).append(best - accuracy[rate])
        resolved = resolve(method, preset=PRESET, environ={}).config.client.lr
        near = min(accuracy, key=lambda rate: abs(math.log(rate / resolved)))
        lost.setdefault("preset", []).append(best - accuracy[near])
        lost.setdefault("random", []).append(best - float(np.mean([*accuracy.values()])))
    return {rule: float(np.mean(values)) for rule, values in lost.items()}


def outcome(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table in points: a line for each method of which all cells have run."""
    found: dict[str, dict[float, list[float]]] = {}
    runs: dict[str, list[Row]] = {}
    rates = chosen_rates(rows)
    for method in rates:
        settings = {"client.lr": rates[method]["sep"]}
        cells = ran(rows, COMPARISON, methods=[method], seeds=SEEDS, set=settings)
        if len(cells) == len(ALPHAS) * len(SEEDS):
            runs[method] = [cells[method, ALPHAS[0], seed] for seed in SEEDS]
            found[method] = {
                alpha: [linear(cells[method, alpha, seed]) for seed in SEEDS] for alpha in ALPHAS
            }
    losses = {m: minus(by[ALPHAS[-1]], by[ALPHAS[0]]) for m, by in found.items()}
    reasons = {m: unequal(runs["orchestra"], own) for m, own in runs.items() if "orchestra" in runs}
    others = [method for method in reasons if method != "orchestra"]
    tests = {}
    for pair in (losses, {method: by[ALPHAS[0]] for method, by in found.items()}):
        found_p = [paired_p(pair[method], pair["orchestra"]) for method in others]
        ps = holm([1.0 if p is None else p for p in found_p])
        tests[len(tests)] = dict(zip(others, ps, strict=True))
    lines = []
    for method, by in found.items():
        line = [method, f"{rates[method]['sep']:g}"]
        line += [f"{round(mean(by[alpha]) or 0.0, 9):.1f}" for alpha in ALPHAS]
        low, high = t_interval(losses[method]) or (0.0, 0.0)
        verdict = "refuted" if low > LARGE else "supported" if high < LARGE else "not settled"
        line += [spread(losses[method]), verdict]
        if reasons.get(method):  # it stays in the family that was announced
            line += ["", "", f"no verdict: {reasons[method]}"]
        elif method in others:
            more = minus(losses[method], losses["orchestra"])
            ahead = minus(found["orchestra"][ALPHAS[0]], by[ALPHAS[0]])
            for values, p in ((more, tests[0][method]), (ahead, tests[1][method])):
                settled = "supported" if (mean(values) or 0) > 0 else "contradicted"
                line += [spread(values), f"{p:.2g}", settled if p < 0.05 else "not settled"]
        lines.append(line + [""] * (len(HEADER) - len(line)))
    return lines


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", action="store_true", help="print rates and the next commands")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    arguments = parser.parse_args()
    rows = open_store(arguments.store).rows()
    if not arguments.rates:
        print(plain_table(HEADER, outcome(rows)))
        return
    rates = chosen_rates(rows)
    names = ["sep", "objective", "linear"]
    lines = [[method, *(f"{by[name]:g}" for name in names)] for method, by in rates.items()]
    print(plain_table(["method", *names], lines))
    lost = {rule: f"{value:.2f}" for rule, value in regrets(rows).items()}
    print(plain_table(["regret", "points"], [*lost.items()]))
    for method, by in rates.items():
        print(
            f"fedbench sweep --grid heterogeneity --preset laptop --methods {method} "
            f"--set client.lr={by['sep']:g}"
        )


if __name__ == "__main__":
    main()
