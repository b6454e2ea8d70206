"""Print the outcome of the study `views`: the laptop board with narrow views beside README's.

    python leaderboards/studies/views/views.py            # the tables
    python leaderboards/studies/views/views.py --rates    # the chosen rates and the next commands
    python leaderboards/studies/views/views.py --power    # what the board's rows say of power

README.md has plan and definitions; accuracies are in points.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from fedbench import open_store
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.leaderboards.studies.long_training.long_training import show

FOLDER = Path(__file__).resolve().parent
BOARD = FOLDER.parents[1] / "results"
NARROW, WIDE = ("simclr-o", "orchestra-o"), ("simclr-m",)
UNVIEWED = (None,)
METHODS = ("simclr", "orchestra", "aligned", "byol", "spectral", "featarc", "simsiam", "lejepa")
UNCROPPED = ("rotpred", "fedavg-ae")
"""Methods of the board without crops, whose runs are those of both boards."""
REFERENCE, LEVEL, DRAWS = "orchestra", 0.05, 2000
RANKS = ("orchestra", "byol", "simsiam")
"""Methods whose loss a collapsed net minimises: the board adds the rank by SEP to that by loss."""

Array = NDArray[np.float64]
Groups = Mapping[str, Array]


def read(store: Path, views: tuple[str | None, ...]) -> pd.DataFrame:
    """Return the rows of the board's settings with these views: method, rate, seed and figures.

    `views` are the recipes that methods name, None of methods that name none.
    """
    found = []
    for row in open_store(store).rows():
        config, ok = row.config, row.status == "ok"
        settings = (row.dataset, row.alpha, row.preset, row.num_rounds, config.data.test_subset)
        recipe = config.model_dump()["method"].get("augmentation")
        if settings != ("cifar10", 0.1, "laptop", 12, None) or recipe not in views:
            continue
        before, after = row.untrained_linear_acc, row.linear_acc
        line = {"method": row.method, "rate": config.client.lr, "seed": row.seed, "ok": ok}
        line |= {"loss": row.final_loss, "sep": row.metrics.get("sep")}
        line["before"] = np.nan if before is None else 100 * before
        line["accuracy"] = 100 * after if ok and after is not None else line["before"]
        found.append(line)
    names = ["method", "rate", "seed", "accuracy", "before", "ok", "loss", "sep"]
    return pd.DataFrame(found, columns=names)


def rates(rows: pd.DataFrame) -> dict[str, float]:
    """Return the rate that the board's rule chooses for each method whose eight runs are there.

    The lowest last loss, mean of seeds 100 and 101; of `RANKS` the highest sum of the ranks by loss
    and by SEP, ties to the lower loss. A rate at which a run diverged is not chosen.
    """
    chosen = {}
    for method, own in rows[rows["seed"].isin([100, 101])].groupby("method"):
        if len(own) < 8:
            continue
        own = own.assign(sep=own["sep"].clip(-1, 1))
        means = own.groupby("rate")[["loss", "sep"]].agg(lambda x: x.mean(skipna=False))
        means = means[own.groupby("rate")["ok"].all()]
        score = stats.rankdata(-means["loss"])
        if method in RANKS:
            score = score + stats.rankdata(means["sep"])
        best = np.lexsort((means["loss"], -score))[0]
        chosen[str(method)] = float(means.index[best])
    return chosen


def judged(rows: pd.DataFrame, chosen: Mapping[str, float]) -> dict[str, Array]:
    """Return the accuracies of seeds 0 to 4 at the chosen rates, of methods that have all five."""
    found = {}
    for method, rate in chosen.items():
        own = rows[
            (rows["method"] == method) & (rows["rate"] == rate) & rows["seed"].isin(range(5))
        ]
        own = own.drop_duplicates("seed").sort_values("seed")
        if len(own) == 5:
            found[method] = own["accuracy"].to_numpy()
    return found


def welch(parts: Sequence[tuple[Array, int]], level: float) -> dict[str, float]:
    """Return the test of a sum of means, each with its sign, by Welch and Satterthwaite.

    Args:
        parts: values and sign of each group.
        level: at which `seen`, the effect found with probability 0.8, is computed.
    """
    shares = np.array([values.var(ddof=1) / len(values) for values, _ in parts])
    sizes = np.array([len(values) - 1 for values, _ in parts])
    effect = sum(sign * values.mean() for values, sign in parts)
    error, freedom = np.sqrt(shares.sum()), shares.sum() ** 2 / (shares**2 / sizes).sum()
    half = stats.t.ppf(1 - LEVEL / 2, freedom) * error
    critical = stats.t.ppf(1 - level / 2, freedom)
    line = {"effect": effect, "low": effect - half, "high": effect + half}
    line["p"] = 2 * stats.t.sf(abs(effect) / error, freedom)
    return line | {"seen": error * float(special.nctdtrinc(freedom, 0.2, critical))}


def family(lines: Mapping[str, Sequence[tuple[Array, int]]]) -> pd.DataFrame:
    """Return the tests of one family, adjusted by Holm."""
    found = {name: welch(parts, LEVEL / len(lines)) for name, parts in lines.items()}
    table = pd.DataFrame(found).T
    table["p"] = holm(table["p"].to_list())
    return table.assign(verdict=np.where(table["p"] < LEVEL, "differs", "not settled"))


def changes(wide: Groups, narrow: Groups) -> pd.DataFrame:
    """Return by how much narrow views change each method's lead over the reference."""
    return family(
        {
            name: [
                (narrow[name], 1),
                (narrow[REFERENCE], -1),
                (wide[name], -1),
                (wide[REFERENCE], 1),
            ]
            for name in narrow
            if name != REFERENCE and name in wide
        }
    )


