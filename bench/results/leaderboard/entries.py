"""Entries of a leaderboard: one training configuration over its seeds, ranked within its class.

A configuration may have several rows of one seed: runs that were measured again, and replicas from
other machines. For each metric the row counts that has it and finished first. A configuration has
one name in all classes of a board. Where no class has two entries of a method, the method is the
name: values that were tuned for each class are one entry over them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypedDict, Unpack

import pandas as pd

from fedbench.bench.config.dotted import last_names
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.evaluation.shrinkage import FIGURES, shrinkage
from fedbench.bench.results.chance import NO_MARKS, Marks
from fedbench.bench.results.leaderboard.comparability import (
    as_text,
    class_id,
    differing,
    measured_alike,
    metric_values,
)
from fedbench.bench.results.leaderboard.curves import CURVE_METRICS, Curve, longest, over_rounds
from fedbench.bench.results.leaderboard.data_names import is_on
from fedbench.bench.results.leaderboard.published import PUBLISHED, published_number
from fedbench.bench.results.leaderboard.statistics import mean, rounded, summarize
from fedbench.bench.results.store.frame import lines, plain
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import KEYS, hyperparameters
from fedbench.bench.system.identity import canonical_json, content_id

COLUMNS = {
    "rank": "1 is best, ties share a rank; null if not ranked: nothing measured, or oracle",
    "method": "method spec",
    "variant": "hyperparameters in which entries of its method differ, where a class has several",
    "config_id": "identity of the training configuration",
    "metric": "ranked by",
    "mean": "of the metric over seeds",
    "std": "likewise; needs 2 seeds",
    "ci95_low": "95 % t-interval of the mean; needs 3 seeds",
    "ci95_high": "likewise",
    "n_seeds": "seeds that measured the metric",
    "seeds": "these seeds",
    "values": "the metric of each",
    "run_ids": "the runs that those values are from; `fedbench export` takes one",
    "objective_mean": "mean of runs that measured it as most entries of the class did",
    "knn_acc_mean": "likewise",
    "linear_acc_mean": "likewise",
    "local_acc_mean": "the probe on clients' own test images, mean over clients",
    "local_acc_std": "standard deviation over clients, mean over seeds",
    "untrained_mean": "of the metric before training",
    "gain": "mean of trained - untrained",
    "mb_up_down": "both directions of one run [1e6 B]",
    "minutes": "wall time of one run on the device that most runs of the class had",
    "collapsed": "whether the encoder of a run has collapsed",
    "contracted": "whether projections have lost half of their spread before training",
    "unmoved": "whether a run that was to train has moved no weight",
    "at_chance": "terms of the loss that ended at chance, see `bench.results.chance`",
    "num_at_chance": "such runs",
    "minimises_objective": "whether the method's loss is the objective that chooses settings",
    "num_diverged": "runs that diverged; an entry with any ranks last",
    "num_failed": "runs that failed",
    "tuned": "whether hyperparameters come from a study",
    "selection": "how they were chosen",
    "preset": "that the first run started from",
    "published": "the published number of the same setting",
    "difference": "mean - published number",
    "class_id": "identity of the comparability class",
    "settings_id": "the same for equal hyperparameters, whatever the class",
    "tune_runs": "runs of the study that they come from; null if untuned or not known",
    "tuned_on": "data set of that study if it is another one",
    "best": "the first of its class, or not told from it by a t-test; null with fewer than 3 seeds",
    "p_best": "p-value of that test, adjusted",
    "detectable": "smallest difference to the first that the test finds with probability 0.8",
    "ties": "letter of a group whose entries are not told from its first",
    "area": "mean k-NN accuracy over the rounds; needs curves, as do the next three",
    "rounds_to_reach": "first evaluated round with the accuracy asked for, mean over seeds",
    "gb_to_reach": "the same in bytes of both directions [1e9 B]",
    "num_reached": "seeds that got there; the two means are null unless all did",
    "mb_up": "part of mb_up_down",
    "mb_down": "likewise",
    "per_gb": "the metric over bytes in both directions [1 / 1e9 B]",
    "epsilon": "differential privacy, the largest over seeds; null unless every run has it",
    "epsilon_of": "what it protects",
    "revealing_messages": "messages that hold something of a single image, the most of any seed",
    "num_replicas": "further runs of these seeds that got another value, as on another machine",
    "replica_spread": "largest minus smallest value of one seed, the most of any seed",
    "label": "name in tables and charts",
    "standing": "place beside the first of its class, see `separation.STANDINGS`",
}
"""Columns of the machine formats, in their order, before those of the class."""


Usual = Mapping[str, tuple[str, ...]]
"""By method, the values that most of its configurations share and its labels leave out."""


class Spent(NamedTuple):
    """Cost of a tuning study: the number of its runs, and name and revision of its data set."""

    runs: int
    dataset: str
    revision: str = ""


class Beside(TypedDict, total=False):
    """What is known of runs beside their rows."""

    published: bool  # look up the published numbers; the default
    studies: Mapping[str, Spent]  # by study id
    curves: Mapping[str, Curve] | None  # by row id
    reach: float | None  # k-NN accuracy in [0, 1] to look for in the curves
    marks: Mapping[str, Marks]  # by row id
    reproduced: Mapping[str, int] | None  # people, by row id; None = the store has no reproductions


@dataclass(frozen=True, eq=False)
class Group:
    """Entries of one comparability class, best first.

    The frame has `COLUMNS`, `hyperparameters`, `joined_by` (entries of a method that have it in
    common are one over the classes), `curve_ids` (the runs of the seeds whose curves have the most
    evaluations) and `reproduced` (people who reproduced its runs, of the run with the fewest).
    """

    title: str  # names what sets the class apart
    keys: Mapping[str, Any]  # of the class
    frame: pd.DataFrame  # None = undefined
    note: str  # what the seeds of the class can show
    unscaled: Mapping[str, Any] = field(default_factory=dict)  # keys as before a grid's rules

    @cached_property
    def entries(self) -> tuple[Any, ...]:
        """The rows of the frame, with columns as attributes."""
        return tuple(self.frame.itertuples(index=False, name="Entry"))

    @property
    def class_id(self) -> str:
        """Identity of the comparability class."""
        return class_id(self.keys)

    def records(self) -> list[dict[str, Any]]:
        """Return plain values for JSON: `COLUMNS`, columns of the class, and the title."""
        lists = ("seeds", "values", "at_chance")
        names = [*COLUMNS, *(["reproduced"] if self.frame.reproduced.notna().any() else [])]
        of_class = {**{key: self.keys[key] for key in KEYS}, "group": self.title}
        return [
            record
            | {name: [*record[name]] for name in lists}
            | {"published": (p := record["published"]) and {k: getattr(p, k) for k in PUBLISHED}}
            | of_class
            for record in self.frame[names].to_dict("records")
        ]


def entries(rows: pd.DataFrame, metric: str, **beside: Unpack[Beside]) -> pd.DataFrame:
    """Return the entries of all classes of rows, by a metric; they are not named and ranked yet."""
    by, start = ["class_id", "config_id"], f"untrained_{metric}"
    local = metric.removesuffix("_acc").removesuffix("_local") + "_local_acc"
    rows = rows.sort_values([*by, "seed", "finished_at", "row_id", "replica"], ignore_index=True)
    rows["at"] = rows.groupby(by).ngroup()
    rows["slot"] = rows.groupby([*by, "seed"]).ngroup()
    rows["value"] = metric_values(rows, metric)
    marks, studies = beside.get("marks", {}), beside.get("studies", {})
    first = rows.drop_duplicates("at").set_index("at")
    texts = ["task", "evaluation", "hyperparameters"]  # long; only `rows` and `first` are asked
    texts += [name for name in Row.model_fields if name.endswith("_json")]
    ended = rows.drop(columns=texts)[rows.status != "error"]
    ends = ended.drop_duplicates("slot")
    # Seeds that did not fail or diverge; of each the row of the metric, or one that lacks it.
    ok = ended[(ended.status == "ok") & ended.slot.isin(ends.slot[ends.status == "ok"])]
    measured = ok[ok.value.notna()].drop_duplicates("slot")
    done = pd.concat([measured, ok]).drop_duplicates("slot").sort_index()

    def by_entry(of: pd.DataFrame, values: pd.Series[Any]) -> dict[int, list[Any]]:
        """Return the values of some rows, without missing ones: quicker than `Series.agg`."""
        found: dict[int, list[Any]] = defaultdict(list)
        there = values.dropna()
        for at, value in zip(of["at"][there.index].tolist(), there.tolist(), strict=True):
            found[at].append(value)
        return found

    def mean_of(of: pd.DataFrame, values: pd.Series[float]) -> pd.Series[float]:
        """Return exactly rounded means by entry: those of pandas depend on the order of rows."""
        means = {at: mean(each) for at, each in by_entry(of, values).items()}
        return pd.Series(means, dtype="float64")

    def mean_alike(name: str, settings_of: str | None = None) -> pd.Series[float]:
        """Return means of a metric over rows that measured it as most of their class did."""
        if name == metric:
            return mean_of(measured, measured.value)
        values = metric_values(ok[measured_alike(rows, settings_of or name)[ok.index]], name)
        once = ok.loc[values.dropna().index].drop_duplicates("slot")
        return mean_of(once, values[once.index])

    def lists(of: pd.DataFrame, column: str) -> list[tuple[Any, ...]]:
        """Return the values of a column by entry."""
        found = by_entry(of, of[column])
        return [tuple(found.get(at, ())) for at in first.index]

    def count(of: pd.DataFrame) -> pd.Series[int]:
        return of["at"].value_counts().reindex(first.index, fill_value=0)

    found = first[["method", "selection", "preset", "class_id", "config_id"]].assign(metric=metric)
    found["seeds"], found["values"] = lists(measured, "seed"), lists(measured, "value")
    found["run_ids"] = lists(measured, "row_id")
    summaries = [summarize(values) for values in found["values"]]
    for name in ("mean", "std", "ci95_low", "ci95_high"):
        found[name] = [getattr(summary, name) for summary in summaries]
    found["n_seeds"] = found.seeds.map(len)
    for name in ("objective", "knn_acc", "linear_acc"):
        found[f"{name}_mean"] = mean_alike(name)
    accuracy = is_accuracy(metric)
    found["local_acc_mean"] = mean_alike(local) if accuracy else None
    found["local_acc_std"] = mean_alike(f"{local}_std", local) if accuracy else None

    before = pd.concat([measured, ok[ok.slot.isin(measured.slot)]])
    # Nothing is gained without training; the two measurements may differ in batch statistics.
    before = before[metric_values(before, start).notna() & (before.num_rounds > 0)]
    before = before.drop_duplicates("slot")
    found["untrained_mean"] = mean_of(before, metric_values(before, start))
    after = before.slot.map(measured.set_index("slot").value)
    found["gain"] = mean_of(before, after - metric_values(before, start))

    costs = {"mb_up": done.bytes_up / 1e6, "mb_down": done.bytes_down / 1e6}
    costs["mb_up_down"] = (done.bytes_up + done.bytes_down) / 1e6
    # Minutes on a GPU would make a method look faster than another that ran on a CPU.
    device = done.device.fillna("").str.partition(":")[0]
    usual = device.groupby(done.class_id).agg(lambda each: each.mode()[0])
    seconds = done.wall_seconds + done.train_seconds.where(done.measured_from.notna(), 0.0)
    costs["minutes"] = (seconds / 60)[device == done.class_id.map(usual)]
    moved = (done.bytes_up.fillna(0) + done.bytes_down.fillna(0)) / 1e9
    costs["per_gb"] = (done["at"].map(found["mean"]) / moved)[moved > 0]
    for name, cost in costs.items():
        found[name] = mean_of(done, cost)

    flags: dict[str, Any] = {
        "collapsed": metric_values(done, "collapsed") > 0,
        "contracted": _shrunk(done),
        "unmoved": done.unmoved,
    }
    for name, flag in flags.items():
        found[name] = found.index.isin(done["at"][flag])
    found["tuned"] = rows.tuned.groupby(rows["at"]).any()
    found["num_diverged"] = count(ends[ends.status == "diverged"])
    found["num_failed"] = count(rows.drop_duplicates("slot")) - count(ends)
    marked = [[marks.get(i, NO_MARKS) for i in ids] for ids in lists(done, "row_id")]
    found["at_chance"] = [
        tuple(dict.fromkeys(term for mark in each for term in mark.at_chance)) for each in marked
    ]
    found["num_at_chance"] = [sum(bool(mark.at_chance) for mark in each) for each in marked]
    found["minimises_objective"] = [any(m.minimises_objective for m in each) for each in marked]

    private = done.groupby("at").epsilon.agg(["size", "count", "max"])
    found["epsilon"] = private["max"][private["size"] == private["count"]]
    found["epsilon_of"] = done.drop_duplicates("at").set_index("at").epsilon_of
    found.loc[found.epsilon.isna(), "epsilon_of"] = None
    found["revealing_messages"] = done.revealing_messages.fillna(0).groupby(done["at"]).max()
    copies = ok.groupby(["at", "slot"]).value.agg(["nunique", "min", "max"])
    copies = copies[copies["nunique"] > 1]
    found["num_replicas"] = (copies["nunique"] - 1).groupby("at").sum()
    found["num_replicas"] = found.num_replicas.fillna(0).astype(int)
    found["replica_spread"] = (copies["max"] - copies["min"]).groupby("at").max()

    published = beside.get("published", True)
    found["published"] = [*_published(rows, metric)] if published else None
    known = {at: p.value for at, p in found.published.items() if p is not None}
    found["difference"] = found["mean"] - found.index.to_series().map(known)
    found["tune_runs"], found["tuned_on"] = zip(*_studies(rows, first, studies), strict=True)
    settings = first.hyperparameters.copy()
    same = settings.isin(settings[first.duplicated(["class_id", "hyperparameters"])])
    as_run = lines(first.loc[same, ["config_json"]].assign(scaled_json=None))
    settings[same] = [canonical_json(hyperparameters(row)) for row in as_run]  # else equal labels
    found["hyperparameters"] = [*map(json.loads, settings)]
    found["settings_id"] = [*map(content_id, found.hyperparameters)]
    found["reproduced"] = None
    if (reproduced := beside.get("reproduced")) is not None:
        found["reproduced"] = [
            min((reproduced.get(i, 0) for i in ids), default=0) for ids in found.run_ids
        ]
    curves = beside.get("curves") or {}
    chosen = [*_with_curves(rows, ok, metric, curves)] if curves else []
    found["curve_ids"] = lists(rows.loc[chosen], "row_id")
    reached = ["area", "rounds_to_reach", "gb_to_reach", "num_reached"]
    found[reached] = None
    for _, members in found.groupby("class_id") if curves else ():
        of_class = [[curves[i] for i in ids] for ids in members.curve_ids]
        found.loc[members.index, reached] = over_rounds(of_class, beside.get("reach"))
    for name in ("revealing_messages", "tune_runs", "num_reached"):
        found[name] = found[name].astype("Int64")
    return plain(found)


def _shrunk(rows: pd.DataFrame) -> list[bool]:
    figures = rows.reindex(columns=[*FIGURES, *(f"untrained_{name}" for name in FIGURES)])
    records: Any = plain(figures).to_dict("records")
    before = [{name: each[f"untrained_{name}"] for name in FIGURES} for each in records]
    each = zip(rows.num_rounds, records, before, strict=True)
    return [bool(rounds and shrinkage(*pair)) for rounds, *pair in each]


def _published(rows: pd.DataFrame, metric: str) -> Iterator[Any]:
    """Yield the published number of each entry, or None.

    Runs that have not measured the metric may differ in what decides its meaning.
    """
    rows = rows.assign(without=(rows.status != "ok") | rows.value.isna())
    picked = rows.sort_values(["at", "without"], kind="stable").drop_duplicates("at")
    for row in lines(picked[["method", "dataset", "config_json"]]):
        yield published_number(row, metric)


def _studies(
    rows: pd.DataFrame, first: pd.DataFrame, studies: Mapping[str, Spent]
) -> Iterator[tuple[int | None, str | None]]:
    """Yield for each entry the runs of its study, and the study's data set if it is another."""
    known = rows[rows.study_id.isin([*studies])].drop_duplicates("at").set_index("at").study_id
    read = lines(first[["dataset", "dataset_revision", "config_json"]])
    for at, row in zip(first.index, read, strict=True):
        study = studies.get(known.get(at, ""))
        if study is None:
            yield None, None
        else:
            same = study.revision == row.dataset_revision or is_on(row, study.dataset)
            yield study.runs, None if same else study.dataset


