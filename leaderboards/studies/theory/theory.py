"""Print the outcome of the study `theory`, from the rows of a store.

Usage: `python leaderboards/studies/theory/theory.py [--store DIR]`; README.md says what is asked.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from fedbench import open_store
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import plain_table
from fedbench.bench.tuning.grid import Cell, Grid, load_grid, plan
from fedbench.leaderboards.studies.cells import linear, paired_p, ran, spread
from fedbench.leaderboards.studies.compare import LEVEL, detectable

GRID = Path(__file__).with_name("theory.yaml")
SET = {"evaluation.protocols": ["knn", "linear", "theory"]}
ALPHAS, SEEDS = (0.1, 1.0, 100.0), (0, 1, 2, 3, 4)
METHODS = ("orchestra", "simclr", "byol", "spectral", "simsiam", "swav")
TESTED = {"cluster_delta": -1, "cluster_c": 1}
QUANTITIES = TESTED | {
    **{"anew_delta": -1, "anew_c": 1, "views_apart": -1, "centroid_agrees": 1},
    **{"global_mi": 1, "sep": 1, "objective": 1},
}
"""By name the sign that makes more of it better."""
HEADER = [
    "quantity",
    "at α",
    "seeds",
    "mean Kendall τ over seeds, 95 %",
    "p (Holm)",
    "would be seen",
    "verdict",
]
Cells = Mapping[tuple[Any, ...], Row]


def planned(grid: Grid, **settings: Any) -> list[Cell]:
    """Return the cells of the study."""
    return plan(grid, preset="laptop", environ={}, set=SET, **settings)


def order(quantity: Sequence[float], accuracy: Sequence[float]) -> float:
    """Return Kendall's tau-b of two orders of the methods; 0 where one of them is all ties."""
    found = float(stats.kendalltau(quantity, accuracy).statistic)
    return 0.0 if found != found else found


def taus(cells: Cells, name: str, low: float, high: float | None) -> list[float]:
    """Return tau by seed: of values at a concentration, or of their change from `high` to `low`.

    Rows of before `cluster_delta` was measured lack some quantities; their seeds do not count then.
    """
    found = []
    for seed in SEEDS:
        used = [cells[m, a, 3, seed] for m in METHODS for a in (low, high) if a is not None]
        if any(name not in row.metrics for row in used):
            continue
        values: list[tuple[float, float]] = []
        for method in METHODS:
            now = cells[method, low, 3, seed]
            value, accuracy = QUANTITIES[name] * now.metrics[name], linear(now)
            if high is not None:
                before = cells[method, high, 3, seed]
                value -= QUANTITIES[name] * before.metrics[name]
                accuracy -= linear(before)
            values.append((value, accuracy))
        found.append(order(*zip(*values, strict=True)))
    return found


def outcome(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table; empty until every run is there."""
    cells = ran(rows, load_grid(GRID), planned)
    if len(cells) < len(METHODS) * len(ALPHAS) * len(SEEDS):
        return []
    lines, tested = [], {}
    for name in QUANTITIES:
        for label, low, high in (*((f"{a:g}", a, None) for a in ALPHAS), ("100 → 0.1", 0.1, 100.0)):
            of_seeds = taus(cells, name, low, high)
            if high is not None and name in TESTED and len(of_seeds) == len(SEEDS):
                p = paired_p(of_seeds, [0.0] * len(of_seeds))
                error = float(stats.sem(of_seeds))
                seen = detectable(error, len(SEEDS) - 1, LEVEL / 2)  # of two tests
                tested[name] = 1.0 if p is None else p, sum(of_seeds), f"{seen:.2f}"
            shown = spread(of_seeds) if of_seeds else ""
            lines.append([name, label, str(len(of_seeds)), shown, "", "", ""])
    if len(tested) < len(TESTED):
        return lines
    corrected = dict(zip(tested, holm([p for p, *_ in tested.values()]), strict=True))
    for line in lines:
        if "→" in line[1] and line[0] in corrected:
            p, (_, total, seen) = corrected[line[0]], tested[line[0]]
            settled = "supported" if total > 0 else "contradicted"
            line[4:] = [f"{p:.2g}", seen, settled if p < LEVEL else "not settled"]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=GRID.parent, help="folder of results")
    print(plain_table(HEADER, outcome(open_store(parser.parse_args().store).rows())))
