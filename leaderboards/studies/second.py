"""Independent recomputation of board, claims and confirmation, from the plans and the schema.

    python leaderboards/studies/second.py                           # all three
    python leaderboards/studies/second.py --dataset fashion-mnist   # the board of another data set

It uses neither fedbench nor the scripts beside it, so that it confirms or refutes what they print.
Accuracies are of the linear probe, in points. Definitions where a plan is silent:

- A term ends at chance if its last round is at 0.9 or more of what no information gives: ln of the
  clusters and ln 4 (orchestra), ln 4 (rotpred), ln 63 (simclr), ln 10 (supervised).
- The interval beside a mean is of that group alone, with n - 1 degrees of freedom.
- A sum of ranks is of ranks of means over seeds. Where it ties, a choice goes to the better of its
  first score (the lower loss); tau leaves the tie.
- The rate nearest to the preset's is nearest on the log scale.
- The loss from skew on the board leaves out methods that failed at either end.
- An undefined score is the worst of its run and of the mean over seeds; worst ones share a rank.
- SEP is clipped to [-1, 1]. alpha_req is better near 1: its score is -|alpha - 1|; the raw value
  stands beside it.
- The bootstrap keeps rank sums of all 24 configurations. Halving breaks ties by configuration.
- Claims use seeds 0 to 4. A claim is one family: pooled variance, or Welch's, as on the board;
  corrected p values of Welch's test stand beside either.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb, log
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

BOARDS = Path(__file__).resolve().parents[1]
DRAWS = 2000
RATES = {"simsiam": 0.06, "byol": 0.1, "fedavg-ae": 0.001, "single-ae": 0.001}
RATES |= {"pfedae": 0.001, "semifed": 0.01}  # the preset's; 0.03 for the rest
COLLAPSIBLE = ("byol", "simsiam", "orchestra")
STANDARD: dict[str, Any] = {"preset": "laptop-2026-11", "data.test_subset": 2000, "alpha": 0.1}
STANDARD |= {"partition": "dirichlet-balanced", "participation": 0.2}
STANDARD |= {"num_rounds": 12, "local_epochs": 2}
ORCHESTRA: dict[str, Any] = {"method.degeneracy": True, "method.representations": "centroids"}
ORCHESTRA |= {"method.num_local_clusters": 16, "method.num_global_clusters": 32}
ORCHESTRA |= {"method.target": True}
OUTCOMES = ["knn_acc", "linear_acc", "linear_paper_acc", "final_loss", "collapsed"]
OUTCOMES += ["untrained_objective", "untrained_knn_acc", "untrained_linear_acc", "std_ratio"]
OUTCOMES += ["effective_rank", "unif"]
SUMS = {"loss+sep": ("loss", "sep")}
RULES = ["objective", "sep", "loss", "loss+sep", "objective+sep"]
Array = np.ndarray[Any, Any]
Frame = pd.DataFrame
Series = pd.Series


def read_rows(folder: Path) -> Frame:
    """Read one row per run with its configuration, `acc` in points and scores as `s.NAME`."""
    paths = sorted(folder.glob("*.parquet"))
    rows = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    rows = rows.sort_values("row_id", ignore_index=True).copy()
    rest = pd.json_normalize([json.loads(text or "{}") for text in rows["config_json"]])
    settings = rows.filter(regex=r"^config\.").rename(columns=lambda name: name[len("config.") :])
    settings = settings.combine_first(rest).drop(columns=["seed", "spec"])
    own = settings.filter(regex=r"^(client|method)\.")
    rows["setting"] = [row.dropna().sort_index().astype(str).to_json() for _, row in own.iterrows()]
    metrics = rows.filter(regex=r"^metric\.").rename(columns=lambda name: name[len("metric.") :])
    rows = rows.join(settings).join(metrics).copy()
    found = metrics.drop(columns=[name for name in OUTCOMES if name in metrics])
    found["sep"], found["loss"] = found["sep"].clip(-1, 1), -rows["final_loss"]
    found["objective+sep"] = found["objective"] + found["sep"]
    if "alpha_req" in found:
        found["alpha_req raw"] = found["alpha_req"]
        found["alpha_req"] = -(found["alpha_req"] - 1).abs()
    diverged = rows["status"] == "diverged"
    rows = rows.join(found.mask(diverged).fillna(-np.inf).add_prefix("s.")).copy()
    for name in ("linear_acc", "knn_acc"):  # a diverged run counts with its untrained encoder
        before = rows.groupby(["method", "seed"])[f"untrained_{name}"].transform("max")
        rows[name] = rows[name].where(~diverged, before)
        rows[f"untrained_{name}"] = rows[f"untrained_{name}"].fillna(before)
    return rows.assign(acc=100 * rows["linear_acc"], before=100 * rows["untrained_linear_acc"])


def cell(rows: Frame, method: str, changes: dict[str, Any], value: str = "acc") -> Series:
    """Return a value by seed of a method under laptop as of 2026-11, with changes."""
    wanted = STANDARD | {"client.lr": RATES.get(method.split("+")[0], 0.03)}
    wanted |= (ORCHESTRA if method == "orchestra" else {}) | changes
    keep = (rows["method"] == method) & (rows["seed"] < 100)
    for name, wish in wanted.items():
        near = name == "client.lr"  # scaled rates have many digits
        keep &= (rows[name] - wish).abs() < 1e-6 if near else rows[name] == wish
    values = rows[keep].set_index("seed")[value].sort_index()
    if values.empty or not values.index.is_unique:
        raise SystemExit(f"{method} {changes}: one row per seed is due, not {list(values.index)}")
    return values


def half(values: Any) -> float:
    """Return half of the 95 % interval of a mean."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else np.nan


