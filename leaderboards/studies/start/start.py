"""Print the outcome of the study `start`, from committed rows.

Usage: `python leaderboards/studies/start/start.py [--rates] [--store DIR]`;
README.md says what is asked and how
it is decided. With --rates: the chosen rates.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from fedbench import open_store
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.leaderboards.studies.compare import LEVEL, detectable
from fedbench.leaderboards.studies.long_training.long_training import show

STORE = Path(__file__).resolve().parents[2] / "start"
METHODS = ("simclr", "byol", "orchestra", "aligned")
RATES, CHOOSING, JUDGING = (0.003, 0.01, 0.03, 0.1), 100, range(5)
ALPHAS = (0.1, 100.0)
SCORES = ("objective", "sep", "effective_rank", "participation_ratio")
CELL = ["method", "start", "part", "alpha"]


def names() -> dict[str, str]:
    """Return the starts by the SHA-256 of their files."""
    files = sorted((Path(__file__).resolve().parent / "starts").glob("*.safetensors"))
    return {hashlib.sha256(file.read_bytes()).hexdigest(): file.stem for file in files}


def read(store: Path, starts: dict[str, str]) -> pd.DataFrame:
    """Return the runs of the study: cell, rate, seed, accuracy and scores at start and end.

    Args:
        store: folder of results.
        starts: SHA-256 of a file -> name of the start.
    """
    rows = open_store(store).frame()
    federated = rows["preset"].eq("start") & rows["num_clients"].gt(1)  # the starts have one client
    rows = rows[federated].reset_index(drop=True)
    settings = pd.json_normalize([json.loads(text) for text in rows["config_json"]])
    settings = settings.reindex(columns=["client.lr", "model.weights_sha256", "model.trainable"])
    runs = rows.join(settings).rename(columns={"client.lr": "rate", "method": "spec"})
    runs["start"] = runs["model.weights_sha256"].map(starts).fillna("random")
    runs["method"] = runs["spec"].str.split("+").str[0]
    heads = runs["model.trainable"].eq("heads")
    runs["part"] = np.select([heads, runs["spec"].str.endswith("+lora")], ["heads", "lora"], "all")
    runs["before"] = 100 * runs["untrained_linear_acc"]
    runs["after"] = (100 * runs["linear_acc"]).where(runs["status"].eq("ok"), runs["before"])
    runs["change"] = runs["after"] - runs["before"]
    return runs


def chosen(runs: pd.DataFrame) -> pd.Series:
    """Return the rate of each method, start and part of which all rates have run."""
    tried = runs[runs["seed"].eq(CHOOSING) & runs["rate"].isin(RATES) & runs["part"].ne("heads")]
    score = tried["objective"].where(tried["status"].eq("ok"), -np.inf)
    table = tried.assign(score=score).set_index([*CELL[:3], "rate"])["score"].unstack()
    return table.reindex(columns=RATES).dropna().idxmax(axis=1)


def judged(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the judging seeds at the chosen rates."""
    rates = chosen(runs).rename("chosen")
    table = runs[runs["seed"].isin(JUDGING)].join(rates, on=CELL[:3])
    return table[np.isclose(table["rate"], table["chosen"])]


def training_on(runs: pd.DataFrame) -> pd.DataFrame:
    """Test the change from the start in each cell with a pretrained one."""
    lines = {}
    for cell, own in runs[runs["start"].ne("random")].groupby(CELL):
        if len(own) < 2:
            continue
        test = stats.ttest_1samp(own["change"], 0.0)
        low, high = test.confidence_interval()
        line = {"n": len(own), "start %": own["before"].mean(), "change": own["change"].mean()}
        lines[cell] = {**line, "low": low, "high": high, "p": test.pvalue}
        lines[cell]["error"] = own["change"].std() / np.sqrt(len(own))
    table = _table(lines, CELL)
    if len(table):
        level = LEVEL / len(table)
        seen = zip(table.pop("error"), table["n"], strict=True)
        table["detectable"] = [detectable(error, n - 1, level) for error, n in seen]
        table = _decided(table, "change", "helps", "harms")
    return table


def skew(runs: pd.DataFrame) -> pd.DataFrame:
    """Test what is lost from even classes to few, from a pretrained start minus from random init.

    A negative difference says that the pretrained start loses less.
    """
    cells = _cells(runs[runs["part"].eq("all")])
    signs = {}
    for method in METHODS:
        for start in ("near", "far"):
            four = {
                (method, start, "all", 100.0): 1,
                (method, start, "all", 0.1): -1,
                (method, "random", "all", 100.0): -1,
                (method, "random", "all", 0.1): 1,
            }
            if four.keys() <= cells.keys():
                signs[method, start] = four
    return _decided(_contrasts(cells, signs), "difference", "contradicted", "supported")


