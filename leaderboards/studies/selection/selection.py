"""Print the outcome of the study `selection`, from the release leaderboards/selection.

Usage: `python leaderboards/studies/selection/selection.py [--store DIR] [--grid runs|scores]`;
README.md says what
is asked and how each number is defined. With --grid: the grid of its runs, or that of the further
scorings of their encoders.
"""

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from fedbench import open_store
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.text import plain_table
from fedbench.bench.tuning.grid import load_grid
from fedbench.leaderboards.studies.cells import linear, planned
from fedbench.leaderboards.studies.rules import judge

FOLDER = Path(__file__).resolve().parent
GRID = FOLDER / "selection.yaml"
SCORES_GRID = FOLDER / "selection-scores.yaml"
STORE = FOLDER.parents[1] / "selection"
OWN = {  # field, lowest, highest, what is drawn -> value
    "simclr": ("method.temperature", 0.05, 1.0, lambda x: _round(x)),
    "byol": ("method.ema_decay", 0.001, 0.1, lambda x: 1 - _round(x)),
    "orchestra": ("method.temperature", 0.05, 1.0, lambda x: _round(x)),
    "spectral": ("method.num_outputs", 8, 128, round),
}
COUNT, SOBOL_SEED = 24, 20261123
ALPHAS, SEEDS, ROUNDS = (0.1, 100.0), (0, 1), (1, 3, 6, 12)
PRIMARY = ("objective", "sep", "rankme", "lidar", "alpha_req", "participation_ratio")
PRIMARY += ("global_unif", "final_loss")
OTHERS = ("align", "unif", "rho", "global_sep", "global_rho", "rankme_centred", "stable_rank")
OTHERS += ("nesum", "self_clustering", "sigreg", "clusterability", "std_ratio", "knn_acc")
OTHERS += ("linear_1pct_acc",)  # a probe that reads 100 labels
OTHERS += ("loss+sep", "objective+sep")  # found on these rows, so exploratory
BUDGETS = (1, 4, 16, 24)
MEASURED = {"evaluation.rounds": [*ROUNDS[:-1]], "evaluation.probe_fractions": [1.0, 0.01]}
VARIANTS: dict[str, dict[str, Any]] = {
    "1 client": {"evaluation.objective_clients": 1},
    "Z = 5": {"evaluation.objective_noise": 5.0},
    "Z = 20": {"evaluation.objective_noise": 20.0},
}
"""How the last encoders are scored again."""
SCORED = {"evaluation.protocols": [], "evaluation.untrained": False}
DRAWS = 2000
HEADER = ["score", "tau", "95 %", "p (Holm)", "minus objective's"]
HEADER += [f"at round {r}" for r in ROUNDS[:-1]]
HEADER += [f"regret {b}" for b in BUDGETS]
HALVED = {"align-unif": "objective", "sep": "sep", "loss": "final_loss"}
"""Objectives by which successive halving is tried, and their metrics."""
RUNGS = (1, 3, 12)
SCORES_HEADER = ["score", "tau", *VARIANTS, *(f"regret {COUNT}, {v}" for v in ("all", *VARIANTS))]
HALVING_HEADER = ["method", "alpha", "objective", "regret", "halving's", "of 4 runs", "% of steps"]
AT_RANDOM = 4
"""Full runs of random configurations that cost what halving does: 48 and 45 rounds."""

Array = NDArray[np.float64]


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def configurations(method: str) -> list[dict[str, Any]]:
    """Return a method's configurations: the preset's, which is empty, and the Sobol points."""
    from scipy.stats import qmc

    key, low, high, convert = OWN[method]
    sampler = qmc.Sobol(4, seed=SOBOL_SEED + list(OWN).index(method))
    points = sampler.random(32)[: COUNT - 1]
    found: list[dict[str, Any]] = [{}]
    for rate, decay, epochs, own in points:
        found.append(
            {
                "client.lr": _round(0.001 * 300**rate),
                "client.weight_decay": _round(1e-5 * 1000**decay),
                "client.local_epochs": (1, 2, 4)[int(3 * epochs)],
                key: convert(low * (high / low) ** own),
            }
        )
    return found


