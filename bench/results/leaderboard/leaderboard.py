"""Rows to ranks: one table per comparability class, one entry per training configuration.

Only rows of one class are ranked together: same data and revision, same partition, same budget,
same encoder, same probe. The differences between classes become the titles of their tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack

import pandas as pd

from fedbench.bench.results.leaderboard.across_cells import CellComparison, compare_cells
from fedbench.bench.results.leaderboard.columns import Column, columns_named
from fedbench.bench.results.leaderboard.comparability import (
    classes,
    measured_metrics,
    order,
    titles,
    unlike_preset,
    unscaled_keys,
)
from fedbench.bench.results.leaderboard.data_names import dataset_name, named_by_content, on_dataset
from fedbench.bench.results.leaderboard.entries import Group, entries, labelled, ranked
from fedbench.bench.results.leaderboard.seeds import Beside
from fedbench.bench.results.leaderboard.separation import tested
from fedbench.bench.results.store.row import FINAL_METRICS
from fedbench.bench.system.errors import UnknownNameError


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """All groups, ranked by one metric."""

    metric: str
    groups: tuple[Group, ...]
    reach: float | None  # k-NN accuracy that curves were asked for
    columns: tuple[Column, ...]  # of tables and records; () = all
    over: str | None = None  # the axis of its only tables; None = all tables, also of groups

    @property
    def entries(self) -> tuple[Any, ...]:
        """All entries in the order of groups and ranks."""
        return tuple(entry for group in self.groups for entry in group.entries)

    @cached_property
    def across(self) -> tuple[CellComparison, ...]:
        """The methods compared over the groups: mean ranks, worst values, slopes."""
        every = compare_cells(self.groups, self.metric)
        return tuple(each for each in every if self.over in (None, each.axis))

    def along(self, axis: str) -> Leaderboard:
        """Return the comparisons over an axis, with the groups that they are of."""
        ids = {i for each in self.across if each.axis == axis for i in each.class_ids}
        groups = tuple(group for group in self.groups if group.class_id in ids)
        return replace(self, groups=groups, over=axis)

    def to_dict(self) -> dict[str, Any]:
        """Part of the output of `--json`: numbers unrounded, accuracies in [0, 1].

        Beside chosen columns stands what tells lines apart: the group, and the label in it.
        """
        rows = [record for group in self.groups for record in group.records()]
        if self.columns:
            names = dict.fromkeys(["group", "label", *(column.name for column in self.columns)])
            rows = [{name: record[name] for name in names} for record in rows]
        return {"metric": self.metric, "rows": rows}


def leaderboard(
    frame: pd.DataFrame,
    *,
    metric: str = "linear_acc",
    min_seeds: int = 1,
    columns: Collection[str] | None = None,
    **beside: Unpack[Beside],
) -> Leaderboard:
    """Rank the rows of `Store.frame` within their comparability class, whatever their order.

    The metric is a column of the frame, or a short name such as `knn`; entries with
    fewer than `min_seeds` seeds that measured it or diverged are left out.

    Raises:
        UnknownNameError: a metric that is no column and in no row, or an unknown column.
    """
    rows = named_by_content(frame)
    metric, reach = _checked_metric(metric, rows), beside.get("reach")
    chosen = () if columns is None else columns_named(columns, metric)
    if rows.empty:
        return Leaderboard(metric, (), reach, chosen)
    ids, keys = classes(rows, metric)
    rows = rows.assign(class_id=ids)
    # No more columns than titles need: each is split by class.
    asked = ["class_id", "preset", "method", "config_json", "scaled_json"]
    of_class = dict(iter(rows[asked].groupby("class_id")))
    presets = {i: of_class[i].preset.unique().tolist() for i in keys}
    title_of = titles(keys, presets, {i: unlike_preset(of_class[i], keys[i]) for i in keys})
    found = labelled(entries(rows, metric, **beside))
    # By default lines are shown whose runs all failed, or none of which has measured the metric.
    found = found[found.n_seeds + found.num_diverged >= (min_seeds if min_seeds > 1 else 0)]
    groups = []
    for key, members in ranked(found).groupby("class_id") if len(found) else ():
        i, (table, note) = str(key), tested(members)
        unscaled = unscaled_keys(of_class[i], keys[i])
        groups.append(Group(title_of[i], keys[i], table, note, unscaled))
    groups.sort(key=lambda group: order(group.keys))
    return Leaderboard(metric, tuple(groups), reach, chosen)


def _checked_metric(metric: str, rows: pd.DataFrame) -> str:
    known = {*FINAL_METRICS, *measured_metrics(rows)}
    plain = metric.replace("-", "_")
    for name in (metric, plain, f"{plain}_acc"):
        if name in known:
            return name
    raise UnknownNameError("metric", metric, known | {name.removesuffix("_acc") for name in known})


def why_empty(frame: pd.DataFrame, *, dataset: str | None, grid: str | None) -> str:
    """Explain why filters leave no row of a frame, with a command that would make some.

    Raises:
        UnknownNameError: for a data set that is neither in the store nor known.
    """
    from fedbench.bench.data.sources.base import entries

    run = f"fedbench sweep --grid {shlex.quote(grid)}" if grid else "fedbench run simclr"
    if frame.empty:
        return f"nothing to rank yet; try {run}"
    if dataset is not None and on_dataset(frame, dataset).empty:
        held = sorted(named_by_content(frame).dataset.unique())
        if ":" not in dataset and dataset_name(dataset) not in map(dataset_name, entries()):
            raise UnknownNameError("data set", dataset, held, "; known = in the store")
        return f"no run in the store is on data set {dataset!r}; it has {', '.join(held)}"
    grids = ", ".join(sorted(frame.grid.dropna().unique())) or "none"
    return f"no run in the store is such a cell of grid {grid!r}; its grids are {grids}; try {run}"
