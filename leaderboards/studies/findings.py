"""Compute the findings of docs/findings.md from committed rows, and print them.

Usage: `python leaderboards/studies/findings.py`. docs/pictures.py draws them.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from fedbench import open_store
from fedbench.bench.results.store.row import Row
from fedbench.leaderboards.studies.compare import compare_pairs, detectable
from fedbench.leaderboards.studies.confirmation import confirmation
from fedbench.leaderboards.studies.equivalence import equivalence
from fedbench.leaderboards.studies.long_training import long_training
from fedbench.leaderboards.studies.selection import selection

WAYS = {"linear": "labels", "objective": "objective", "preset": "preset", "random": "random"}
WAYS |= {"k-NN": "k-NN", "loss": "last loss", "sep": "SEP"}
"""How a trial is chosen: name in the study of equivalence -> name here."""
PAIRS = (("random", "objective"), ("preset", "objective"), ("preset", "labels"))
PAIRS += (("objective", "labels"),)
EIGHT = ("selection", "confirmation")
"""Studies whose eight methods were pooled first; some trials of the first train longer."""


@cache
def searches() -> dict[tuple[str, str, str, float], pd.DataFrame]:
    """Return the trials of 25 searches by study, data set, method and alpha.

    A table has those of one seed, then those of the other; the first of each is the preset's.
    """
    found = {}
    for (method, alpha), entries in selection.cells(open_store(selection.STORE).rows()).items():
        found["selection", "cifar10", method, alpha] = _trials(entries)
    for method, entries in confirmation.complete(open_store(confirmation.STORE).rows()).items():
        found["confirmation", "cifar10", method, confirmation.ALPHA] = _trials(entries)
    rows = equivalence.read(equivalence.FOLDER)
    twins = [("cifar10", method) for method in equivalence.TWINS]
    for study, cells in (("equivalence", [*equivalence.SPACES]), ("transfer", twins)):
        for (data, method), table in equivalence.tables(rows, cells).items():
            found[study, data, method, 0.1] = table
    return found


def _trials(entries: Sequence[Sequence[Row]]) -> pd.DataFrame:
    """Return (configurations, seeds) of rows as one table, seed by seed."""
    return equivalence.frame(row for by_seed in zip(*entries, strict=True) for row in by_seed)


def equal(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that make as many steps as the preset's.

    Beside local epochs no search varies what steps cost, but for the width of a projection.
    """
    return trials[trials["client.local_epochs"] == trials["client.local_epochs"].iloc[0]]


@cache
def choosing(studies: tuple[str, ...] = (), any_compute: bool = False) -> pd.DataFrame:
    """Return the points lost by each way of choosing, by data set and method.

    One seed chooses and the other judges, both ways, mean; several searches of one pair of data and
    method count as their mean. `tau` is Kendall's, of objective and accuracy over the trials of one
    seed; `tau of the better half` is over those at or above the median accuracy.

    Args:
        studies: whose searches; empty = all.
        any_compute: False: only trials that make as many steps as the preset's.
    """
    lines = {}
    for (study, *cell), trials in searches().items():
        if not studies or study in studies:
            counted = trials if any_compute else equal(trials)
            lost = equivalence.ways(counted)
            line = {here: lost[name] for name, here in WAYS.items()}
            lines[study, *cell] = {**line, **taus(counted), "trials": len(counted) / 2}
    table = pd.DataFrame(lines).T.rename_axis(["study", "data", "method", "alpha"])
    return table.groupby(level=["data", "method"]).mean()


def taus(trials: pd.DataFrame) -> dict[str, float]:
    """Return Kendall's tau of all trials of a seed, and of its better half: means of both seeds."""
    whole, half = [], []
    accuracies = equivalence.accuracy(trials).round(9)  # equal but for their last bits: a tie
    for score, accuracy in zip(equivalence.score(trials, "objective"), accuracies, strict=True):
        better = accuracy >= np.median(accuracy)
        whole.append(selection.tau(score, accuracy))
        half.append(selection.tau(score[better], accuracy[better]))
    return {"tau": float(np.mean(whole)), "tau of the better half": float(np.mean(half))}


class Difference(NamedTuple):
    """Points with their 95 % interval, and the difference seen with probability 0.8."""

    value: float
    low: float
    high: float
    seen: float


def apart(table: pd.DataFrame, first: str, second: str) -> Difference:
    """Return what one way of choosing loses more than another, of a table of `choosing`.

    The mean is over pairs of data and method. Pairs of one method are not independent: the error is
    clustered by method, and the interval is Student's with one degree of freedom less than methods.
    """
    difference = table[first] - table[second]
    off = (difference - difference.mean()).groupby(level="method").sum()
    freedom = len(off) - 1
    error = math.sqrt(len(off) / freedom * (off**2).sum()) / len(difference)
    value, half = float(difference.mean()), float(stats.t.ppf(0.975, freedom)) * error
    return Difference(value, value - half, value + half, detectable(error, freedom))


def longer() -> pd.Series:
    """Return how many choices by the objective train for how many local epochs, in `selection`."""
    epochs = []
    for (study, *_), trials in searches().items():
        if study == "selection":
            of = equivalence.two(trials, "client.local_epochs")
            best = equivalence.score(trials, "objective").argmax(axis=1)
            epochs += [int(of[seed, index]) for seed, index in enumerate(best)]
    return pd.Series(epochs).value_counts().sort_index()


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
    for title, table in {
        "at the preset's compute": choosing(),
        "the same on CIFAR-10": choosing().loc[["cifar10"]],
        "the same on Fashion-MNIST": choosing().loc[["fashion-mnist"]],
        "at the preset's compute, study of selection": choosing(("selection",)),
        "at any compute, study of selection": choosing(("selection",), any_compute=True),
        "at the preset's compute, eight methods": choosing(EIGHT),
        "at any compute, eight methods": choosing(EIGHT, any_compute=True),
    }.items():
        methods = table.index.get_level_values("method").nunique()
        print(f"Points lost to the best trial, {title}: {len(table)} pairs, {methods} methods\n")
        print(pd.concat([table, table.mean().to_frame(("", "mean")).T]).round(2).to_string())
        for pair in PAIRS:
            line = "{} minus {}: {:.2f} [{:.2f}, {:.2f}]; {:.1f} would be seen"
            print(line.format(*pair, *apart(table, *pair)))
        print()
    print("Local epochs of the objective's choices in the study of selection; the preset has 2")
    print(longer().to_string())
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