def grid_text(scores: bool = False) -> str:
    """Return the grid of the study's runs, or that of the further scorings of their encoders."""
    points = [
        {"method": method, **values, **variant}
        for index in range(COUNT)
        for method in OWN
        for values in [configurations(method)[index]]
        for variant in (VARIANTS.values() if scores else [{}])
    ]
    runs = "Sobol configurations of four methods, for the study of label-free scores"
    grid = {
        "grid": "selection-scores" if scores else "selection",
        "description": "the encoders of `selection`, scored on less" if scores else runs,
        "source": "ours; written by leaderboards/studies/selection/selection.py",
        "axes": {"data.alpha": list(ALPHAS)},
        "points": points,
        "methods": list(OWN),
        "seeds": list(SEEDS),
    }
    return yaml.safe_dump(grid, sort_keys=False, width=100)


def cells(
    rows: Sequence[Row], variant: Mapping[str, Any] | None = None
) -> dict[tuple[str, float], list[list[Row]]]:
    """Return (method, alpha) -> configuration -> its rows by seed, of the complete cells.

    Args:
        rows: of the study.
        variant: which further scoring of the encoders, one of `VARIANTS`; None = the runs.
    """
    by_id = {row.row_id: row for row in rows}
    tables: dict[tuple[str, float], dict[int, list[list[Row]]]] = {}
    if not rows:
        return {}
    revision = rows[0].dataset_revision
    measured = MEASURED if variant is None else {**SCORED, **variant}
    for cell in planned(load_grid(GRID), set=measured):  # seed by seed, in order
        config = cell.config
        table = tables.setdefault((config.spec, config.data.alpha), {}).setdefault(config.seed, [])
        row = by_id.get(row_id(config, revision))
        table.append([] if row is None else [row])
    found = {}
    for key, by_seed in tables.items():
        entries = zip(*(by_seed[seed] for seed in SEEDS), strict=True)
        table = [[row for have in entry for row in have] for entry in entries]
        if all(len(entry) == len(SEEDS) for entry in table):
            found[key] = table
    return found


def accuracies(table: Sequence[Sequence[Row]]) -> Array:
    """Return (configurations, seeds): linear accuracy in points.

    Of a run that diverged it is that of its encoder before training, which all runs of a seed share
    and which it does not measure itself.
    """
    before = untrained(table)
    return np.array(
        [
            [linear(row) if row.status == "ok" else before[s] for s, row in enumerate(entry)]
            for entry in table
        ]
    )


def untrained(table: Sequence[Sequence[Row]]) -> list[float]:
    """Return the linear accuracy before training in points, by seed."""
    return [
        next(100 * row.untrained_linear_acc for row in rows if row.untrained_linear_acc is not None)
        for rows in zip(*table, strict=True)
    ]


def scores(store: Store, table: Sequence[Sequence[Row]], metric: str, at: int) -> Array:
    """Return (configurations, seeds): a score, more is better; -inf where it is undefined.

    Args:
        store: store of the curves.
        table: rows of a cell.
        metric: name of the score, or a rule of two.
        at: rounds done.
    """
    if "+" in metric:
        terms = {
            name: scores(store, table, column, at)
            for name, column in (("loss", "final_loss"), ("sep", "sep"), ("objective", "objective"))
        }
        terms["loss"] = -terms["loss"]
        by_seed = [{k: v[:, seed] for k, v in terms.items()} for seed in range(len(SEEDS))]
        return np.stack([judge(metric, values) for values in by_seed], axis=1)

    def value(row: Row) -> float:
        if row.status != "ok":
            return -math.inf
        if at == ROUNDS[-1]:
            found = row.metrics.get(metric)
        else:
            curve = store.curve(row.row_id)  # begins with the method's preparatory rounds
            point = curve[len(curve) - ROUNDS[-1] + at - 1]
            found = point.get("loss" if metric == "final_loss" else f"metrics.{metric}")
            found = point.get(metric) if found is None else found
        return -math.inf if found is None or math.isnan(found) else needed(metric).score(found)

    return np.array([[value(row) for row in entry] for entry in table])


def taus(x: Array, y: Array, counts: Array) -> Array:
    """Return Kendall's tau-b of samples with copies; pairs of copies of one entry do not count.

    Args:
        x: (n,), may have -inf.
        y: (n,).
        counts: (samples, n), how often each entry is in a sample.
    """
    above = [(v[:, None] > v).astype(float) - (v[:, None] < v) for v in (x, y)]  # (n, n)

    def pairs(matrix: Array) -> Array:
        return np.einsum("sn,nm,sm->s", counts, matrix, counts)

    untied = np.sqrt(pairs(np.abs(above[0])) * pairs(np.abs(above[1])))
    agree = pairs(above[0] * above[1])
    return np.divide(agree, untied, out=np.zeros_like(agree), where=untied > 0)


