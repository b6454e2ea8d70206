"""Print the board of the README with its tests, from the rows in leaderboards/results.

Usage: `python leaderboards/studies/board/board.py [--rates] [--dataset NAME] [--store DIR]`;
README.md says what
is asked and how it is decided. With --rates: the chosen rates and the commands that follow.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from fedbench import open_store
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.chance import NO_MARKS, Marks, marks
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.tuning.grid import load_grid, plan
from fedbench.leaderboards.studies.cells import STORE, ran
from fedbench.leaderboards.studies.compare import compare, compare_pairs, tie_groups
from fedbench.leaderboards.studies.long_training.long_training import interaction, show
from fedbench.leaderboards.studies.rules import RULES, board_rule, judge

FOLDER = Path(__file__).resolve().parent
RATES = load_grid(FOLDER / "board-rates.yaml")
GRIDS = {"cifar10": "board", "fashion-mnist": "board-fashion"}
planned = partial(plan, preset="laptop", environ={})


def trials(rows: Sequence[Row], dataset: str) -> pd.DataFrame:
    """Return the runs that choose rates, of the methods of which all have run."""
    on_it = [row for row in rows if row.dataset == dataset]
    grid = load_grid(FOLDER / f"{GRIDS[dataset]}.yaml")
    found = []
    for method in grid.methods:
        settings = {"methods": [method], "set": {"data.name": dataset}}
        cells = ran(on_it, RATES, planned, **settings)
        if len(cells) < len(planned(RATES, **settings)):
            continue
        accuracy = accuracies(cells.values())
        for (_, rate, seed), row in cells.items():
            line = {"method": method, "rate": rate, "seed": seed}
            line["linear"] = accuracy[row.row_id][0]
            if row.status == "ok":
                sep = row.further.get("sep")
                line |= {"loss": row.final_loss, "objective": row.objective, "sep": sep}
            found.append(line)
    columns = ["method", "rate", "seed", "linear", "loss", "objective", "sep"]
    kinds = dict.fromkeys(columns[3:], float)
    return pd.DataFrame(found, columns=columns).astype(kinds)


def accuracies(rows: Iterable[Row]) -> dict[str, tuple[float, float]]:
    """Return id -> linear accuracy of a method's runs and that before training, in points.

    All runs of a seed begin with one encoder, which a run that diverged counts with; it does not
    measure it itself.
    """
    rows = list(rows)
    before = {r.seed: r.untrained_linear_acc for r in rows if r.untrained_linear_acc is not None}
    found = {}
    for row in rows:
        start = before[row.seed]
        end = row.linear_acc if row.status == "ok" else start
        if end is None:
            raise ValueError(f"row {row.row_id} has no linear accuracy")
        found[row.row_id] = 100 * end, 100 * start
    return found


def scored(rule: str, runs: pd.DataFrame) -> pd.Series:
    """Return the score of each rate by the mean over the seeds of `runs`, of one method.

    A rate at which a run diverged has none of the three values and comes last.
    """
    table = runs.groupby("rate")[["loss", "objective", "sep"]].agg(lambda x: x.mean(skipna=False))
    values = {name: table[name].to_numpy() for name in table}
    return pd.Series(judge(rule, values), index=table.index)


def chosen(runs: pd.DataFrame, rule: str | None = None) -> pd.Series:
    """Return each method's rate by a rule; None = that of the board. Ties go to the lower loss."""
    picked = {}
    for method, own in runs.groupby("method", sort=False):
        loss = own.groupby("rate")["loss"].mean()
        table = pd.DataFrame({"score": scored(rule or board_rule(str(method)), own), "loss": loss})
        picked[method] = table.sort_values(["score", "loss"], ascending=[False, True]).index[0]
    return pd.Series(picked, name="rate", dtype=float)


