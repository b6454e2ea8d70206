"""Print the outcome of the study `long-training`, from committed rows.

Usage: `python leaderboards/studies/long_training/long_training.py [--store DIR]`;
README.md says what is asked
and how it is decided.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedbench import open_store
from fedbench.bench.results.chance import NO_MARKS, marks
from fedbench.bench.results.leaderboard.statistics import holm
from fedbench.leaderboards.studies.cells import blind
from fedbench.leaderboards.studies.compare import LEVEL, compare_pairs, detectable

STORE = Path(__file__).resolve().parents[2] / "results"
REGIME = {"data.num_clients": 100, "client.local_epochs": 4, "federation.participation": 0.1}
ROUNDS, JUDGING, CHOOSING = 60, range(5), (100, 101)
RATES = (0.003, 0.01, 0.03)
GATE_SEEDS = 3
CLAIMED = 0.1  # alpha of the claims in docs/claims.md
PUBLISHED = {"orchestra": 0.003, "simclr": 0.003, "spectral": 0.003, "byol": 0.01}
PUBLISHED |= {"aligned": 0.003, "simsiam": 0.01, "rotpred": 0.01}
CROPS = {"spectral": "spec-o", "byol": "byol-o", "orchestra": "orchestra-o", "rotpred": ""}
"""Of the published recipe where they are not simclr-o."""
CHANCE = {"parts.clusters": math.log(32), "parts.rotation": math.log(4)}
DRAWS = 100_000  # 2,000 left ends of intervals to chance: few values of tau are possible
PASSES_A_ROUND = 10 * 500 * 4
PAPER = Path(__file__).resolve().parents[2] / "papers" / "orchestra.parquet"


def read(store: Path) -> pd.DataFrame:
    """Return the rows of the preset's regime with their settings as columns."""
    rows = open_store(store).frame().sort_values("row_id", ignore_index=True)
    settings = pd.json_normalize([json.loads(text) for text in rows["config_json"]])
    named = [*REGIME, "client.lr", "method.augmentation", "method.representations"]
    rows = rows.join(settings.reindex(columns=named))
    rows = rows[(rows[list(REGIME)] == pd.Series(REGIME)).all(axis=1)].reset_index(drop=True)
    wide = rows["method.augmentation"].eq("simclr-m")
    random = rows["method.representations"].eq("random")
    rows["variant"] = rows["method"] + np.where(wide, " wide", "") + np.where(random, " random", "")
    # A run that diverged counts with the encoder that all runs of its seed begin with.
    before = rows.groupby("seed")["untrained_linear_acc"].transform("first")
    rows["linear"] = 100 * rows["linear_acc"].where(rows["status"] == "ok", before)
    return rows


def curve(store: Path, row_id: str) -> pd.DataFrame:
    """Return a run's rounds."""
    return pd.DataFrame(open_store(store).curve(row_id))


def gate(rows: pd.DataFrame, store: Path) -> pd.DataFrame:
    """Return the mean of the last five rounds of both terms, a line per rate and seed."""
    runs = rows[rows["variant"].eq("orchestra") & rows["num_rounds"].eq(ROUNDS)]
    lines = []
    for _, run in runs[runs["seed"] < GATE_SEEDS].sort_values(["client.lr", "seed"]).iterrows():
        ends = curve(store, run["row_id"])[list(CHANCE)].tail(5).mean()
        lines.append({"rate": run["client.lr"], "seed": run["seed"], **ends})
    return pd.DataFrame(lines, columns=["rate", "seed", *CHANCE])


def passed(terms: pd.DataFrame) -> pd.Series:
    """Return per rate whether the mean over seeds of each term is below 0.9 times chance.

    Rates of which a seed has not ended are left out.
    """
    groups = terms.groupby("rate")
    means = groups[list(CHANCE)].mean()[groups["seed"].nunique() == GATE_SEEDS]
    return (means < 0.9 * pd.Series(CHANCE)).all(axis=1)