def tau(x: Array, y: Array) -> float:
    """Return Kendall's tau-b of two vectors."""
    return float(taus(x, y, np.ones((1, len(x))))[0])


def regret(chosen_by: Array, accuracy: Array, budget: int) -> float:
    """Return the expected loss against the best when the best of `budget` random ones is taken.

    Args:
        chosen_by: (n,), more is better; ties in their order.
        accuracy: (n,).
        budget: from 1 to n.
    """
    size = len(accuracy)
    order = np.argsort(-chosen_by, kind="stable")
    picked = [
        math.comb(size - 1 - rank, budget - 1) / math.comb(size, budget) for rank in range(size)
    ]
    return float(accuracy.max() - np.dot(picked, accuracy[order]))


def outcome(store: Store, rows: Sequence[Row]) -> tuple[list[list[str]], str]:
    """Return the table and a line on what it is made from; no lines without a complete cell."""
    found = cells(rows)
    if not found:
        return [], "no cell has all its runs yet"
    accuracy = {cell: accuracies(table) for cell, table in found.items()}
    rng = np.random.default_rng(SOBOL_SEED)
    equal = np.full(COUNT, 1 / COUNT)
    drawn = {method: rng.multinomial(COUNT, equal, DRAWS).astype(float) for method in OWN}
    seeds = np.mean([tau(by[:, 0], by[:, 1]) for by in accuracy.values()])
    lines, ps, of_objective = [], [], np.zeros(DRAWS)
    for metric in (*PRIMARY, *OTHERS):
        by_round = {
            at: {cell: scores(store, table, metric, at) for cell, table in found.items()}
            for at in ROUNDS
        }
        final = by_round[ROUNDS[-1]]
        at_rounds = {
            at: np.mean([tau(by[cell].mean(1), accuracy[cell].mean(1)) for cell in found])
            for at, by in by_round.items()
        }
        draws = np.mean(
            [taus(final[cell].mean(1), accuracy[cell].mean(1), drawn[cell[0]]) for cell in found],
            axis=0,
        )
        if metric == PRIMARY[0]:
            of_objective = draws
        apart = draws - of_objective
        lost = [
            np.mean(
                [
                    regret(final[cell][:, seed], accuracy[cell][:, 1 - seed], budget)
                    for cell in found
                    for seed in range(len(SEEDS))
                ]
            )
            for budget in BUDGETS
        ]
        ps.append((np.count_nonzero(draws <= 0) + 1) / (DRAWS + 1))
        line = [metric, f"{at_rounds[ROUNDS[-1]]:.2f}", _interval(draws), ""]
        line.append("" if metric == PRIMARY[0] else _interval(apart))
        line += [f"{at_rounds[at]:.2f}" for at in ROUNDS[:-1]]
        lines.append([*line, *(f"{value:.1f}" for value in lost)])
    for line, p in zip(lines, holm(ps[: len(PRIMARY)]), strict=False):
        line[3] = f"{p:.2g}"
    default = np.mean([by.max(0) - by[0] for by in accuracy.values()])  # the first is the preset's
    cells_text = ", ".join(f"{method} α = {alpha:g}" for method, alpha in found)
    return (
        lines,
        f"tau between seeds {seeds:.2f}; regret of the preset's {default:.1f}; cells: {cells_text}",
    )


def _interval(draws: Array) -> str:
    low, high = np.quantile(draws, (0.025, 0.975))
    return f"{low:.2f} to {high:.2f}"


def scored_on_less(store: Store, rows: Sequence[Row]) -> tuple[list[list[str]], str]:
    """Return a line for each score on what fewer clients and noise do to it, and the cells."""
    runs = cells(rows)
    again = {name: cells(rows, variant) for name, variant in VARIANTS.items()}
    found = [cell for cell in runs if all(cell in tables for tables in again.values())]
    if not found:
        return [], "no cell has all its further scorings yet"
    lines = []
    for metric in (*PRIMARY, *OTHERS):
        fields = needed(metric).reads if "+" not in metric else ()
        if "objective_clients" not in fields:
            continue
        columns = [_order(store, metric, [(runs[cell], runs[cell]) for cell in found])]
        for name, settings in VARIANTS.items():
            pairs = [(again[name][cell], runs[cell]) for cell in found]
            read = all(key.partition(".")[2] in fields for key in settings)  # noise is not on all
            columns.append(_order(store, metric, pairs) if read else ("", ""))
        lines.append([metric, *(column[0] for column in columns), *(c[1] for c in columns)])
    named = ", ".join(f"{method} α = {alpha:g}" for method, alpha in found)
    withdrawn = "Z = 5 and 20 are withdrawn: runs of one seed had equal draws (README.md)"
    return lines, f"cells: {named}; {withdrawn}"


