"""Print the outcome of the study `equivalence`, from its rows; README.md has plan and definitions.

    python leaderboards/studies/equivalence/equivalence.py               # the tables
    python leaderboards/studies/equivalence/equivalence.py --grid main   # its runs; or `transfer`
    python leaderboards/studies/equivalence/equivalence.py --power       # from older rows

Accuracies and losses are in points.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from fedbench import open_store
from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.bench.results.store.row import Row
from fedbench.leaderboards.studies.long_training.long_training import show
from fedbench.leaderboards.studies.selection.selection import taus

FOLDER = Path(__file__).resolve().parent
BOARDS = FOLDER.parents[1]
COUNT, SEEDS, SOBOL_SEED, DRAWS = 16, (300, 301), 20261127, 2000
MARGIN, SHARE, LEVEL = 1.0, 0.25, 0.05
BUDGETS = (1, 4, 8, 16)
METRICS = {  # what chooses -> column of a row, and its sign
    **{"objective": ("objective", 1), "sep": ("sep", 1), "loss": ("final_loss", -1)},
    **{"linear": ("linear_acc", 1), "k-NN": ("knn_acc", 1)},
    "100 labels": ("linear_1pct_acc", 1),
}

COLUMNS = ("row_id", "status", "method", "dataset", "alpha", "seed", "final_loss")

Array = NDArray[np.float64]
Draw = Callable[[float], Any]
Cell = tuple[str, str]  # data set and method


def log(low: float, high: float) -> Draw:
    """Return what maps [0, 1) to a log scale, to four digits."""
    return lambda x: float(f"{low * (high / low) ** x:.4g}")


def choice(*values: Any) -> Draw:
    """Return what maps [0, 1) to one of some values."""
    return lambda x: values[int(len(values) * x)]


RATE = {"client.lr": log(0.001, 0.1)}
EMA = {"method.ema_decay": choice(0.9, 0.99, 0.996)}
TEMPERATURE = {"method.temperature": log(0.05, 1.0)}
FEATARC = {**RATE, **TEMPERATURE, "method.align_weight": log(0.05, 1.0)}
SPACES: Mapping[Cell, Mapping[str, Draw]] = {  # those of search_spaces/, but for the rates
    ("fashion-mnist", "simclr"): {**RATE, **TEMPERATURE},
    ("fashion-mnist", "spectral"): {**RATE, "method.norm": choice("cos", "clip")},
    ("fashion-mnist", "featarc"): FEATARC,
    ("cifar10", "simclr+fedu2"): {**RATE, **TEMPERATURE, "method.fedu2.weight": log(0.001, 1.0)},
    ("fashion-mnist", "byol"): {**RATE, **EMA},
    ("fashion-mnist", "orchestra"): {**RATE, **EMA},
    ("cifar10", "ssd"): {
        **{**RATE, "method.separation": log(0.01, 10.0)},
        **{"method.stretch": choice(2.0, 10.0, 50.0)},
        **{"method.distillation": choice(0.01, 0.1, 1.0)},
    },
    ("fashion-mnist", "fedsc"): {
        **{**RATE, "method.least_own": choice(0.1, 0.2, 0.5)},
        **{"method.mu": choice(1.0, 4.0, 10.0)},
    },
    ("cifar10", "fedx"): {
        **{**RATE, "method.temperature": choice(0.05, 0.1, 0.5)},
        **{"method.target_temperature": choice(0.01, 0.05, 0.1)},
        **{"method.relational": choice(0.1, 1.0)},
    },
    ("cifar10", "mim"): {
        **{"client.lr": log(0.0003, 0.03), "method.ratio": choice(0.5, 0.65, 0.75)},
        **{"method.normalised": choice(True, False)},
    },
}
"""The cells in the order in which they run."""
RATES = {"byol": 0.1, "mim": 0.001}
"""Rates of the preset where they are not 0.03; no Sobol point has one of them."""
TWINS = ("simclr", "spectral", "byol")
"""Methods whose configurations on Fashion-MNIST run on CIFAR-10 too; featarc's have, in
leaderboards/confirmation."""


def configurations(cell: Cell) -> list[dict[str, Any]]:
    """Return a cell's configurations: the preset's, which is empty, and Sobol points."""
    space = SPACES[cell]
    # featarc has the points of the study of confirmation, so that choices can be carried over.
    seed = 20261126 if cell[1] == "featarc" else SOBOL_SEED + list(SPACES).index(cell)
    points = stats.qmc.Sobol(len(space), seed=seed).random(32)[: COUNT - 1]
    drawn = [
        {key: draw(float(x)) for (key, draw), x in zip(space.items(), point, strict=True)}
        for point in points
    ]
    return [{}, *drawn]


def grid_text(name: str) -> str:
    """Return the grid of the study's runs (`main`), or that of the twins (`transfer`)."""
    import yaml

    twins = [("cifar10", method) for method in TWINS]
    cells = [*SPACES] if name == "main" else twins
    grid = {
        "grid": "equivalence" if name == "main" else "equivalence-transfer",
        "description": "Sobol configurations, for the test of choosing without labels",
        "source": "ours; written by leaderboards/studies/equivalence/equivalence.py",
        "axes": {"data.alpha": [0.1]},
        "points": [
            {"data.name": data, "method": method, **values}
            for data, method in cells
            for values in configurations((data if name == "main" else "fashion-mnist", method))
        ],
        "methods": [method for _, method in cells],
        "seeds": list(SEEDS),
    }
    return yaml.safe_dump(grid, sort_keys=False, width=100)