def _with_curves(
    rows: pd.DataFrame, ok: pd.DataFrame, metric: str, curves: Mapping[str, Curve]
) -> Iterator[int]:
    """Yield of each seed the row with the longest curve that is measured as those of the class."""
    alike = ok.row_id.isin([*curves])
    for name in CURVE_METRICS:
        if name != metric:
            alike &= measured_alike(rows, name)[ok.index] | metric_values(ok, name).isna()
    for _, members in ok[alike].groupby("slot"):
        yield max(members.index, key=lambda i: longest(curves[members.row_id[i]]))


def ranked(found: pd.DataFrame) -> pd.DataFrame:
    """Return entries best first in their class: diverged ones behind others, unranked ones last."""
    better = needed(found.metric.iloc[0]).score
    none = found["mean"].isna()
    keys = found[["class_id", "method", "variant", "config_id"]].assign(
        of=found.class_id.map({key: i for i, key in enumerate(found.class_id.unique())}),
        uncounted=(found.selection == "oracle") | (none & (found.num_diverged == 0)),
        diverged=found.num_diverged > 0,
        none=none,
        place=[0.0 if v is None else -rounded(better(v)) for v in found["mean"]],
    )
    place = ["of", "uncounted", "diverged", "none", "place"]
    keys = keys.sort_values([*place, "method", "variant", "config_id"])
    keys["position"] = keys.groupby("of").cumcount() + 1
    ranks = keys.groupby(place).position.transform("min").astype(object)
    found = found.loc[keys.index].copy()
    found["rank"] = ranks.where(~keys.uncounted, None)
    return found


