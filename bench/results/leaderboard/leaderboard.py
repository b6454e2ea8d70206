"""Rows to ranks: one table per comparability class, one line per training configuration.

Only rows of one class are ranked together: same data and revision, same partition, same budget,
same encoder, same probe. The differences between classes become the titles of their tables.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedbench.bench.results.chance import Marks
from fedbench.bench.results.leaderboard.across_cells import CellComparison, compare_cells
from fedbench.bench.results.leaderboard.comparability import (
    class_id,
    classes,
    order,
    titles,
    unscaled_keys,
)
from fedbench.bench.results.leaderboard.curves import Curve
from fedbench.bench.results.leaderboard.data_names import (
    dataset_name,
    named_by_content,
    on_dataset,
)
from fedbench.bench.results.leaderboard.labels import Usual, labelled
from fedbench.bench.results.leaderboard.lines import (
    Group,
    Line,
    Spent,
    lines_of,
    ranked,
)
from fedbench.bench.results.leaderboard.power import power
from fedbench.bench.results.store.row import FINAL_METRICS, Row
from fedbench.bench.system.errors import UnknownNameError, did_you_mean


@dataclass(frozen=True)
class Leaderboard:
    """All groups, ranked by one metric.

    Attributes:
        metric: ranked by.
        groups: lines by comparability class.
        reach: k-NN accuracy that curves were asked for.
        usual: what labels of lines leave out, by method.
    """

    metric: str
    groups: tuple[Group, ...]
    reach: float | None = None
    usual: Usual = field(default_factory=dict)

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines in the order of groups and ranks."""
        return tuple(line for group in self.groups for line in group.lines)

    def across(self) -> tuple[CellComparison, ...]:
        """Compare the methods over the groups: mean ranks, worst values, slopes."""
        return compare_cells(self.groups, self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Part of the output of `--json`: numbers unrounded, accuracies in [0, 1]."""
        rows = []
        for group in self.groups:
            standings = power(group.lines).standings
            rows += [
                {**line.record(), "standing": str(standing), "group": group.title}
                for line, standing in zip(group.lines, standings, strict=True)
            ]
        return {"metric": self.metric, "rows": rows}


def leaderboard(
    rows: Iterable[Row],
    *,
    row_ids: Collection[str] | None = None,
    dataset: str | None = None,
    metric: str = "linear_acc",
    published: bool = True,
    studies: Mapping[str, Spent] | None = None,
    curves: Mapping[str, Curve] | None = None,
    reach: float | None = None,
    min_seeds: int = 1,
    marks: Mapping[str, Marks] | None = None,
) -> Leaderboard:
    """Rank configurations within their comparability class.

    Args:
        rows: rows of a store, in any order; the result does not depend on it.
        row_ids: keep these rows, such as the cells of a grid.
        dataset: keep rows of this data set.
        metric: column to rank by, a key of `metrics_json`, or a short name such as `knn`.
        published: look up the published numbers.
        studies: cost of each tuning study, by its id.
        curves: accuracies over rounds by row id, for the columns that need them.
        reach: k-NN accuracy for `rounds_to_reach` and `gb_to_reach`.
        min_seeds: leave out lines with fewer seeds that measured the metric or diverged; 1 = none.
        marks: of rows, by row id; None = no line is marked.

    Raises:
        UnknownNameError: a metric that is no column and in no row.
    """
    chosen = [
        row
        for row in named_by_content(rows if dataset is None else on_dataset(rows, dataset))
        if row_ids is None or row.row_id in row_ids
    ]
    metric = _checked_metric(metric, chosen)
    divided = {class_id(keys): (keys, members) for keys, members in classes(chosen, metric)}
    title_of = titles(
        {i: keys for i, (keys, _) in divided.items()},
        {i: {row.preset for row in members} for i, (_, members) in divided.items()},
    )
    groups = []
    for identity, (keys, members) in divided.items():
        lines = lines_of(members, metric, keys, published, studies or {}, curves, reach, marks)
        unscaled = unscaled_keys(members, keys)
        groups.append(Group(title_of[identity], keys, tuple(lines), unscaled))
    groups.sort(key=lambda group: order(group.keys))
    named, usual = labelled(groups)  # before the filter, which changes no name
    shown = (
        replace(
            group,
            lines=ranked([x for x in group.lines if min_seeds <= 1 or x.num_tried >= min_seeds]),
        )
        for group in named
    )
    return Leaderboard(metric, tuple(group for group in shown if group.lines), reach, usual)


def _checked_metric(metric: str, rows: Sequence[Row]) -> str:
    if metric in FINAL_METRICS:
        return metric
    known = {name for row in rows for name in json.loads(row.metrics_json or "{}")}
    known |= {*FINAL_METRICS}
    for name in (metric, f"{metric.replace('-', '_')}_acc"):
        if name in known:
            return name
    raise UnknownNameError("metric", metric, known)


def why_empty(rows: Sequence[Row], *, dataset: str | None, grid: str | None) -> str:
    """Explain a ranking without lines in one line, with a command that would give it some.

    Args:
        rows: of the store, without the filters.
        dataset: the filter by data set.
        grid: the filter by grid, which exists.

    Raises:
        UnknownNameError: for a data set that is neither in the store nor known.
    """
    from fedbench.bench.data.datasets import known_names

    run = f"fedbench sweep --grid {shlex.quote(grid)}" if grid else "fedbench run simclr"
    if not rows:
        return f"nothing to rank yet; try {run}"
    rows = named_by_content(rows)
    held = sorted({row.dataset for row in rows})
    if dataset is not None and not on_dataset(rows, dataset):
        if ":" not in dataset and dataset_name(dataset) not in map(dataset_name, known_names()):
            raise UnknownNameError("data set", dataset, held, "; known = in the store")
        hint = did_you_mean(dataset, held).removesuffix(f" (known: {', '.join(held)})")
        return f"no run in the store is on data set {dataset!r}{hint}; it has {', '.join(held)}"
    if dataset is None:
        grids = sorted({row.grid for row in rows if row.grid}) or ["none"]
        return (
            f"no run in the store is a cell of grid {grid!r}; it has {len(rows)} runs, swept by"
            f" {', '.join(grids)}; try {run}"
        )
    return f"no run in the store is a cell of grid {grid!r} on data set {dataset!r}; try {run}"
