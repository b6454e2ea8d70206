"""Compute the findings of docs/findings.md from committed rows, and print them.

Usage: `python leaderboards/studies/findings.py`. docs/pictures.py draws them.
"""

import math
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from fedbench import open_store
from fedbench.leaderboards.studies.compare import compare_pairs
from fedbench.leaderboards.studies.confirmation import confirmation
from fedbench.leaderboards.studies.equivalence import equivalence
from fedbench.leaderboards.studies.long_training import long_training
from fedbench.leaderboards.studies.selection import selection

WAYS = ("labels", "objective", "preset", "random")
"""How one of 24 configurations is chosen."""


def lost(scores: selection.Array, accuracy: selection.Array) -> dict[str, float]:
    """Return the points that each way of choosing loses to the best configuration.

    One seed chooses and the other judges, both ways, mean. Labels choose by the linear probe.

    Args:
        scores: of the objective, (configurations, 2 seeds); the first is the preset's.
        accuracy: linear, in points, of the same shape.
    """

    def of(seed: int) -> dict[str, float]:
        judge = accuracy[:, 1 - seed]
        return {
            "labels": selection.regret(accuracy[:, seed], judge, len(judge)),
            "objective": selection.regret(scores[:, seed], judge, len(judge)),
            "preset": float(judge.max() - judge[0]),
            "random": float(judge.max() - judge.mean()),
        }

    both = [of(0), of(1)]
    return {way: float(np.mean([found[way] for found in both])) for way in WAYS}


def taus(scores: selection.Array, accuracy: selection.Array) -> tuple[float, float]:
    """Return Kendall's tau of all configurations, and of those at or above the median accuracy."""
    accuracy = accuracy.round(9)  # means of two seeds that are equal but for their last bits tie
    better = accuracy >= np.median(accuracy)
    return selection.tau(scores, accuracy), selection.tau(scores[better], accuracy[better])


@cache
def choosing() -> pd.DataFrame:
    """Return the points lost by method and way of choosing, and Kendall's tau of the objective.

    `tau` is over all 24 configurations, `tau of the better half` over those at or above the median
    accuracy: both of means over two seeds. `of a run` is the mean of what each seed has alone. The
    four methods of the study of selection have two values of alpha, whose mean it is.
    """
    cells: dict[str, list[dict[str, float]]] = {}

    def add(method: str, scores: selection.Array, accuracy: selection.Array) -> None:
        whole, half = taus(scores.mean(axis=1), accuracy.mean(axis=1))
        runs = np.mean([taus(scores[:, i], accuracy[:, i]) for i in (0, 1)], axis=0)
        found = {"tau": whole, "tau of the better half": half}
        found |= {"tau of a run": runs[0], "tau of a run, better half": runs[1]}
        cells.setdefault(method, []).append({**lost(scores, accuracy), **found})

    store = open_store(selection.STORE)
    for (method, _), table in selection.cells(store.rows()).items():
        last = selection.ROUNDS[-1]
        scores = selection.scores(store, table, "objective", last)
        add(method, scores, selection.accuracies(table))
    for method, table in confirmation.complete(open_store(confirmation.STORE).rows()).items():
        scores = confirmation.measured(table)["objective"]
        add(method, np.where(np.isnan(scores), -np.inf, scores), selection.accuracies(table))
    return pd.DataFrame({method: pd.DataFrame(each).mean() for method, each in cells.items()}).T


def apart(first: str, second: str) -> tuple[float, float]:
    """Return what one way of choosing loses more than another, and half of its 95 % interval.

    The mean is over methods, and the interval Student's.
    """
    difference = choosing()[first] - choosing()[second]
    half = stats.t.ppf(0.975, len(difference) - 1) * stats.sem(difference)
    return float(difference.mean()), float(half)