# Names


def labelled(entries: pd.DataFrame) -> tuple[pd.DataFrame, Usual]:
    """Return the entries of all classes with their names, and what labels leave out.

    A label has, by its last name, each hyperparameter in which configurations of the method
    differ, but for a value that more than half of them share; `variant` has all. `joined_by` is
    what entries of a method have in common that are one over the classes.
    """
    counts = entries.groupby(["class_id", "method"]).size()
    several = {*counts[counts > 1].index.get_level_values("method")}
    found = entries.assign(variant="", label=entries.method, joined_by="")
    usual: dict[str, tuple[str, ...]] = {}
    for method in sorted(several):
        of = found[found.method == method]
        parts, left_out = _parts(dict(zip(of.settings_id, of.hyperparameters, strict=True)))
        whole, part = zip(*map(parts.__getitem__, of.settings_id), strict=True)
        found.loc[of.index, "variant"] = whole
        found.loc[of.index, "label"] = [f"{method} ({each})" if each else method for each in part]
        found.loc[of.index, "joined_by"] = of.settings_id
        if left_out:
            usual[method] = left_out
    return found, usual


def _parts(
    configs: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Return all that configurations differ in, what tells each apart, and what most share."""
    names = differing(configs.values())
    last = last_names(names)
    shared: dict[str, str] = {}  # name -> value as JSON
    for name in names:
        values = Counter(canonical_json(config.get(name)) for config in configs.values())
        value, number = values.most_common(1)[0]
        if number > len(configs) / 2:
            shared[name] = value
    parts = {
        identity: (
            ", ".join(f"{name}={as_text(config.get(name))}" for name in names),
            ", ".join(
                f"{last[name]}={as_text(config.get(name))}"
                for name in names
                if canonical_json(config.get(name)) != shared.get(name)
            ),
        )
        for identity, config in configs.items()
    }
    usual = (
        f"{last[name]}={as_text(config.get(name))}"
        for name, value in shared.items()
        for config in configs.values()
        if canonical_json(config.get(name)) == value
    )
    return parts, tuple(dict.fromkeys(usual))
