"""Print where the objective prefers the worse encoder, and which check without labels tells.

    python leaderboards/studies/equivalence/failures.py            # the studies before this one
    python leaderboards/studies/equivalence/failures.py --held-out # this one, by the same check

README.md says what is asked. Accuracies and losses are in points.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedbench.leaderboards.studies.equivalence.equivalence import BOARDS, FOLDER, read

APART, COSTLY, BUDGET, DRAWS = 5.0, 3.0, 8, 200
MOVED = 0.1
"""Share of their own length that the weights of the best trial moved, at least; chosen on the
study of selection alone."""
FIGURES = ("sep", "effective_rank", "participation_ratio", "rho", "relative_movement")
SEARCHED = ("client", "method", "evaluation")


def trials(store: Path | None = None) -> pd.DataFrame:
    """Return the runs that searches were made of: with their search, accuracy and figures.

    A search is all runs of one study, method, start and seed that differ in nothing but the fields
    of client and method. Of leaderboards/results these are the seeds that chose rates.
    """
    found = []
    places = {name: BOARDS / name for name in ("selection", "confirmation", "start")}
    places |= {"rates": BOARDS / "results"}
    for study, place in places.items() if store is None else [("equivalence", store)]:
        rows = read(place)
        if study == "selection":  # not the further scorings of its encoders
            rows = rows[rows["evaluation.protocols"].map(len) > 0]
        if study == "rates":
            rows = rows[rows["seed"].isin([100, 101])]
        found.append(rows.assign(study=study))
    rows = pd.concat(found, ignore_index=True)
    rows = rows[rows["method"] != "supervised"]
    ok = rows["status"] == "ok"
    accuracy = 100 * rows["linear_acc"].where(ok, rows["untrained_linear_acc"])
    objective = rows["objective"].where(ok).fillna(-np.inf)
    searches = [_search(*values) for values in zip(rows["study"], rows["config"], strict=True)]
    return rows.assign(accuracy=accuracy, score=objective, search=searches).copy()


def _search(study: str, config: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in config.items() if key not in SEARCHED}
    views = config.get("method", {}).get("augmentation")  # a recipe, which no search varies
    return json.dumps([study, views, "lora" in config["method"], rest], sort_keys=True)


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs of one search that lie `APART` points or more apart: worse and better run.

    `failed`: the objective is higher for the worse.
    """
    found = []
    for _, table in rows[rows["status"] == "ok"].groupby("search"):
        acc, score = table["accuracy"].to_numpy(), table["score"].to_numpy()
        ids = table["row_id"].to_numpy()
        for worse, better in np.argwhere(acc[:, None] <= acc[None, :] - APART):
            line = {name: table[name].iloc[0] for name in ("study", "method", "alpha")}
            line |= {"worse": ids[worse], "better": ids[better]}
            found.append(line | {"failed": score[worse] > score[better]})
    return pd.DataFrame(found)


def searches(rows: pd.DataFrame, budget: int = BUDGET) -> pd.DataFrame:
    """Return searches of `budget` random trials: figures of the trial chosen, and what it loses.

    `DRAWS` for each search that has more trials, so that a search counts alike whatever its size.
    """
    rng, found = np.random.default_rng(20261127), []
    for _, table in rows.groupby("search"):
        if len(table) < budget:
            continue
        acc, score = table["accuracy"].to_numpy(), table["score"].to_numpy()
        figures = table[[*FIGURES]].to_numpy(dtype=float)
        for _ in range(DRAWS if len(table) > budget else 1):
            drawn = rng.choice(len(table), budget, replace=False)
            chosen = drawn[np.argmax(score[drawn])]
            line = {name: table[name].iloc[0] for name in ("study", "method", "alpha", "seed")}
            line |= {"loss": acc[drawn].max() - acc[chosen]}
            line |= dict(zip(FIGURES, figures[chosen], strict=True))
            found.append(line)
    return pd.DataFrame(found)


