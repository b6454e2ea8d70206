"""The rows of a board by line and seed: which of several runs of one seed counts, and for what.

A line is a training configuration within a comparability class. It may have several rows of one
seed: runs that were measured again, and replicas from other machines. For each metric the row
counts that has it and, of those, finished first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import pandas as pd

from fedbench.bench.results.chance import NO_MARKS, Marks
from fedbench.bench.results.leaderboard.comparability import measured_alike, metric_values
from fedbench.bench.results.leaderboard.curves import (
    CURVE_METRICS,
    Curve,
    Reached,
    longest,
    over_rounds,
)
from fedbench.bench.results.leaderboard.data_names import dataset_name, known_name
from fedbench.bench.results.leaderboard.published import published_number
from fedbench.bench.results.leaderboard.statistics import mean, summarize
from fedbench.bench.results.store.frame import lines
from fedbench.bench.results.store.schema import CONFIG, PLATFORM
from fedbench.bench.results.store.settings import hyperparameters
from fedbench.bench.system.identity import canonical_json

_BY = ["class_id", "config_id"]


class Spent(NamedTuple):
    """Cost of a tuning study: the number of its runs, and name and revision of its data set."""

    runs: int
    dataset: str
    revision: str = ""


class Beside(TypedDict, total=False):
    """What is known of runs beside their rows."""

    published: bool  # look up the published numbers; the default
    studies: Mapping[str, Spent]  # by study id
    curves: Mapping[str, Curve]  # by row id
    reach: float | None  # k-NN accuracy in [0, 1] to look for in the curves
    marks: Mapping[str, Marks]  # by row id


class Seeds:
    """Rows of a board by line and seed.

    Lists of values have one for each line. Parts of `rows` that count for something keep its index.

    Args:
        frame: rows of `Store.frame`, with the `class_id` of each.
        metric: by which the board ranks.
        beside: what else is known of the runs.

    Attributes:
        rows: all rows without their settings, sorted, with their line in `at`, their seed's number
            in `slot`, and the metric in `value`.
        first: the first row of each line.
        ends: how each seed ended: its first run that did not fail.
        ok: the finished runs of the seeds that did not diverge.
        measured: of each seed the first run that measured the metric.
        done: of each seed that run, or a finished one that lacks the metric.
    """

    def __init__(self, frame: pd.DataFrame, metric: str, beside: Beside) -> None:
        self.metric, self.beside, self.curves = metric, beside, beside.get("curves", {})
        # Every selection copies all columns: without these 10,000 rows rank three times as fast.
        rows = frame[[name for name in frame.columns if not name.startswith((CONFIG, PLATFORM))]]
        order = [*_BY, "seed", "finished_at", "row_id", "replica"]
        rows = rows.sort_values(order, ignore_index=True)
        self.rows = rows.assign(
            at=rows.groupby(_BY).ngroup(),
            slot=rows.groupby([*_BY, "seed"]).ngroup(),
            value=metric_values(rows, metric),
        )
        ended = self.rows[self.rows.status != "error"]
        self.ends = ended.drop_duplicates("slot")
        whole = self.ends.slot[self.ends.status == "ok"]
        self.ok = ended[(ended.status == "ok") & ended.slot.isin(whole)]
        self.measured = self.ok[self.ok.value.notna()].drop_duplicates("slot")
        self.done = pd.concat([self.measured, self.ok]).drop_duplicates("slot").sort_index()
        self.first = self.rows.drop_duplicates("at")

    # Values of each line

    def lists(self, values: pd.Series[Any]) -> list[tuple[Any, ...]]:
        """Return the values of some rows, without missing ones, for each line."""
        found = values.dropna().groupby(self.rows["at"]).agg(tuple)
        return [found.get(at, ()) for at in self.first["at"]]

    def means(self, values: pd.Series[float]) -> list[float | None]:
        """Return means of the values of some rows, exactly rounded: in any order of the rows."""
        return [mean(each) for each in self.lists(values)]

    def counts(self, rows: pd.DataFrame) -> list[int]:
        """Return how many of some rows each line has."""
        number = rows["at"].value_counts().reindex(self.first["at"], fill_value=0)
        return list(number.tolist())

    def any(self, holds: pd.Series[bool]) -> list[bool]:
        """Return for each line whether something holds for any of some rows."""
        found = {*self.rows["at"][holds[holds].index]}
        return [at in found for at in self.first["at"]]

    def most(self, values: pd.Series[float]) -> pd.Series[float]:
        """Return the greatest value of some rows for each line."""
        return values.groupby(self.rows["at"]).max().reindex(self.first["at"])

    def means_alike(self, name: str, settings_of: str | None = None) -> list[float | None]:
        """Return means of a metric over rows that measured it as most of their class did.

        `settings_of` is the metric whose settings count, if it is another.
        """
        if name == self.metric:
            return self.means(self.measured.value)
        alike = measured_alike(self.rows, settings_of or name)
        values = metric_values(self.ok[alike[self.ok.index]], name).dropna()
        return self.means(values[~self.rows.slot[values.index].duplicated()])

    @cached_property
    def table(self) -> pd.DataFrame:
        """The first row of each line, its `Summary`, study, replicas, and what its curves reach."""
        summaries = pd.DataFrame(map(summarize, self.lists(self.measured.value)), dtype=object)
        parts = [summaries.set_axis(self.first.index), self._replicas()]
        found = pd.concat([*parts, self._studies(), self._over_rounds()], axis="columns")
        first = self.first.drop(columns=found.columns, errors="ignore")  # a metric called `mean`
        return pd.concat([first, found], axis="columns")

    @cached_property
    def start(self) -> pd.Series[float]:
        """The metric before training of each seed that measured it, by row.

        Nothing is gained without training. Trained and untrained values of a seed may be from two
        rows, whose statistics of batches differ.
        """
        again = self.ok[self.ok.slot.isin(self.measured.slot)]
        rows = pd.concat([self.measured, again.drop(self.measured.index)])
        found = metric_values(rows, f"untrained_{self.metric}")
        values = found[rows.num_rounds > 0].dropna()
        return values[~rows.slot[values.index].duplicated()]

    @property
    def gain(self) -> pd.Series[float]:
        """The metric minus that before training, by row."""
        values = self.measured.set_index("slot").value
        after: pd.Series[float] = self.rows.slot[self.start.index].map(values)
        return after - self.start

    @property
    def minutes(self) -> pd.Series[float]:
        """Wall time on the kind of device that most runs of a class had.

        Minutes on a GPU would make a method look faster than another that ran on a CPU.
        """
        done = self.done.assign(device=self.done.device.fillna("").str.split(":").str[0])
        usual = done.groupby("class_id").device.agg(lambda devices: devices.mode()[0])
        trained = done.train_seconds.where(done.measured_from.notna(), 0.0)  # by another run
        minutes: pd.Series[float] = (done.wall_seconds + trained) / 60
        return minutes[done.device == done.class_id.map(usual)]

    # What stands beside rows

    @cached_property
    def marks(self) -> list[list[Marks]]:
        """Marks of the runs of each line."""
        known = self.beside.get("marks", {})
        return [[known.get(i, NO_MARKS) for i in ids] for ids in self.lists(self.done.row_id)]

    @cached_property
    def published(self) -> list[Any]:
        """The published number of each line, or None.

        Runs that have not measured the metric may differ in what decides its meaning.
        """
        if not self.beside.get("published", True):
            return [None] * len(self.first)
        without = (self.rows.status != "ok") | self.rows.value.isna()
        order = self.rows.assign(without=without).sort_values(["at", "without"], kind="stable")
        names = ["method", "dataset", "config_json", "benchmark_version"]
        picked = lines(order.drop_duplicates("at")[names])
        return [published_number(row, self.metric) for row in picked]

    def _replicas(self) -> pd.DataFrame:
        """Return the number of further values of the seeds of each line, and the largest spread."""
        copies = self.ok.groupby(["at", "slot"]).value.agg(["nunique", "min", "max"])
        copies = copies[copies["nunique"] > 1]
        copies["num_replicas"] = copies["nunique"] - 1
        copies["replica_spread"] = copies["max"] - copies["min"]
        of_line = copies.groupby("at").agg({"num_replicas": "sum", "replica_spread": "max"})
        found = of_line.reindex(self.first["at"]).set_axis(self.first.index)
        return found.fillna({"num_replicas": 0}).astype({"num_replicas": int})

    def _studies(self) -> pd.DataFrame:
        """Return the runs of the study of each line, and its data set if it is another one."""
        known = self.beside.get("studies", {})
        found = pd.DataFrame(None, self.first.index, ["tune_runs", "tuned_on"], dtype=object)
        of = self.rows[self.rows.study_id.isin([*known])].drop_duplicates("at")
        for row in lines(of[["at", "study_id", "dataset", "dataset_revision"]]):
            study = known[row.study_id]
            same = study.revision == row.dataset_revision or (
                ":" not in study.dataset and known_name(row.dataset) == dataset_name(study.dataset)
            )
            found.iloc[row.at] = study.runs, None if same else study.dataset
        return found

    @cached_property
    def settings(self) -> list[str]:
        """The hyperparameters of each line as canonical JSON.

        They are those before a grid's rules scaled any, unless two lines of a class would then be
        one.
        """
        found: pd.Series[str] = self.first.hyperparameters.astype(object)
        same = found.isin(found[self.first.duplicated(["class_id", "hyperparameters"])])
        as_run = self.first.config_json[same].map(
            lambda text: canonical_json(hyperparameters(json.loads(text)))
        )
        return found.where(~same, as_run).tolist()

    @cached_property
    def curve_ids(self) -> list[tuple[str, ...]]:
        """Runs of each line, one a seed: the longest curve that is measured as those of the class.

        Empty where no curves are known.
        """
        alike = self.ok.row_id.isin([*self.curves])
        for name in CURVE_METRICS if self.curves else ():
            if name != self.metric:  # in which the rows of a class are alike
                of_class = measured_alike(self.rows, name)[self.ok.index]
                alike &= of_class | metric_values(self.ok, name).isna()
        chosen = [
            max(members.index, key=lambda i: longest(self.curves[members.row_id[i]]))
            for _, members in self.ok[alike].groupby("slot")
        ]
        return self.lists(self.rows.row_id[chosen])

    def _over_rounds(self) -> pd.DataFrame:
        """Return area, rounds, gigabytes and hours to an accuracy, and seeds that got there."""
        found = pd.DataFrame(None, self.first.index, Reached._fields, dtype=object)
        of_line = pd.Series(self.curve_ids, self.first.index, dtype=object)
        for _, members in of_line.groupby(self.first.class_id) if self.curves else ():
            of_class = [[self.curves[i] for i in ids] for ids in members]
            found.loc[members.index] = over_rounds(of_class, self.beside.get("reach"))
        return found