# Rows -------------------------------------------------------------------------------------------


def read(store: Path) -> pd.DataFrame:
    """Return the rows of a store, with a column for each field and metric."""
    return frame(open_store(store).rows())


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows as a table, with a column for each field and metric."""
    found = []
    for row in rows:
        config = row.config.model_dump(mode="json")
        plain = {name: value for name, value in config.items() if not isinstance(value, dict)}
        settings = plain | flatten(config)  # in the order by which trials are sorted
        columns = {name: getattr(row, name) for name in COLUMNS}
        found.append({**settings, **row.metrics, **columns, "config": config})
    return pd.DataFrame(found)


def tables(
    rows: pd.DataFrame, cells: Sequence[Cell] = tuple(SPACES), seeds: Sequence[int] = SEEDS
) -> dict[Cell, pd.DataFrame]:
    """Return the rows of each cell whose runs are all there, by seed and configuration.

    A row is known by its method, data, seed and the values that its search varies.
    """
    found = {}
    for data, method in cells:
        of = ("fashion-mnist", method) if ("fashion-mnist", method) in SPACES else (data, method)
        mine = rows[(rows["dataset"] == data) & (rows["method"] == method)]
        wanted = configurations(of)
        mine = mine.reindex(columns=mine.columns.union([*SPACES[of]]))  # none has run of a field
        lines = []
        for seed in seeds:
            for index, values in enumerate(wanted):
                here = mine[mine["seed"] == seed]
                for key, value in (values or {"client.lr": RATES.get(method, 0.03)}).items():
                    here = here[here[key] == value]
                if len(here):
                    lines.append(here.iloc[0].to_dict() | {"index": index})
        if len(lines) == len(seeds) * len(wanted):
            found[data, method] = pd.DataFrame(lines)
    return found


def two(table: pd.DataFrame, column: str) -> Array:
    """Return a column as (2, configurations)."""
    values = table[column] if column in table else pd.Series(np.nan, table.index)
    return values.to_numpy(dtype=float).reshape(2, -1)


def accuracy(table: pd.DataFrame) -> Array:
    """Return linear accuracy, (2, configurations); of a run that failed, its untrained encoder's.

    All runs of a seed begin with the same encoder; one that failed does not measure it.
    """
    ok = (table["status"] == "ok").to_numpy().reshape(2, -1)
    before = np.nanmean(two(table, "untrained_linear_acc"), axis=1, keepdims=True)
    return 100 * np.where(ok, two(table, "linear_acc"), before)


def score(table: pd.DataFrame, name: str) -> Array:
    """Return what chooses, (2, configurations), more is better; -inf where it is undefined."""
    column, sign = METRICS[name]
    values = sign * two(table, column)
    ok = (table["status"] == "ok").to_numpy().reshape(2, -1) & np.isfinite(values)
    return np.where(ok, values, -np.inf)


# Figures of a cell ------------------------------------------------------------------------------


def taken(by: Array, judge: Array, budget: int) -> float:
    """Return the expected accuracy of the best by a score of `budget` random configurations.

    Args:
        by: (n,) score, more is better; configurations of equal score are taken alike.
        judge: (n,) accuracy.
        budget: from 1 to n.
    """
    n, above, mean = len(judge), 0, 0.0
    for value in sorted(set(by.tolist()), reverse=True):
        tied = judge[by == value]
        ways = comb(n - above, budget) - comb(n - above - len(tied), budget)
        mean, above = mean + tied.mean() * ways / comb(n, budget), above + len(tied)
    return float(mean)


def lost(by: Array, acc: Array, budget: int | None = None) -> float:
    """Return the points lost to the best where each seed chooses and the other judges.

    Args:
        by: (2, n) score.
        acc: (2, n) accuracy.
        budget: configurations that a search tries; None = all.
    """
    budget = acc.shape[1] if budget is None else budget
    pairs = [(by[seed], acc[1 - seed]) for seed in (0, 1)]
    return float(np.mean([judge.max() - taken(one, judge, budget) for one, judge in pairs]))


def ways(table: pd.DataFrame) -> dict[str, float]:
    """Return what each way of choosing loses in a cell; the preset is its first configuration."""
    acc = accuracy(table)
    line = {name: lost(score(table, name), acc) for name in METRICS}
    line["random"] = lost(score(table, "objective"), acc, 1)
    return line | {"preset": float(np.mean(acc.max(axis=1) - acc[:, 0]))}


def figures(table: pd.DataFrame) -> dict[str, float]:
    """Return what each way of choosing loses in a cell, and tau of the objective."""
    acc = accuracy(table)
    line = ways(table)
    line |= {
        f"objective {b}": lost(score(table, "objective"), acc, b) for b in BUDGETS if 1 < b < COUNT
    }
    mean, by = acc.mean(0), score(table, "objective").mean(0)
    rng = np.random.default_rng(SOBOL_SEED)
    n = len(mean)
    draws = taus(by, mean, rng.multinomial(n, np.full(n, 1 / n), DRAWS).astype(float))
    better = mean >= np.median(mean)
    line["tau"] = float(taus(by, mean, np.ones((1, n)))[0])
    line["low"], line["high"] = np.quantile(draws, (0.025, 0.975))
    line["tau, better half"] = float(taus(by[better], mean[better], np.ones((1, better.sum())))[0])
    line["spread of a seed"] = float(np.sqrt(np.mean((acc[0] - acc[1]) ** 2) / 2))
    # A shift that all configurations of a seed share changes no choice.
    line["spread without shift"] = float(np.std(acc[0] - acc[1], ddof=1) / np.sqrt(2))
    return line


# Tests over cells -------------------------------------------------------------------------------


def equivalent(low: Sequence[float], high: Sequence[float]) -> float:
    """Return p of two one-sided t-tests: the mean of `low` is above 0, that of `high` below 0.

    Within ± m: `low` is d + m, `high` is d - m.
    """
    above = stats.ttest_1samp(low, 0.0, alternative="greater").pvalue
    below = stats.ttest_1samp(high, 0.0, alternative="less").pvalue
    return float(max(above, below))


def tests(by_cell: pd.DataFrame) -> pd.DataFrame:
    """Return the primary test and the secondary family; README.md names them.

    `mean`, `low`, `high`: the difference over cells and its 90 % interval (TOST at 5 % is settled
    where that lies within the margin). `seen`: of an equivalence the smallest margin that these
    rows would have shown, of a difference the smallest that is seen with probability 0.8.
    """
    d = by_cell["objective"] - by_cell["linear"]
    quarter = SHARE * by_cell["random"]
    lines = []

    def add(name: str, family: str, x: pd.Series, p: float, equal: bool) -> None:
        error = float(stats.sem(x))
        half = float(stats.t.ppf(1 - LEVEL, len(x) - 1)) * error
        seen = abs(x.mean()) + half
        if not equal:
            critical = stats.t.ppf(1 - LEVEL, len(x) - 1)
            seen = error * float(special.nctdtrinc(len(x) - 1, 0.2, critical))
        line = {"test": name, "family": family, "mean": x.mean()}
        line |= {"low": x.mean() - half, "high": x.mean() + half, "sd": x.std(ddof=1)}
        lines.append(line | {"p": p, "seen": seen})

    def within(name: str, other: str, family: str) -> None:
        x = by_cell["objective"] - by_cell[other]
        add(name, family, x, equivalent(x + MARGIN, x - MARGIN), equal=True)

    within("objective = labels (linear), ± 1", "linear", "primary")
    add(
        *("objective = labels, ± a quarter of random's loss", "secondary", d),
        *(equivalent(d + quarter, d - quarter), True),
    )
    within("objective = labels (k-NN), ± 1", "k-NN", "secondary")
    within("objective = 100 labels, ± 1", "100 labels", "secondary")
    for other in ("random", "preset", "loss", "sep"):
        x = by_cell[other] - by_cell["objective"]
        p = float(stats.ttest_1samp(x, 0.0, alternative="greater").pvalue)
        add(f"objective loses less than {other}", "secondary", x, p, equal=False)
    table = pd.DataFrame(lines)
    second = table["family"] == "secondary"
    table.loc[second, "p"] = holm(table.loc[second, "p"].to_list())
    return table.assign(verdict=np.where(table["p"] < LEVEL, "shown", "not settled"))


def transfer(here: pd.DataFrame, there: pd.DataFrame) -> dict[str, float]:
    """Return what the objective's choice loses at home (`there`) and when made on other data.

    Both tables have the same configurations in the same order.
    """
    acc = accuracy(there)
    at_home, abroad = score(there, "objective"), score(here, "objective")
    pairs = [(i, j) for i in (0, 1) for j in (0, 1)]  # the other data's seeds have no share in it
    line = {"at home": lost(at_home, acc)}
    each = [acc[j].max() - taken(abroad[i], acc[j], len(acc[j])) for i, j in pairs]
    line["abroad"] = float(np.mean(each))
    line["random"], line["preset"] = lost(at_home, acc, 1), float(np.mean(acc.max(1) - acc[:, 0]))
    return line


def carried(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what a choice loses at home and abroad, for each method and direction that is there.

    Rows of featarc on CIFAR-10 are those of the study of confirmation.
    """
    older = read(BOARDS / "confirmation")
    on_cifar = tables(rows, [("cifar10", method) for method in TWINS])
    on_cifar |= tables(older, [("cifar10", "featarc")], seeds=(200, 201))
    here, lines = tables(rows), {}
    for (_, method), there in on_cifar.items():
        if (home := here.get(("fashion-mnist", method))) is not None:
            lines[method, "Fashion-MNIST to CIFAR-10"] = transfer(home, there)
            lines[method, "CIFAR-10 to Fashion-MNIST"] = transfer(there, home)
    return pd.DataFrame(lines).T