def regrets(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean loss in points against the best rate, by the way of choosing.

    The rate is chosen by one seed and judged by the accuracy of the other, both ways. Beside it
    stand how much more that is than by the rule of the board, and half of that difference's 95 %
    interval over methods.
    """
    lost: dict[tuple[str, str], list[float]] = {}
    for method, own in runs.groupby("method", sort=False):
        preset = resolve(str(method), preset="laptop", environ={}).config.client.lr
        for seed in own["seed"].unique():
            told, judged = own[own["seed"] == seed], own[own["seed"] != seed]
            accuracy = judged.groupby("rate")["linear"].mean()
            rates = accuracy.index.to_numpy(dtype=float)
            picks = {rule: float(chosen(told, rule).iloc[0]) for rule in RULES}
            picks["of the board"] = float(chosen(told).iloc[0])
            picks["nearest to the preset's"] = float(rates[np.abs(np.log(rates / preset)).argmin()])
            picks["labels"] = float(told.set_index("rate")["linear"].idxmax())
            for name, rate in picks.items():
                lost.setdefault((str(method), name), []).append(accuracy.max() - accuracy[rate])
            lost.setdefault((str(method), "random"), []).append(accuracy.max() - accuracy.mean())
    table = pd.Series({key: np.mean(values) for key, values in lost.items()}, dtype=float)
    table = table.unstack() if len(table) else pd.DataFrame(columns=["of the board"])
    more = table.sub(table["of the board"], axis=0)
    half = stats.t.ppf(0.975, len(table) - 1) * more.std() / np.sqrt(len(table))
    columns = {"regret": table.mean(), "more than the board's": more.mean(), "±": half}
    return pd.DataFrame(columns).sort_values("regret")


def judging(
    rows: Sequence[Row], dataset: str, rates: Mapping[str, float], marked: Mapping[str, Marks]
) -> pd.DataFrame:
    """Return the judging runs at the chosen rates: method, alpha, seed, accuracies, marks.

    Args:
        rows: of a store.
        dataset: of the runs.
        rates: of each method.
        marked: marks of the rows, by row id.
    """
    on_it = [row for row in rows if row.dataset == dataset]
    grid = load_grid(FOLDER / f"{GRIDS[dataset]}.yaml")
    found = []
    for method, rate in rates.items():
        cells = ran(on_it, grid, planned, methods=[method], set={"client.lr": rate})
        accuracy = accuracies(cells.values())
        for row in cells.values():
            linear, before = accuracy[row.row_id]
            line = {"method": method, "alpha": row.alpha, "seed": row.seed}
            mark = marked.get(row.row_id, NO_MARKS)
            line |= {"at_chance": bool(mark.at_chance), "minimises": mark.minimises_objective}
            found.append({**line, "linear": linear, "before": before})
    columns = ["method", "alpha", "seed", "linear", "before", "at_chance", "minimises"]
    return pd.DataFrame(found, columns=columns)


def grouped(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the accuracies of each method that has at least two seeds and ends above its start."""
    groups = {}
    for method, own in runs.sort_values("seed").groupby("method", sort=False):
        if len(own) > 1 and own["linear"].mean() > own["before"].mean():
            groups[str(method)] = own["linear"].to_numpy()
    return groups


def board(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the ranked methods of one alpha, and the tests of all pairs that did not fail."""
    table = runs.groupby("method")["linear"].agg(["mean", "std", "size"])
    half = stats.t.ppf(0.975, table["size"] - 1) * table.pop("std") / np.sqrt(table["size"])
    table.insert(1, "±", half)
    table["untrained"] = runs.groupby("method")["before"].mean()
    table = table.sort_values("mean", ascending=False).rename(columns={"size": "n"})
    groups = grouped(runs)
    order = [name for name in table.index if name in groups]
    tests = compare_pairs({name: groups[name] for name in order}) if len(order) > 1 else None
    letters = {} if tests is None else tie_groups(order, tests)
    table["group"] = [letters.get(name, "") for name in table.index]
    by_method = runs.groupby("method")
    blind = by_method["at_chance"].sum().astype(int)
    scored = by_method["minimises"].any()
    table["note"] = [
        ", ".join(
            ["failed"] * (name not in groups)
            + [f"{blind[name]} of {table.loc[name, 'n']} at chance"] * bool(blind[name])
            + ["minimises the objective"] * bool(scored[name])
        )
        for name in table.index
    ]
    return table, pd.DataFrame() if tests is None else tests


def overview(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the README's table: accuracy ± half an interval and tie group at each finished alpha.

    An alpha is finished when every method has five seeds there; methods are in the order of their
    means over these.
    """
    tables = {alpha: board(own)[0] for alpha, own in runs.groupby("alpha")}
    methods = runs["method"].nunique()
    done = {a: t for a, t in tables.items() if len(t) == methods and (t["n"] == 5).all()}
    shown = pd.DataFrame(
        {
            f"alpha {alpha:g}": table["mean"].map("{:.1f}".format)
            + table["±"].map("±{:.1f} ".format)
            + table["group"].str.ljust(2)
            for alpha, table in done.items()
        }
    )
    notes = pd.DataFrame({alpha: table["note"] for alpha, table in done.items()})
    shown["note"] = [
        row.iloc[0]
        if row.nunique() == 1
        else ", ".join(f"{note} at {alpha:g}" for alpha, note in row.items() if note)
        for _, row in notes.loc[shown.index].iterrows()
    ]
    order = pd.DataFrame({a: t["mean"] for a, t in done.items()}).mean(axis=1)
    return shown.loc[order.sort_values(ascending=False).index]


def references(rows: Sequence[Row], dataset: str) -> pd.DataFrame:
    """Return the accuracies of encoders at random init, with both statistics of batch norm.

    Runs of simclr without a round are evaluated with the initial statistics, mean 0 and variance 1;
    the reference of every run, also of these, with statistics filled by views of the images.
    """
    on_it = [row for row in rows if row.dataset == dataset]
    grid = load_grid(FOLDER / f"{GRIDS[dataset]}.yaml")
    starts = ran(on_it, grid, planned, methods=["simclr"], set={"federation.num_rounds": 0})
    found = [(row.untrained_linear_acc, row.linear_acc) for row in starts.values()]
    if not found:
        return pd.DataFrame()
    table = 100 * pd.DataFrame(found, columns=["filled", "initial"], dtype=float)
    half = stats.t.ppf(0.975, len(table) - 1) * table.std() / np.sqrt(len(table))
    return pd.DataFrame({"linear": table.mean(), "±": half, "n": len(table)})


def few_classes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return what each method loses from alpha 100 to 0.1, and beyond orchestra's loss."""
    ends = [grouped(runs[runs["alpha"] == alpha]) for alpha in (100.0, 0.1)]
    both = [name for name in ends[0] if name in ends[1]]
    lost = {
        name: compare({"even": ends[0][name], "few": ends[1][name]}, "even").iloc[0]
        for name in both
    }
    table = pd.DataFrame(lost).T[["difference", "low", "high"]]
    if "orchestra" in both:
        table = table.join(interaction(ends[1], ends[0]).add_prefix("beyond orchestra "))
    return table


def judged(store: Store, dataset: str = "cifar10") -> pd.DataFrame:
    """Return the judging runs of a store at the rates that its trials choose; see `judging`."""
    rows = store.rows()
    rates = chosen(trials(rows, dataset))
    return judging(rows, dataset, rates.to_dict(), marks(store, rows))


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", action="store_true", help="print rates and the next commands")
    parser.add_argument("--dataset", choices=[*GRIDS], default="cifar10")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    arguments = parser.parse_args()
    store, dataset = open_store(arguments.store), arguments.dataset
    tried = trials(store.rows(), dataset)
    rates = chosen(tried)
    show(f"{dataset}: rates", rates)
    show(f"{dataset}: regret in points, by the way of choosing", regrets(tried))
    if arguments.rates:
        for method, rate in rates.items():
            print(
                f"fedbench sweep --grid leaderboards/studies/board/{GRIDS[dataset]}.yaml"
                f" --preset laptop --store leaderboards/results --methods {method}"
                f" --set client.lr={rate:g}"
            )
        return
    runs = judged(store, dataset)
    show(f"{dataset}: random init, by batch norm's statistics", references(store.rows(), dataset))
    show(f"{dataset}: overview, five seeds", overview(runs))
    for alpha, own in runs.groupby("alpha"):
        table, tests = board(own)
        show(f"{dataset}, alpha {alpha:g}: linear accuracy", table)
        show(f"{dataset}, alpha {alpha:g}: differences, Holm over pairs", tests)
    if len(runs):
        show(f"{dataset}: loss from alpha 100 to 0.1", few_classes(runs))


if __name__ == "__main__":
    main()