def holm(p: Any) -> Array:
    """Return p values corrected by Holm."""
    values, order = np.asarray(p, dtype=float), np.argsort(p)
    out = np.empty(len(values))
    steps = values[order] * np.arange(len(values), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return out


def smallest_seen(se: float, df: float, family: int) -> float:
    """Return the difference seen with probability 0.8 at the level of Holm's first step."""
    edge = stats.t.ppf(1 - 0.025 / family, df)
    shift = optimize.brentq(lambda x: stats.nct.sf(edge, df, x) - 0.8, 0.1, edge + 6)
    return float(shift) * se


def pool(samples: Sequence[Any]) -> tuple[float, int]:
    """Return the pooled variance of groups and its degrees of freedom."""
    df = sum(len(sample) - 1 for sample in samples)
    return sum(np.var(s, ddof=1) * (len(s) - 1) for s in samples) / df, df


def unpaired(groups: dict[str, Any], pairs: Sequence[tuple[str, str]]) -> Frame:
    """Compare pairs of groups: pooled variance, or Welch's where Brown-Forsythe has p < 0.05."""
    welch = stats.levene(*groups.values(), center="median").pvalue < 0.05
    pooled, df_pooled = pool(list(groups.values()))
    lines = []
    for one, two in pairs:
        a, b = np.asarray(groups[one]), np.asarray(groups[two])
        shares = [(np.var(v, ddof=1) if welch else pooled) / len(v) for v in (a, b)]
        own = sum(s**2 / (len(v) - 1) for s, v in zip(shares, (a, b), strict=True))
        se, df = sum(shares) ** 0.5, sum(shares) ** 2 / own if welch else df_pooled
        diff = a.mean() - b.mean()
        line = {"one": one, "two": two, "mean 1": a.mean(), "mean 2": b.mean(), "n 1": len(a)}
        line |= {"n 2": len(b), "diff": diff, "half": stats.t.ppf(0.975, df) * se, "df": df}
        line |= {"p": 2 * stats.t.sf(abs(diff) / se, df), "seen": smallest_seen(se, df, len(pairs))}
        lines.append(line | {"Welch": stats.ttest_ind(a, b, equal_var=False).pvalue})
    table = Frame(lines)
    table = table.assign(holm=holm(table["p"]), Welch=holm(table["Welch"]))
    return table.assign(variance="Welch" if welch else "pooled")


def show(title: str, table: Frame) -> None:
    """Print a table under its title."""
    digits: dict[Any, Any] = {c: "{:.4f}".format for c in ("p", "holm", "Welch") if c in table}
    digits |= {c: "{:g}".format for c in table if c == "rate" or str(c).startswith("at ")}
    index = not isinstance(table.index, pd.RangeIndex)
    text = table.to_string(index=index, float_format="{:.2f}".format, formatters=digits)
    print(f"\n## {title}\n{text}")


def rank_sum(first: Array, second: Array) -> Array:
    """Return the sum of ranks along the last axis."""
    return np.asarray(stats.rankdata(first, axis=-1) + stats.rankdata(second, axis=-1))


def board_rule(method: str) -> str:
    """Return the rule by which the board chooses the rate of a method."""
    return "loss+sep" if method in COLLAPSIBLE else "loss"


def picks(table: Frame, method: str) -> dict[str, int]:
    """Return the position of the rate that each rule takes, of scores by rate."""
    values = {rule: table[f"s.{rule}"].to_numpy() for rule in RULES if rule not in SUMS}
    values["loss+sep"] = rank_sum(values["loss"], values["sep"]) + 1e-6 * values["loss"]
    values["labels"] = table["acc"].to_numpy()
    values["nearest"] = -abs(np.log(table.index.to_numpy() / RATES.get(method, 0.03)))
    taken = {rule: int(np.argmax(v)) for rule, v in values.items()}
    return taken | {"board": taken[board_rule(method)]}


def losses(table: Frame, method: str, judge: Array) -> dict[str, float]:
    """Return the regret of each rule, its scores of `table` and its accuracies of `judge`."""
    out = {rule: judge.max() - judge[pick] for rule, pick in picks(table, method).items()}
    return out | {"random": judge.max() - judge.mean()}


def scores_by_rate(runs: Frame) -> Frame:
    """Return scores and accuracies by seed and rate."""
    columns = ["acc", *(f"s.{rule}" for rule in RULES if rule not in SUMS)]
    return runs.sort_values(["seed", "client.lr"]).set_index(["seed", "client.lr"])[columns]


def board_rates(rows: Frame) -> dict[str, float]:
    """Choose the rate of each method of the board, and print the regret of every rule."""
    chosen, regrets, table = {}, {}, []
    for name, runs in rows[rows["seed"].isin([100, 101])].groupby("method"):
        method, scores = str(name), scores_by_rate(runs)
        mean, acc = scores.groupby("client.lr").mean(), scores["acc"].unstack("seed")
        taken = {f"at {rule}": mean.index[pick] for rule, pick in picks(mean, method).items()}
        chosen[method] = float(taken.pop("at board"))
        line = {"method": method, "rate": chosen[method], "n": len(runs)} | taken
        table.append(line | {"diverged": (runs["status"] != "ok").sum()})
        by_seed = {s: Frame(scores.loc[s]) for s in (100, 101)}
        ways = [losses(by_seed[s], method, acc[201 - s].to_numpy()) for s in by_seed]
        regrets[method] = Frame(ways).mean()
    show("Board: rate by the announced rule, and by others", Frame(table))
    show("Board: regret, chosen by one seed and judged by the other", with_mean(Frame(regrets).T))
    return chosen


def with_mean(table: Frame) -> Frame:
    """Return a table with a last line of its means."""
    return pd.concat([table, table.mean().to_frame("mean").T])


def at_chance(row: Any) -> bool:
    """Return whether a term of the loss ends at what no information gives."""
    terms = {"rotpred": [("loss", 4)], "simclr": [("loss", 63)], "supervised": [("loss", 10)]}
    clusters = row["method.num_global_clusters"] if row["method"] == "orchestra" else 0
    terms["orchestra"] = [("parts.clusters", clusters), ("parts.rotation", 4)]
    curve = Frame(json.loads(row["curve_json"]))
    end = curve[curve["loss"].notna()].iloc[-1]
    return any(end[term] >= 0.9 * log(size) for term, size in terms.get(row["method"], []))


def board_groups(names: list[str], groups: dict[str, Array]) -> list[list[str]]:
    """Return the board's groups: the best and what is not told from it, then of the rest alike."""
    found = []
    while names:
        first, *others = names
        pairs = unpaired(groups, [(first, other) for other in others]) if others else Frame()
        told = {*pairs["two"][pairs["holm"] < 0.05]} if others else set()
        found.append([name for name in names if name not in told])
        names = [name for name in names if name in told]
    return found


def board(rows: Frame, dataset: str) -> None:
    """Print the board of a data set: rates, means, ties, differences and the loss from skew."""
    rows = rows[(rows["preset"] == "laptop") & rows["data.test_subset"].isna()]
    rows = rows[(rows["data.name"] == dataset) & (rows["partition"] == STANDARD["partition"])]
    rows = rows[(rows["participation"] == 0.2) & (rows["local_epochs"] == 2)]
    bare, rows = rows[rows["num_rounds"] == 0], rows[rows["num_rounds"] == 12]
    if rows.empty:
        raise SystemExit(f"no rows of the board of {dataset}")
    rates = board_rates(rows)
    rows = rows[rows["seed"].isin(range(5)) & (rows["client.lr"] == rows["method"].map(rates))]
    first = bare["acc"].fillna(bare["before"])
    print(f"\nuntrained, first statistics, n = {len(first)}:", end=" ")
    print(f"{first.mean():.2f} ± {half(first):.2f}")
    kept: dict[tuple[str, float], Array] = {}
    for alpha in sorted(rows["alpha"].unique().tolist()):
        here, lines, values = rows[rows["alpha"] == alpha], [], dict[str, Array]()
        for method, runs in here.groupby("method"):
            acc, before = runs["acc"].to_numpy(), runs["before"].mean()
            values[str(method)] = acc
            line = {"method": method, "acc": acc.mean(), "half": half(acc), "n": len(acc)}
            line |= {"sd": np.std(acc, ddof=1), "before": before, "failed": acc.mean() <= before}
            chance = sum(at_chance(row) for _, row in runs.iterrows())
            lines.append(line | {"chance": chance, "seeds": runs["seed"].nunique()})
            if not line["failed"]:
                kept[str(method), alpha] = acc
        table = Frame(lines).sort_values("acc", ascending=False, ignore_index=True)
        show(f"Board {dataset}, alpha {alpha:g}", table)
        good = [str(m) for m in table[~table["failed"]]["method"]]
        pairs = unpaired({m: kept[m, alpha] for m in good}, list(combinations(good, 2)))
        groups = board_groups([*map(str, table["method"])], values)
        print("ties:", *("  " + ", ".join(group) for group in groups), sep="\n")
        show(f"Differences, alpha {alpha:g}", pairs)
    both = [m for m in rates if (m, 0.1) in kept and (m, 100.0) in kept]
    if "orchestra" in both:
        show("Loss from alpha 100 to 0.1, its excess over orchestra's", skew_loss(both, kept))
    means = rows.groupby("method")["acc"].mean().sort_values(ascending=False)
    show("Mean over alpha", means.to_frame())


def skew_loss(methods: list[str], kept: dict[tuple[str, float], Array]) -> Frame:
    """Return each method's loss from alpha 100 to 0.1 and its excess over orchestra's."""
    ends = {m: (kept[m, 100.0], kept[m, 0.1]) for m in methods}
    variance, df = pool([v for pair in ends.values() for v in pair])
    loss = {m: a.mean() - b.mean() for m, (a, b) in ends.items()}
    square = {m: variance * (1 / len(a) + 1 / len(b)) for m, (a, b) in ends.items()}
    edge, lines = stats.t.ppf(0.975, df), []
    for m in sorted(methods, key=lambda m: m == "orchestra"):
        excess, se = loss[m] - loss["orchestra"], (square[m] + square["orchestra"]) ** 0.5
        line = {"method": m, "loss": loss[m], "half": edge * square[m] ** 0.5, "excess": excess}
        line |= {"half of it": edge * se, "p": 2 * stats.t.sf(abs(excess) / se, df)}
        lines.append(line | {"seen": smallest_seen(se, df, len(methods) - 1)})
    table = Frame(lines)
    return table.assign(holm=[*holm(table["p"][:-1]), np.nan])  # the last is orchestra itself


def claims(rows: Frame) -> None:
    """Print means and unpaired differences for the claims of the papers.

    Of methods beside orchestra those with its crops, 50 to 100 %, are one family; the others'
    means stand in families of their own.
    """

    def family(title: str, groups: dict[str, Any], pairs: Sequence[tuple[str, str]]) -> None:
        show(f"Claims: {title}", unpaired(groups, pairs))

    ours = {"orchestra": cell(rows, "orchestra", {})}
    for title, others in (
        ("orchestra and others of its crops", ("simsiam", "byol")),
        ("orchestra and others of other crops", ("simclr", "spectral", "rotpred")),
    ):
        groups = ours | {m: cell(rows, m, {}) for m in others}
        family(title, groups, [("orchestra", m) for m in others])
    groups = ours | {"supervised": cell(rows, "supervised", {})}
    family("supervised", groups, [("supervised", "orchestra")])
    variants: dict[str, list[tuple[str, Any]]] = {
        "clusters": [
            *(("num_global_clusters", count) for count in (8, 128)),
            *(("num_local_clusters", count) for count in (2, 4)),
        ],
        "what is sent": [("representations", kind) for kind in ("memory", "private")],
    }
    for title, changes in variants.items():
        groups = {f"{f} {v}": cell(rows, "orchestra", {f"method.{f}": v}) for f, v in changes}
        family(title, groups | ours, [(v, "orchestra") for v in groups])
    without = ("degeneracy", "target")  # rotations, and the slow copy
    groups = {f"no {f}": cell(rows, "orchestra", {f"method.{f}": False}) for f in without}
    family("parts of orchestra", groups | ours, [(name, "orchestra") for name in groups])
    for source in ("hsu", "rotation", "joint"):
        pairs = [(f"{m}+uv", m) for m in ("spectral", "simsiam", "simclr")]
        begun = {m: cell(rows, m, {"partition": source}, "before") for p in pairs for m in p}
        groups = {m: cell(rows, m, {"partition": source}) for m in begun}
        failed = {m for m, values in groups.items() if values.mean() < begun[m].mean()}
        pairs = [pair for pair in pairs if not failed & {*pair}]
        groups = {m: groups[m] for pair in pairs for m in pair}
        family(f"uv, {source}", groups, pairs)
    for pair in (("featarc", "simclr"), ("supervised", "simclr+uv")):
        groups = {m: cell(rows, m, {"partition": "hsu"}) for m in pair}
        before = [f"{cell(rows, m, {'partition': 'hsu'}, 'before').mean():.2f}" for m in pair]
        family(f"{pair[0]}, hsu; untrained {', '.join(before)}", groups, [pair])
    pairs = [("semifed+uv", "semifed"), ("cbafed+uv", "cbafed")]
    family("uv with labels", {m: cell(rows, m, {}) for pair in pairs for m in pair}, pairs)
    for value in ("acc", "s.linear_local_acc", "s.mlp_acc", "s.mlp_local_acc"):
        scale = 1 if value == "acc" else 100
        groups = {m: scale * cell(rows, m, {}, value) for m in ("single-ae", "fedavg-ae")}
        groups["pfedae"] = scale * cell(rows, "pfedae", {"local_epochs": 1}, value)
        family(f"autoencoders, {value}", groups, [("pfedae", "single-ae"), ("pfedae", "fedavg-ae")])


Cells = dict[tuple[str, float], Frame]
ONES = np.ones((1, 24))


def cells_of(rows: Frame) -> Cells:
    """Return the runs of complete cells, method and alpha, by seed and configuration."""
    for name in ("evaluation.objective_clients", "evaluation.objective_noise"):
        rows = rows[rows[name].isna()] if name in rows else rows  # no second scorings
    rows = rows.sort_values(["seed", "setting"])
    cells = {}
    for (method, alpha), runs in rows.groupby(["method", "alpha"]):
        settings = runs["setting"].to_numpy()
        if len(runs) == 48 and all(settings[:24] == settings[24:]):
            cells[str(method), float(str(alpha))] = runs
    print("\ncomplete cells:", *cells)
    return cells


def two(runs: Frame, column: str) -> Array:
    """Return values as (2, 24), seeds by configurations."""
    return runs[column].to_numpy(dtype=float).reshape(2, 24)


def mean_score(runs: Frame, name: str) -> Array:
    """Return a score as the mean over seeds; a sum of ranks is of the means."""
    if name in SUMS:
        first, second = (two(runs, f"s.{part}").mean(0) for part in SUMS[name])
        return rank_sum(first, second)
    return np.asarray(two(runs, f"s.{name}").mean(0))


def tau(score: Array, acc: Array, counts: Array) -> Array:
    """Return Kendall's tau-b for draws (D, 24) of counts, without pairs of copies."""
    ranks = [stats.rankdata(v) for v in (score, acc)]
    s, a = (np.sign(r[:, None] - r[None, :]) for r in ranks)
    top, left, right = (((counts @ m) * counts).sum(1) for m in (s * a, s**2, a**2))
    return np.asarray(top / np.sqrt(left * right))


def regret(score: Array, acc: Array, trials: int) -> float:
    """Return the exact loss against the best when the best by score of random trials is taken."""
    n, above, mean = len(acc), 0, 0.0
    for value in sorted(set(score.tolist()), reverse=True):
        tied = acc[score == value]
        ways = comb(n - above, trials) - comb(n - above - len(tied), trials)
        mean, above = mean + tied.mean() * ways / comb(n, trials), above + len(tied)
    return float(acc.max() - mean)


def rank_regret(first: Array, second: Array, acc: Array, trials: int) -> float:
    """Return the same for a sum of two ranks among the drawn trials, by sampling."""
    every = np.tile(np.arange(len(acc)), (DRAWS, 1))
    draws = np.random.default_rng(1).permuted(every, axis=1)[:, :trials]
    sums = rank_sum(first[draws], second[draws])
    best = sums == sums.max(axis=1, keepdims=True)
    return float(acc.max() - ((acc[draws] * best).sum(axis=1) / best.sum(axis=1)).mean())


def crossed(runs: Frame, loss_of: Callable[[int, Array], float]) -> float:
    """Return the mean regret of choosing by either seed and judging by the other."""
    acc = two(runs, "acc")
    return float(np.mean([loss_of(seed, acc[1 - seed]) for seed in (0, 1)]))


def regret_of(runs: Frame, name: str, trials: int) -> float:
    """Return the regret of a score in a cell."""
    parts = [two(runs, f"s.{part}") for part in SUMS.get(name, (name,))]
    if name in SUMS:
        return crossed(runs, lambda s, acc: rank_regret(parts[0][s], parts[1][s], acc, trials))
    return crossed(runs, lambda s, acc: regret(parts[0][s], acc, trials))


def halving(runs: Frame, name: str) -> float:
    """Return the regret of successive halving: 24 trials, 6 after round 1, 1 after round 3."""
    early: list[list[float]] = [[], []]
    for text in runs["curve_json"]:
        records = [r for r in json.loads(text) if r["loss"] is not None]  # rounds with training
        for rung, index in zip(early, (0, 2), strict=True):
            record = records[index] if index < len(records) else {}
            value = record.get("loss" if name == "loss" else f"metrics.{name}")
            rung.append(-np.inf if value is None else value * (-1 if name == "loss" else 1))
    first, second = (np.array(rung).reshape(2, 24) for rung in early)

    def loss_of(seed: int, judge: Array) -> float:
        six = np.argsort(-first[seed], kind="stable")[:6]
        return float(judge.max() - judge[six[np.argmax(second[seed][six])]])

    return crossed(runs, loss_of)


def preset_regret(runs: Frame, method: str) -> float:
    """Return the regret of the preset's configuration, the one with the preset's rate."""
    rates = two(runs, "client.lr")[0]
    (chosen,) = np.flatnonzero(np.isclose(rates, RATES.get(method, 0.03)))
    return crossed(runs, lambda _, acc: float(acc.max() - acc[chosen]))


def rank_scores(title: str, cells: Cells, names: list[str]) -> tuple[Frame, Frame, Any]:
    """Print tau and regret of scores; return them, tau by cell and draws of the mean tau."""
    rng, methods = np.random.default_rng(0), sorted({m for m, _ in cells})
    counts = {m: rng.multinomial(24, [1 / 24] * 24, size=DRAWS) for m in methods}
    by_cell, draws, lines = {}, {}, []
    for name in names:
        pairs = [(mean_score(runs, name), two(runs, "acc").mean(0)) for runs in cells.values()]
        by_cell[name] = [float(tau(score, acc, ONES)[0]) for score, acc in pairs]
        drawn = [tau(*p, counts[m]) for p, (m, _) in zip(pairs, cells, strict=True)]
        draws[name] = np.mean(drawn, axis=0)
        low, high = np.percentile(draws[name], [2.5, 97.5])
        gap = np.percentile(draws[name] - draws["objective"], [2.5, 97.5])
        line = {"score": name, "tau": np.mean(by_cell[name]), "low": low, "high": high}
        line |= {"worst": min(by_cell[name]), "p": (1 + (draws[name] <= 0).sum()) / (DRAWS + 1)}
        line |= {"gap": line["tau"] - np.mean(by_cell["objective"]), "from": gap[0], "to": gap[1]}
        for b in (1, 4, 16, 24):
            line[f"b = {b}"] = np.mean([regret_of(runs, name, b) for runs in cells.values()])
        lines.append(line)
    table, split = Frame(lines), Frame(by_cell, index=[f"{m} {a:g}" for m, a in cells]).T
    show(f"{title}: tau, its gap to objective's, regret of b trials", table)
    show(f"{title}: tau by cell", split)
    return table, split, draws


def confirmation(rows: Frame) -> None:
    """Print the study of confirmation."""
    cells = cells_of(rows)
    table, by_cell, draws = rank_scores("Confirmation", cells, RULES)
    at_24, lines = table.set_index("score")["b = 24"], []
    pairs = [("loss+sep", "objective"), ("objective+sep", "objective"), ("loss", "objective")]
    for one, other in [*pairs, ("loss+sep", "loss")]:
        gaps = by_cell.loc[one].to_numpy() - by_cell.loc[other].to_numpy()
        drawn = draws[one] - draws[other]
        low, high = np.percentile(drawn, [2.5, 97.5])
        line = {"first": one, "second": other, "diff": gaps.mean(), "low": low, "high": high}
        line |= {"over methods": half(gaps), "above 0": (gaps > 0).sum()}
        line |= {"less": at_24[one] <= at_24[other], "p": (1 + (drawn <= 0).sum()) / (DRAWS + 1)}
        lines.append(line)
    tests = Frame(lines)
    tests["holm"] = holm(tests["p"])
    good = (tests["holm"] < 0.05) & (tests["above 0"] >= 3) & tests["less"]
    refuted = np.where(tests["high"] < 0, "refuted", "not confirmed")
    show("Confirmation: hypotheses", tests.assign(verdict=np.where(good, "confirmed", refuted)))
    regrets = {}
    for (m, _), runs in cells.items():
        line = {"preset": preset_regret(runs, m), "board": regret_of(runs, board_rule(m), 24)}
        line |= {name: regret_of(runs, name, 24) for name in RULES}
        line |= {"random": regret_of(runs, "loss", 1), "halving by loss": halving(runs, "loss")}
        regrets[m] = line | {"4 random by loss": regret_of(runs, "loss", 4)}
    show("Confirmation: regret of 24 trials, of halving and of 4", with_mean(Frame(regrets).T))


def main() -> None:
    """Print the studies, or the board of another data set."""
    parser = argparse.ArgumentParser(description="recompute the studies from their rows")
    parser.add_argument("--dataset", default="cifar10", help="data set of the board")
    dataset = parser.parse_args().dataset
    pd.set_option("display.width", 250, "display.max_columns", 40, "display.max_rows", 200)
    rows = read_rows(BOARDS / "results" / "packed")
    board(rows, dataset)
    if dataset != "cifar10":
        return
    claims(rows)
    confirmation(read_rows(BOARDS / "confirmation" / "packed"))


if __name__ == "__main__":
    main()