def _order(
    store: Store, metric: str, pairs: Sequence[tuple[list[list[Row]], list[list[Row]]]]
) -> tuple[str, str]:
    """Return tau and the regret of all configurations: means over cells of (scored, its runs).

    Both are empty where the score was not measured.
    """
    taken, lost = [], []
    for table, runs in pairs:
        by = scores(store, table, metric, ROUNDS[-1])
        if np.isneginf(by).all():  # noise leaves no epsilon to unbounded scores
            return "", ""
        accuracy = accuracies(runs)
        taken.append(tau(by.mean(1), accuracy.mean(1)))
        lost += [regret(by[:, s], accuracy[:, 1 - s], COUNT) for s in range(len(SEEDS))]
    return f"{np.mean(taken):.2f}", f"{np.mean(lost):.1f}"


def halved(by_round: Mapping[int, Array]) -> list[Array]:
    """Return the configurations that successive halving trains until each of `RUNGS`.

    One in four goes on, at least one; ties go to the first.

    Args:
        by_round: rung -> (configurations,) score, more is better.
    """
    left, trained = np.arange(COUNT), []
    for rung in RUNGS:
        trained.append(left)
        order = np.argsort(-by_round[rung][left], kind="stable")
        left = left[order[: max(1, len(left) // 4)]]
    return [*trained, left]


def fewer_rounds(store: Store, rows: Sequence[Row]) -> tuple[list[list[str]], str]:
    """Return a line for each cell and objective on what halving loses, and the noise floor."""
    lines, lost, variances = [], defaultdict(list), []
    for (method, alpha), entries in cells(rows).items():
        accuracy = accuracies(entries)
        variances.append(accuracy.var(axis=1, ddof=1).mean())
        made = _steps([[store.curve(row.row_id) for row in entry] for entry in entries])
        for objective, metric in HALVED.items():
            by_round = {rung: scores(store, entries, metric, rung) for rung in RUNGS}
            full, halving, at_random, spent = [], [], [], []
            for seed in range(len(SEEDS)):
                *trained, left = halved({rung: by[:, seed] for rung, by in by_round.items()})
                judged, last = accuracy[:, 1 - seed], by_round[RUNGS[-1]][:, seed]
                full.append(regret(last, judged, COUNT))
                halving.append(judged.max() - judged[left[0]])
                at_random.append(regret(last, judged, AT_RANDOM))
                spent.append(sum(made[t, seed, at].sum() for at, t in enumerate(trained)))
            share = sum(spent) / made.sum()
            means = [float(np.mean(each)) for each in (full, halving, at_random)]
            lost[objective].append(means)
            figures = *(f"{value:.1f}" for value in means), f"{100 * share:.0f}"
            lines.append([method, f"{alpha:g}", objective, *figures])
    floor = math.sqrt(np.mean(variances)) if variances else 0.0
    for objective, values in lost.items():
        figures = *(f"{value:.2f}" for value in np.mean(values, axis=0)), ""
        lines.append(["mean", "", objective, *figures])
    return lines, f"noise floor {floor:.1f}"


def _steps(curves: Sequence[Sequence[Any]]) -> Array:
    """Return (configurations, seeds, rungs): local steps that each rung adds to a run.

    A run that diverged makes none after its end.
    """
    preparatory = max(len(curve) for entry in curves for curve in entry) - ROUNDS[-1]
    ends = [0, *(preparatory + rung for rung in RUNGS)]
    return np.array(
        [
            [
                [sum(p["num_steps"] for p in curve[a:b]) for a, b in itertools.pairwise(ends)]
                for curve in entry
            ]
            for entry in curves
        ]
    )


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", choices=("runs", "scores"), help="print a grid and end")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    arguments = parser.parse_args()
    if arguments.grid:
        print(grid_text(scores=arguments.grid == "scores"), end="")
        return
    store = open_store(arguments.store)
    lines, said = outcome(store, store.rows())
    if lines:
        print(plain_table(HEADER, lines))
    print(said)
    for header, found in ((HALVING_HEADER, fewer_rounds), (SCORES_HEADER, scored_on_less)):
        lines, said = found(store, store.rows())
        print()
        if lines:
            print(plain_table(header, lines))
        print(said)


if __name__ == "__main__":
    main()