def pairs(groups: Groups) -> pd.DataFrame:
    """Return the differences of all pairs of methods, a family of its own."""
    return family(
        {f"{a} - {b}": [(groups[a], 1), (groups[b], -1)] for a, b in combinations(groups, 2)}
    )


def turned(wide: Groups, narrow: Groups) -> list[str]:
    """Return the pairs that both boards tell apart, in opposite directions."""
    both = [name for name in wide if name in narrow]
    tables = [pairs({name: groups[name] for name in both}) for groups in (wide, narrow)]
    apart = (tables[0]["p"] < LEVEL) & (tables[1]["p"] < LEVEL)
    return [*tables[0].index[apart & (tables[0]["effect"] * tables[1]["effect"] < 0)]]


def order(wide: Groups, narrow: Groups) -> tuple[float, float, float]:
    """Return Kendall's tau between the two orders and its 95 % interval, a bootstrap over seeds."""
    both = [name for name in wide if name in narrow]
    rng = np.random.default_rng(20261127)
    means = [np.array([groups[name].mean() for name in both]) for groups in (wide, narrow)]
    draws = []
    for _ in range(DRAWS):
        drawn = [
            [rng.choice(groups[name], len(groups[name])).mean() for name in both]
            for groups in (wide, narrow)
        ]
        draws.append(stats.kendalltau(*drawn).statistic)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(stats.kendalltau(*means).statistic), float(low), float(high)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", action="store_true", help="print rates and the next commands")
    parser.add_argument("--power", action="store_true", help="print what older rows say of power")
    parser.add_argument("--store", type=Path, default=FOLDER, help="folder of results")
    arguments = parser.parse_args()
    rows = pd.concat([read(BOARD, WIDE), read(BOARD, UNVIEWED)])
    everything = judged(rows, rates(rows))
    wide = {m: v for m, v in everything.items() if m in METHODS}
    if arguments.power:  # as if narrow views had the same spreads
        show("What a change of views would have to be", changes(wide, wide))
        return
    rows = read(arguments.store, NARROW) if open_store(arguments.store).rows() else rows[:0]
    chosen = rates(rows)
    if arguments.rates:
        for method, rate in chosen.items():
            print(
                "fedbench sweep --grid leaderboards/studies/views/board.yaml --preset laptop"
                f" --store leaderboards/studies/views --methods {method}"
                f" --set method.augmentation={NARROW[method == REFERENCE]} --set client.lr={rate:g}"
            )
        return
    narrow = judged(rows, chosen)
    print(f"{len(rows)} rows; {len(narrow)} of {len(METHODS)} methods are complete")
    if len(narrow) < len(METHODS):
        return
    table = pd.DataFrame({"rate": chosen, "narrow": {m: v.mean() for m, v in narrow.items()}})
    before = rows.groupby("method")["before"].mean()
    failed = [m for m, v in narrow.items() if v.mean() <= before[m]]
    wide_means = {m: v.mean() for m, v in wide.items()}
    show(f"Boards; failed: {failed or 'none'}", table.assign(wide=wide_means))
    narrow = {m: v for m, v in narrow.items() if m not in failed}
    show(f"Change of the lead over {REFERENCE}, narrow minus wide", changes(wide, narrow))
    same = {m: everything[m] for m in UNCROPPED if m in everything}
    print(f"\npairs that turn: {turned(everything, narrow | same) or 'none'}")
    numbers = order(everything, narrow | same)
    print("tau between the orders: {:.2f} [{:.2f}, {:.2f}]".format(*numbers))


if __name__ == "__main__":
    main()