@cache
def announced() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the points lost in the ten cells of the announced test, and its tests."""
    found = equivalence.tables(equivalence.read(equivalence.FOLDER))
    by_cell = pd.DataFrame({cell: equivalence.figures(table) for cell, table in found.items()}).T
    return by_cell, equivalence.tests(by_cell)


@cache
def long_runs() -> dict[str, dict[str, np.ndarray]]:
    """Return linear accuracies of five seeds in points by recipe and variant, at alpha 0.1."""
    rows = long_training.read(long_training.STORE)
    return {
        recipe: long_training.by_variant(runs)
        for (recipe, alpha), runs in long_training.recipes(rows).items()
        if alpha == long_training.CLAIMED
    }


def views() -> pd.DataFrame:
    """Return Orchestra minus SimCLR in points with its 95 % interval, by setting."""
    published = long_training.paper()
    gap = float((published["orchestra"] - published["simclr"])[0])
    lines = {"paper": {"difference": gap, "low": gap, "high": gap}}
    for setting, recipe, suffix in (
        ("published rates", "published", ""),
        ("chosen rates", "alike", ""),
        ("wide crops", "alike", " wide"),
    ):
        groups = long_runs()[recipe]
        tests = compare_pairs(groups, long_training.pairs(groups))
        test = tests.loc[f"orchestra{suffix}", f"simclr{suffix}"]
        lines[setting] = {name: float(test[name]) for name in ("difference", "low", "high")}
    return pd.DataFrame(lines).T


def change_by_views() -> pd.Series:
    """Return the change of that difference from own views to wide crops, with its interval."""
    groups = long_runs()["alike"]
    own = {name: groups[name] for name in ("orchestra", "simclr")}
    return long_training.interaction(own, long_training.with_wide(groups)).loc["simclr"]


def centroids() -> pd.DataFrame:
    """Return mean and half of the 95 % interval of linear accuracy: untrained, random, learnt."""
    rows = long_training.read(long_training.STORE)
    before = rows[rows["num_rounds"].eq(long_training.ROUNDS) & rows["method"].eq("orchestra")]
    groups = long_runs()["alike"]
    found = {
        "untrained": 100 * before.groupby("seed")["untrained_linear_acc"].first().dropna(),
        "random": groups["orchestra random"],
        "learnt": groups["orchestra"],
    }
    return pd.DataFrame(
        {
            name: {
                "mean": float(np.mean(values)),
                "half": float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)),
            }
            for name, values in found.items()
        }
    ).T


def share_of_clusters() -> pd.Series:
    """Return the test of Orchestra against itself with random centroids, in points."""
    groups = long_runs()["alike"]
    return compare_pairs(groups, long_training.pairs(groups)).loc["orchestra", "orchestra random"]


def welch(plus: list[np.ndarray], minus: list[np.ndarray]) -> tuple[float, float, float]:
    """Return a sum of means minus another and its 95 % interval, each group with its variance.

    Degrees of freedom are Welch and Satterthwaite's.
    """
    groups = [*plus, *minus]
    errors = np.array([group.var(ddof=1) / len(group) for group in groups])
    rest = sum(error**2 / (len(group) - 1) for error, group in zip(errors, groups, strict=True))
    half = stats.t.ppf(0.975, errors.sum() ** 2 / rest) * math.sqrt(errors.sum())
    value = sum(group.mean() for group in plus) - sum(group.mean() for group in minus)
    return value, value - half, value + half


def not_pooled() -> dict[str, tuple[float, float, float]]:
    """Return differences in points with Welch's interval: by the probe, and by k-NN."""
    groups = long_runs()["alike"]
    rows = long_training.recipes(long_training.read(long_training.STORE))
    runs = rows["alike", long_training.CLAIMED].groupby("variant")["knn_acc"]
    own, random = (100 * runs.get_group(f"orchestra{each}").to_numpy() for each in ("", " random"))
    return {
        "change by views": welch(
            [groups["orchestra"], groups["simclr wide"]],
            [groups["simclr"], groups["orchestra wide"]],
        ),
        "clusters": welch([groups["orchestra"]], [groups["orchestra random"]]),
        "clusters, k-NN": welch([own], [random]),
    }


if __name__ == "__main__":
    print("Points lost to the best of 24 configurations\n")
    print(choosing().round(2).to_string(), "\n\nmean\n", choosing().mean().round(2).to_string())
    for pair in (("objective", "labels"), ("preset", "objective"), ("random", "objective")):
        print("{} minus {}: {:.2f} ± {:.2f}".format(*pair, *apart(*pair)))
    by_cell, tests = announced()
    print("\nThe announced test\n", by_cell.round(2).to_string())
    print("\nmean\n", by_cell.mean().round(2).to_string(), "\n", tests.round(3).to_string())
    print("\nOrchestra minus SimCLR\n", views().round(2).to_string())
    print("\nChange by views\n", change_by_views().round(4).to_string())
    print("\nCentroids\n", centroids().round(2).to_string())
    print("\nOrchestra minus random centroids\n", share_of_clusters().to_string())
    print("\nNot pooled (Welch)")
    for name, interval in not_pooled().items():
        print("{}: {:.2f} [{:.2f}, {:.2f}]".format(name, *interval))
