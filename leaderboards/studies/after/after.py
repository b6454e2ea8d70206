"""Print the outcome of the study `after`, from the rows in leaderboards/results.

Usage: `python leaderboards/studies/after/after.py`;
README.md says what is asked and how it is decided.
"""

from pathlib import Path

from fedbench import open_store
from fedbench.bench.results.leaderboard.statistics import holm, mean, t_interval
from fedbench.bench.system.text import plain_table
from fedbench.bench.tuning.grid import load_grid
from fedbench.leaderboards.studies.cells import STORE, minus, paired_p, ran, spread

SEEDS = range(5)
PAIRS = (
    *((f"simclr+{addon}", "simclr") for addon in ("l-dawa", "feddecorr", "fedu2", "fedprox")),
    ("simclr+scaffold", "simclr"),
    ("fedx", "simclr"),
    ("byol+l-dawa", "byol"),
    ("fedsc", "spectral"),
    ("ssd", "aligned"),
    ("orchestra+l-dawa", "orchestra"),
)
HEADER = ["pair", "linear", "difference", "p (Holm)", "k-NN", "difference", "verdict"]


def outcome(store: Path = STORE) -> list[list[str]]:
    """Return the table: a line for each pair of which all seeds have run, in points."""
    rows = open_store(store).rows()
    of_grid = sorted((r for r in rows if r.grid == "after"), key=lambda row: row.finished_at)
    found = [*ran(rows, load_grid("after")).values(), *of_grid]
    # Those run for the study win, and the later ones of fedu2, which have the release's weight.
    by_seed = {(row.method, row.seed): row for row in found}

    def scores(method: str, metric: str) -> list[float]:
        return [100 * getattr(by_seed[method, seed], metric) for seed in SEEDS]

    pairs = [p for p in PAIRS if all((m, seed) in by_seed for m in p for seed in SEEDS)]
    p_values = [paired_p(*(scores(method, "linear_acc") for method in pair)) or 0 for pair in pairs]
    lines = []
    for pair, p in zip(pairs, holm(p_values), strict=True):
        line = [", ".join(pair)]
        for metric in ("linear_acc", "knn_acc"):
            new, old = (scores(method, metric) for method in pair)
            line += [f"{mean(new):.1f}, {mean(old):.1f}", spread(minus(new, old))]
            if metric == "linear_acc":
                low, _ = t_interval(minus(new, old)) or (0.0, 0.0)
                line.append(f"{p:.2g}")
                verdict = "not settled" if p >= 0.05 else "above" if low > 0 else "below"
        lines.append([*line, verdict])
    return lines


if __name__ == "__main__":
    print(plain_table(HEADER, outcome()))