# Power ------------------------------------------------------------------------------------------


def power(spreads: Sequence[float], mean: float, draws: int = 20_000) -> float:
    """Return how often the primary test shows equivalence if cells have these deviations."""
    rng = np.random.default_rng(SOBOL_SEED)
    d = rng.normal(mean, spreads, (draws, len(spreads)))
    half = stats.t.ppf(1 - LEVEL, len(spreads) - 1) * stats.sem(d, axis=1)
    return float(np.mean(np.abs(d.mean(1)) + half < MARGIN))


def older() -> pd.DataFrame:
    """Return objective minus labels in searches of older studies, as if of `COUNT` trials.

    Cells of α = 0.1 of selection and confirmation, 16 of their 24 configurations drawn 300 times,
    the preset's among them; and the four rates of each method of the board on Fashion-MNIST.
    """
    rng, lines = np.random.default_rng(SOBOL_SEED), []
    for name in ("selection", "confirmation"):
        rows = read(BOARDS / name)
        rows = rows[(rows["alpha"] == 0.1) & rows["evaluation.objective_clients"].isna()]
        rows = rows[rows["evaluation.objective_noise"].isna()]
        for method, table in rows.groupby("method"):
            keys = [key for key in table if key.startswith(("client.", "method."))]
            varied = [key for key in keys if table[key].astype(str).nunique() > 1]
            table = table.sort_values(["seed", *varied])
            acc, by = accuracy(table), score(table, "objective")
            drawn = [rng.choice(acc.shape[1], COUNT, replace=False) for _ in range(300)]
            d = [lost(by[:, i], acc[:, i]) - lost(acc[:, i], acc[:, i]) for i in drawn]
            line = {"study": name, "method": method, "d": np.mean(d)}
            lines.append(line | {"rms": np.sqrt(np.mean(np.square(d)))})
    rows = read(BOARDS / "results")
    rows = rows[(rows["dataset"] == "fashion-mnist") & rows["seed"].isin([100, 101])]
    for method, table in rows[rows["method"] != "supervised"].groupby("method"):
        table = table.sort_values(["seed", "client.lr"])
        acc = accuracy(table)
        d = lost(score(table, "objective"), acc, 4) - lost(acc, acc, 4)
        line = {"study": "board, Fashion-MNIST", "method": method, "d": d, "rms": abs(d)}
        lines.append(line)
    return pd.DataFrame(lines)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", choices=("main", "transfer"), help="print the grid and end")
    parser.add_argument("--power", action="store_true", help="print what older rows say of power")
    parser.add_argument("--store", type=Path, default=FOLDER, help="folder of results")
    arguments = parser.parse_args()
    pd.set_option("display.width", 250, "display.max_columns", 40)
    if arguments.grid:
        print(grid_text(arguments.grid), end="")
        return
    if arguments.power:
        show("Objective minus labels in older searches", older())
        for wide in (0.8, 1.05, 1.3):
            spreads = [0.64] * 6 + [wide] * 4
            line = [f"{mean}: {power(spreads, mean):.2f}" for mean in (0.0, 0.25, 0.5)]
            print(f"Fashion-MNIST 0.64, CIFAR-10 {wide}; power at a true mean of", *line)
        return
    rows = read(arguments.store)
    if rows.empty:
        raise SystemExit(f"{arguments.store} has no rows yet")
    found = tables(rows)
    print(f"{len(rows)} rows; {len(found)} of {len(SPACES)} cells are complete")
    if found:
        by_cell = pd.DataFrame({cell: figures(table) for cell, table in found.items()}).T
        show("Points lost by what chooses, and tau", by_cell)
        if len(found) == len(SPACES):
            show("Mean over cells", by_cell.mean().to_frame().T)
            show("Tests; p of the secondary family by Holm", tests(by_cell))
        show("Points lost at home and by a choice on other data", carried(rows))


if __name__ == "__main__":
    main()