def auc(values: pd.Series, positive: pd.Series) -> float:
    """Return the chance that a value of a positive is the higher one; ties count by half."""
    defined = values.notna()
    rank, yes = rankdata(values[defined]), positive[defined].to_numpy()
    n, m = yes.sum(), (~yes).sum()
    return float((rank[yes].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def check(found: pd.DataFrame) -> pd.Series:
    """Return what the check `relative_movement < MOVED` of the chosen trial is worth."""
    alarm, costly = found["relative_movement"] < MOVED, found["loss"] >= COSTLY
    means = found.groupby(alarm)["loss"].mean()
    line: dict[str, Any] = {"searches": len(found), "costly": costly.mean(), "alarm": alarm.mean()}
    line |= {"loss with alarm": means.get(True), "loss without": means.get(False)}
    line |= {"costly with alarm": costly[alarm].mean(), "without": costly[~alarm].mean()}
    fine = found["loss"] < 1
    return pd.Series(line | {"caught": alarm[costly].mean(), "false alarms": alarm[fine].mean()})


def second_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the loss where one seed chooses, where the mean of two does, and if they disagree."""
    lines = []
    for study, of_study in rows.groupby("study"):
        losses = []
        for _, table in of_study.groupby(["method", "alpha", "dataset"]):
            seeds = sorted(table["seed"].unique())
            kinds = table["config"].map(_kind)
            wide = table.assign(kind=kinds).pivot_table(
                index="kind", columns="seed", values=["score", "accuracy"], dropna=False
            )
            if len(seeds) != 2 or len(wide) < 2 * BUDGET or wide.isna().any(axis=None):
                continue
            score, acc = wide["score"].to_numpy(), wide["accuracy"].to_numpy()
            rng = np.random.default_rng(20261127)
            for seed in (0, 1):
                for _ in range(DRAWS):
                    drawn = rng.choice(len(wide), BUDGET, replace=False)
                    first, other = (drawn[np.argmax(score[drawn, s])] for s in (seed, 1 - seed))
                    both = drawn[np.argmax(score[drawn].mean(1))]
                    best = acc[drawn, seed].max()
                    one = {"one seed": best - acc[first, seed], "both": best - acc[both, seed]}
                    losses.append(one | {"disagree": first != other})
        if losses:
            table = pd.DataFrame(losses)
            by = table.groupby("disagree")["one seed"].mean()
            lines.append(
                {"study": study, **table.mean(), "loss if agreed": by[False], "if not": by[True]}
            )
    return pd.DataFrame(lines)


def _kind(config: Mapping[str, Any]) -> str:
    return json.dumps([config["client"], config["method"]], sort_keys=True)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--held-out", action="store_true", help="the rows of this study alone")
    arguments = parser.parse_args()
    pd.set_option("display.width", 250, "display.max_columns", 40)
    rows = trials(FOLDER if arguments.held_out else None)
    apart = pairs(rows)
    by = apart.groupby(["study", "method", "alpha"])["failed"].agg(["size", "sum"])
    print(f"## {int(apart['failed'].sum())} of {len(apart)} pairs {APART:g} points apart fail\n")
    print(by[by["sum"] > 0].to_string())
    failed = rows[rows["row_id"].isin(apart[apart["failed"]]["worse"])]
    shown = ["study", "method", "alpha", "seed", "accuracy", "objective", *FIGURES, "client.lr"]
    print(f"\n## The {len(failed)} trials that were preferred\n")
    print(failed[shown].round(3).to_string(index=False))
    for budget in (4, BUDGET):
        found = searches(rows, budget)
        studies = found.groupby("study")
        print(f"\n## Searches of {budget}: losses of 5 and 3 points, and the check\n")
        print(studies["loss"].agg(lambda x: (x >= APART).mean()).round(4).to_string())
        print(pd.DataFrame({name: check(of) for name, of in studies}).T.round(3).to_string())
        print(f"\nChance that the figure is higher where the loss is {COSTLY:g} or more\n")
        chance = {
            name: {figure: auc(of[figure], of["loss"] >= COSTLY) for figure in FIGURES}
            for name, of in studies
        }
        print(pd.DataFrame(chance).T.round(2).to_string())
    print("\n## A second seed\n")
    print(second_seed(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