def parts(runs: pd.DataFrame) -> pd.DataFrame:
    """Test low-rank updates minus the training of everything."""
    cells = _cells(runs[runs["start"].ne("random")])
    signs = {}
    for method, start, part, alpha in cells:
        other = (method, start, "all", alpha)
        if part == "lora" and other in cells:
            signs[method, start, alpha] = {(method, start, "lora", alpha): 1, other: -1}
    return _decided(_contrasts(cells, signs), "difference", "better", "worse")


def noticed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how well each score tells runs that end below their pretrained start from others."""
    runs = runs[runs["start"].ne("random") & runs["part"].ne("heads") & runs["status"].eq("ok")]
    harmed, rng = runs["change"] < 0, np.random.default_rng(0)
    lines = {}
    for score in SCORES:
        fell = runs[score] < runs[f"untrained_{score}"]
        chances = [
            _chance(own.loc[harmed, score], own.loc[~harmed, score])
            for _, own in runs.groupby(CELL)
            if harmed[own.index].nunique() == 2
        ]
        line = {"fell if harmed": fell[harmed].mean(), "fell if not": fell[~harmed].mean()}
        line |= {"harmed": harmed.sum(), "runs": len(runs), "cells": len(chances)}
        if chances:
            means = rng.choice(chances, (2000, len(chances))).mean(axis=1)
            low, high = np.quantile(means, [0.025, 0.975])
            line |= {"chance": np.mean(chances), "low": low, "high": high}
        lines[score] = line
    return pd.DataFrame.from_dict(lines, orient="index") if len(runs) else pd.DataFrame()


def _half(values: pd.Series) -> float:
    return float(stats.t.ppf(1 - LEVEL / 2, len(values) - 1) * values.sem())


def _chance(lower: pd.Series, upper: pd.Series) -> float:
    """Probability that a value of `lower` is below one of `upper`; a tie counts half."""
    below = lower.to_numpy()[:, None] - upper.to_numpy()[None]
    return float((below < 0).mean() + (below == 0).mean() / 2)


def _cells(runs: pd.DataFrame) -> dict[tuple[object, ...], np.ndarray]:
    groups = runs.groupby(CELL)["after"]
    return {cell: own.to_numpy() for cell, own in groups if len(own) > 1}


def _contrasts(
    cells: dict[tuple[object, ...], np.ndarray],
    signs: dict[tuple[object, ...], dict[tuple[object, ...], int]],
) -> pd.DataFrame:
    """Test sums of means with signs, with a variance pooled over all cells that are in one."""
    used = {cell: cells[cell] for four in signs.values() for cell in four}
    freedom = sum(len(values) - 1 for values in used.values())
    squares = sum(values.var(ddof=1) * (len(values) - 1) for values in used.values())
    lines = {}
    for name, terms in signs.items():
        error = np.sqrt(squares / freedom * sum(1 / len(cells[cell]) for cell in terms))
        difference = sum(sign * cells[cell].mean() for cell, sign in terms.items())
        half = stats.t.ppf(1 - LEVEL / 2, freedom) * error
        line = {"difference": difference, "low": difference - half, "high": difference + half}
        line["p"] = 2 * stats.t.sf(abs(difference) / error, freedom)
        lines[name] = {**line, "detectable": detectable(error, freedom, LEVEL / len(signs))}
    return _table(lines, [])


def _table(lines: dict[tuple[object, ...], dict[str, float]], index: list[str]) -> pd.DataFrame:
    if not lines:
        return pd.DataFrame()
    names = pd.MultiIndex.from_tuples([*lines], names=index or None)
    return pd.DataFrame([*lines.values()], index=names)


def _decided(table: pd.DataFrame, column: str, above: str, below: str) -> pd.DataFrame:
    """Correct p by Holm and add the verdict."""
    if not len(table):
        return table
    table = table.assign(p=holm([*table["p"]]))
    word = np.where(table[column] > 0, above, below)
    return table.assign(verdict=np.where(table["p"] < LEVEL, word, "not settled"))


def main() -> None:
    """Print every part of the analysis of which there are rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rates", action="store_true", help="print the chosen rates")
    parser.add_argument("--store", type=Path, default=STORE)
    arguments = parser.parse_args()
    runs = read(arguments.store, names())
    rates = chosen(runs)
    show("Rates chosen by align-unif", rates.to_frame("rate"))
    if arguments.rates or rates.empty:
        return
    own = judged(runs)
    summary = own.groupby(CELL)[["before", "after"]].agg(["mean", ("±", _half), "size"])
    show("Linear accuracy before and after, ± half of the 95 % interval", summary)
    show("Training on from a pretrained start", training_on(own))
    show("Loss from alpha 100 to 0.1, pretrained minus random start", skew(own))
    show("Low-rank updates minus all", parts(own))
    show("Is harm noticed without labels?", noticed(runs))


if __name__ == "__main__":
    main()