def chosen(rows: pd.DataFrame) -> pd.Series:
    """Return the rate with the lowest last loss of each variant of which all short runs ended."""
    short = rows[rows["num_rounds"].eq(ROUNDS // 5) & rows["seed"].isin(CHOOSING)]
    short = short[short["client.lr"].isin(RATES)]
    loss = short["final_loss"].where(short["status"].eq("ok"), math.inf)
    groups = loss.groupby([short["variant"], short["client.lr"]])
    means = groups.mean().where(groups.size() == len(CHOOSING)).unstack()
    return means.dropna().idxmin(axis=1)


def recipe(rows: pd.DataFrame, rates: Mapping[str, float], *, published: bool) -> pd.DataFrame:
    """Return the judging runs of one recipe.

    Orchestra with random centroids has no choice of its own: its rate is orchestra's.
    """
    method, views = rows["method"], rows["method.augmentation"].fillna("")
    if published:
        rate, crops = method.map(PUBLISHED), views.eq(method.map(CROPS).fillna("simclr-o"))
    else:
        rate, crops = rows["variant"].str.removesuffix(" random").map(rates), views.ne("spec-o")
    full = rows["num_rounds"].eq(ROUNDS) & rows["seed"].isin(JUDGING)
    return rows[full & crops & np.isclose(rows["client.lr"], rate.astype(float))]


def by_variant(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the accuracies of each variant in the order of seeds."""
    groups = runs.sort_values("seed").groupby("variant")["linear"]
    return {str(name): group.to_numpy() for name, group in groups}


def pairs(names: Collection[str]) -> list[tuple[str, str]]:
    """Return what is compared: each method with orchestra, wide simclr with wide orchestra."""
    others = [name for name in names if name not in ("orchestra", "orchestra wide")]
    found = [("orchestra wide" if name == "simclr wide" else "orchestra", name) for name in others]
    return [pair for pair in found if pair[0] in names]


def crops(groups: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return what the views `simclr-m` change in each method that has them too.

    Their crops are of 8 to 100 % and not 50 to 100; saturation varies twice as much; no blur, and
    for orchestra no solarisation.
    """
    both = [(f"{name} wide", name) for name in with_wide(groups)]
    return compare_pairs(groups, both).droplevel(1).drop(columns="verdict")


def with_wide(groups: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the runs with the views `simclr-m` by the names of their methods."""
    return {name[:-5]: runs for name, runs in groups.items() if name.endswith(" wide")}


def accuracies(runs: pd.DataFrame, store: Path) -> pd.DataFrame:
    """Return linear accuracies in points by variant and by the rounds that a run has trained."""
    lines = []
    for _, run in runs.iterrows():
        points = curve(store, run["row_id"])[["round_index", "metrics.linear_acc"]].dropna()
        # Orchestra's round 0 trains nothing.
        trained = points["round_index"] + (0 if run["method"] == "orchestra" else 1)
        found = dict(zip(trained.astype(int), 100 * points["metrics.linear_acc"], strict=True))
        lines.append({**found, int(run["num_rounds"]): run["linear"]})  # its curve lacks the end
    return pd.DataFrame(lines, index=runs["variant"])


def gaps(runs: pd.DataFrame, store: Path) -> pd.DataFrame:
    """Return the mean of orchestra minus method after each number of rounds that was evaluated."""
    groups = accuracies(runs, store).groupby(level="variant")
    means = groups.agg(lambda column: column.mean(skipna=False))
    found = {name: means.loc[first] - means.loc[name] for first, name in pairs(means.index)}
    return pd.DataFrame.from_dict(found, orient="index")


def slopes(runs: pd.DataFrame, store: Path, until: int = ROUNDS) -> pd.DataFrame:
    """Return per method the slope of orchestra minus method on log2 of image passes, with t-test.

    Seeds are unpaired between methods: each run has a slope of its own; Welch's test.

    Args:
        runs: of one recipe.
        store: has their curves.
        until: rounds of the last evaluation that counts.
    """
    table = accuracies(runs, store).loc[:, :until]
    passes = np.log2(PASSES_A_ROUND * table.columns.to_numpy())
    each = table.apply(lambda line: stats.linregress(passes, line).slope, axis=1)
    found = {str(name): group.to_numpy() for name, group in each.groupby(level="variant")}
    lines = {}
    for first, name in pairs(found):
        reference, values = found[first], found[name]
        test = stats.ttest_ind(reference, values, equal_var=False)
        low, high = test.confidence_interval()
        error = (high - low) / 2 / stats.t.ppf(1 - LEVEL / 2, test.df)
        line = {"slope": reference.mean() - values.mean(), "low": low, "high": high}
        level = LEVEL / len(pairs(found))
        lines[name] = {**line, "p": test.pvalue, "detectable": detectable(error, test.df, level)}
    table = pd.DataFrame.from_dict(lines, orient="index")
    table = table.assign(p=holm([*table["p"]]))
    ahead = np.where(table["slope"] > 0, "supported", "contradicted")
    return table.assign(verdict=np.where(table["p"] < LEVEL, ahead, "not settled"))


def interaction(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    beside: Mapping[str, np.ndarray] | None = None,
) -> pd.DataFrame:
    """Return per method (orchestra - method) in one recipe minus that in the other, pooled test.

    The two may be runs with and without other views as well. Runs that serve both are one group; a
    method of which all runs do has no line. The variance is pooled over both and the groups
    `beside` them.
    """
    names = sorted(set(first) & set(second))
    groups = {tuple(side[name]): side[name] for side in (first, second) for name in names}
    groups |= {tuple(group): group for group in (beside or {}).values()}
    freedom = sum(len(group) - 1 for group in groups.values())
    variance = sum(group.var(ddof=1) * (len(group) - 1) for group in groups.values()) / freedom
    lines, errors = {}, []
    for name in names:
        four = [first["orchestra"], first[name], second["orchestra"], second[name]]
        weights = Counter[tuple[float, ...]]()
        for group, sign in zip(four, (1, -1, -1, 1), strict=True):
            weights[tuple(group)] += sign
        error = math.sqrt(variance * sum(w**2 / len(group) for group, w in weights.items()))
        if not error:
            continue
        a, b, c, d = (group.mean() for group in four)
        change = (a - b) - (c - d)
        half = stats.t.ppf(0.975, freedom) * error
        p = 2 * stats.t.sf(abs(change) / error, freedom)
        lines[name] = {"change": change, "low": change - half, "high": change + half, "p": p}
        errors.append(error)
    table = pd.DataFrame.from_dict(lines, orient="index", columns=["change", "low", "high", "p"])
    seen = [detectable(error, freedom, LEVEL / len(errors)) for error in errors]
    return table.assign(p=holm([*table["p"]]), detectable=seen)


def agreement(here: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return Kendall's tau between two orders of methods, 95 % by a bootstrap over seeds."""
    names = sorted(set(here) & set(there))
    if len(names) < 3:
        return {"methods": len(names)}
    rng, (i, j) = np.random.default_rng(0), np.triu_indices(len(names), 1)

    def tau(pick: Any) -> Any:
        means = [np.array([pick(side[n]).mean(axis=-1) for n in names]) for side in (here, there)]
        first, second = (np.sign(each[i] - each[j]) for each in means)  # (pairs,) or (pairs, DRAWS)
        return (first * second).mean(axis=0)

    draws = tau(lambda group: rng.choice(group, (DRAWS, len(group))))
    low, high = np.quantile(draws, [0.025, 0.975], method="inverted_cdf")  # values that occur
    return {"methods": len(names), "tau": tau(np.asarray), "low": low, "high": high}


def paper() -> dict[str, np.ndarray]:
    """Return the linear accuracies of the paper's table 1, CIFAR-10, cross-device, in points."""
    table = pd.read_parquet(PAPER).query("source == 'orchestra_table1'")
    table = table[table["dataset"].eq("CIFAR-10") & table["setting"].eq("cross_device")]
    table = table[table["metric"].eq("linear") & table["spec"].notna()]
    return {
        spec: np.array([value])
        for spec, value in zip(table["spec"], 100 * table["value"], strict=True)
    }


def laptop(store: Path) -> dict[str, np.ndarray]:
    """Return the accuracies of README's board at alpha 0.1, of the methods that did not fail."""
    from fedbench.leaderboards.studies.board.board import grouped, judged  # which imports this

    runs = judged(open_store(store))
    return grouped(runs[runs["alpha"] == 0.1])


def recipes(rows: pd.DataFrame) -> dict[tuple[str, float], pd.DataFrame]:
    """Return the judging runs by recipe and alpha, where orchestra and another have ended.

    A method has when all its seeds have: before, nothing is said of it.
    """
    rates = chosen(rows).to_dict()
    found = {}
    for name, published in (("published", True), ("alike", False)):
        for alpha, runs in recipe(rows, rates, published=published).groupby("alpha"):
            ended = runs.groupby("variant").filter(lambda group: len(group) == len(JUDGING))
            groups = by_variant(ended)
            if "orchestra" in groups and len(groups) > 1:
                found[name, float(alpha)] = ended
    return found


def summary(runs: pd.DataFrame, store: Path) -> pd.DataFrame:
    """Return mean, half of the 95 % interval, number and runs at chance of each variant."""
    table = runs.groupby("variant")["linear"].agg(["mean", "std", "size"])
    half = stats.t.ppf(0.975, table["size"] - 1) * table.pop("std") / np.sqrt(table["size"])
    table.insert(1, "±", half)
    marked = marks(open_store(store), runs.itertuples())
    chance = runs["row_id"].map(lambda name: bool(marked.get(name, NO_MARKS).at_chance))
    return table.assign(at_chance=chance.groupby(runs["variant"]).sum())


def judged(tests: pd.DataFrame, at_chance: pd.Series) -> pd.DataFrame:
    """Return tests by method without the verdicts of those of which a side has runs at chance."""
    verdicts = tests["verdict"].to_dict()
    for pair in pairs(at_chance.index):
        if sides := blind({name: (at_chance[name], len(JUDGING)) for name in pair}):
            verdicts[pair[1]] = f"no verdict: {sides}"
    return tests.assign(verdict=pd.Series(verdicts))


WITHDRAWN = {
    (
        "accuracy",
        "published",
        "aligned",
    ): "withdrawn: the rate is ours, and Welch's p is {welch:.2g}",
    ("accuracy", "alike", "byol"): "withdrawn: its rate is the largest tried",
    **{
        ("slope", "published", method): "withdrawn: rests on the last round"
        for method in ("aligned", "simclr", "spectral")
    },
}
"""Lines of docs/claims.md that are not called supported any more, and why."""


def welch(groups: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return p by Welch's test of each method beside orchestra, corrected by Holm."""
    tests = [
        stats.ttest_ind(groups[first], groups[method], equal_var=False).pvalue
        for first, method in pairs(groups)
    ]
    return dict(zip([method for _, method in pairs(groups)], holm(tests), strict=True))


_rows = cache(read)  # docs/claims.md takes four tables from them


@cache
def _claimed(store: Path) -> list[tuple[str, pd.DataFrame, pd.Series]]:
    """Return each recipe, its runs at alpha 0.1, and how many of a variant's are at chance."""
    return [
        (name, runs, summary(runs, store)["at_chance"])
        for (name, alpha), runs in recipes(_rows(store)).items()
        if alpha == CLAIMED
    ]


def order_lines(store: Path) -> tuple[list[str], list[list[str]]]:
    """Return the comparisons of linear accuracy with orchestra at alpha 0.1, for docs/claims.md."""
    header = ["recipe", "orchestra beside", "n", "linear", "difference", "p (Holm)"]
    lines, published = list[list[str]](), paper()
    for name, runs, at_chance in _claimed(store):
        groups = by_variant(runs)
        tests = judged(compare_pairs(groups, pairs(groups)).droplevel(0), at_chance)
        for first, method in pairs(groups):
            test, reference, values = tests.loc[method], groups[first], groups[method]
            half = test["high"] - test["difference"]
            line = [name, method, f"{len(reference)}, {len(values)}"]
            line += [f"{reference.mean():.1f}, {values.mean():.1f}"]
            line += [f"{test['difference']:+.2f} ± {half:.2f}", f"{test['p']:.2g}"]
            line += [f"{test['detectable']:.1f}"]
            known = method in published
            line += [f"{(published['orchestra'] - published[method])[0]:+.1f}" if known else ""]
            verdict = WITHDRAWN.get(("accuracy", name, method), test["verdict"])
            verdict = verdict.format(welch=welch(groups)[method])
            lines.append([*(text.replace("-", "−") for text in line), verdict])
    return [*header, "seen at 0.8", "paper", "verdict"], lines


def budget_lines(store: Path) -> tuple[list[str], list[list[str]]]:
    """Return gaps by rounds and slopes at alpha 0.1, for docs/claims.md."""
    header, lines = ["recipe", "orchestra −"], list[list[str]]()
    for name, runs, at_chance in _claimed(store):
        by_rounds = gaps(runs, store)
        header[2:] = [f"{rounds} rounds" for rounds in by_rounds]
        for method, test in judged(slopes(runs, store), at_chance).iterrows():
            line = [name, str(method), *(f"{gap:+.2f}" for gap in by_rounds.loc[method])]
            interval = f"({test['low']:+.2f} to {test['high']:+.2f})"
            line += [f"{test['slope']:+.2f} {interval}", f"{test['p']:.2g}"]
            line += [f"{test['detectable']:.2f}"]
            verdict = WITHDRAWN.get(("slope", name, str(method)), test["verdict"])
            lines.append([*(text.replace("-", "−") for text in line), verdict])
    return [*header, "slope per doubling", "p (Holm)", "seen at 0.8", "verdict"], lines


def gate_lines(store: Path) -> tuple[list[str], list[list[str]]]:
    """Return the outcome of the gate, a line per rate, for docs/claims.md."""
    terms, lines = gate(_rows(store), store), list[list[str]]()
    for rate, ended in passed(terms).items():
        means = terms[terms["rate"] == rate][list(CHANCE)].mean()
        verdict = "supported" if ended else "contradicted"
        lines.append([f"{rate:g}", str(GATE_SEEDS), *(f"{mean:.2f}" for mean in means), verdict])
    return ["rate", "n", "clusters", "quarter turns", "verdict"], lines


def recipe_lines(store: Path) -> tuple[list[str], list[list[str]]]:
    """Return how orchestra's lead changes with the recipe at alpha 0.1, for docs/claims.md."""
    header = ["orchestra −", *(recipe for recipe, _, _ in _claimed(store)), "change", "p (Holm)"]
    sides, lines = [by_variant(runs) for _, runs, _ in _claimed(store)], list[list[str]]()
    everything = {name: group for side in sides for name, group in side.items()}
    for method, test in interaction(*sides, everything).iterrows():
        line = [str(method)]
        line += [f"{side['orchestra'].mean() - side[method].mean():+.2f}" for side in sides]
        line += [f"{-test['change']:+.2f} ± {test['high'] - test['change']:.2f}"]
        line += [f"{test['p']:.2g}", f"{test['detectable']:.1f}"]
        verdict = "contradicted" if test["p"] < LEVEL else "not settled"
        lines.append([*(text.replace("-", "−") for text in line), verdict])
    return [*header, "seen at 0.8", "verdict"], lines


def orders(rows: pd.DataFrame, store: Path) -> pd.DataFrame:
    """Return the agreement of the orders here, under `laptop` and in the paper's table 1."""
    cheap, published = laptop(store), paper()
    found = {("laptop", "the paper's table 1"): agreement(cheap, published)}
    for (name, alpha), runs in recipes(rows).items():
        groups = by_variant(runs)
        found[f"{name}, alpha {alpha:g}", "laptop"] = agreement(groups, cheap)
        found[f"{name}, alpha {alpha:g}", "the paper's table 1"] = agreement(groups, published)
    return pd.DataFrame(found).T


def agreement_lines(store: Path) -> tuple[list[str], list[list[str]]]:
    """Return the table of `orders` for docs/claims.md."""
    lines = []
    for (first, second), test in orders(_rows(store), store).iterrows():
        tau = f"{test['tau']:+.2f} ({test['low']:+.2f} to {test['high']:+.2f})".replace("-", "−")
        lines.append([first, second, f"{test['methods']:.0f}", tau])
    return ["order of", "beside", "methods", "Kendall's τ"], lines


def show(title: str, table: pd.DataFrame) -> None:
    """Print a table under its title; nothing if there is none yet."""
    print(f"\n## {title}\n")
    print(table.round(3).to_string() if len(table) else "no runs yet")


def main() -> None:
    """Print every part of the analysis of which there are rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--store", type=Path, default=STORE)
    store = parser.parse_args().store
    rows = read(store)
    terms = gate(rows, store)
    show("Gate: mean of the last five rounds, chance 3.466 and 1.386", terms)
    show(f"Gate passed, rates with all {GATE_SEEDS} seeds", passed(terms).to_frame("passed"))
    show("Rates chosen by the last loss", chosen(rows).to_frame("rate"))
    arms = {}
    for (name, alpha), runs in recipes(rows).items():
        title, groups = f"{name}, alpha {alpha:g}", by_variant(runs)
        arms[name, alpha] = groups
        show(f"{title}: linear accuracy", table := summary(runs, store))
        tests = judged(compare_pairs(groups, pairs(groups)).droplevel(0), table["at_chance"])
        show(f"{title}: orchestra minus method", tests)
        if other_views := with_wide(groups):
            show(f"{title}: views simclr-m minus published views", crops(groups))
            changes = interaction(groups, other_views)
            show(f"{title}: do views simclr-m change the difference from orchestra?", changes)
        show(f"{title}: orchestra minus method by rounds", gaps(runs, store))
        for what, until in (
            ("slope per doubling of passes", ROUNDS),
            ("the same without the last round", ROUNDS - 1),
        ):
            show(f"{title}: {what}", judged(slopes(runs, store, until), table["at_chance"]))
    show("Kendall's tau between orders of methods", orders(rows, store))
    for (first, alpha), (second, beta) in combinations(arms, 2):
        if alpha == beta:
            show(
                f"alpha {alpha:g}: does the recipe change the difference from orchestra?",
                interaction(arms[first, alpha], arms[second, beta]),
            )


if __name__ == "__main__":
    main()
