"""Rows to ranks: one table per comparability class, one line per configuration, means over seeds.

Only rows of one class are ranked together: same data and revision, same partition, same budget,
same encoder, same probe. What differs between classes becomes the title of their tables.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedbench.bench.config import content_id
from fedbench.bench.errors import UnknownNameError
from fedbench.bench.results.comparability import KEYS, class_keys, order, titles, variants
from fedbench.bench.results.published import Published, dataset_name
from fedbench.bench.results.published import published as published_number
from fedbench.bench.results.row import FINAL_METRICS, Row
from fedbench.bench.results.statistics import mean, summarize

_SHORT = (
    *("knn", "linear", "linear-paper", "linear-local", "mlp", "mlp-local"),
    *("finetune-1pct", "finetune-10pct"),
)
_ALIASES = {name: f"{name.replace('-', '_')}_acc" for name in _SHORT}
_LOWER_IS_BETTER = frozenset({"final_loss"})


@dataclass(frozen=True)
class Line:
    """One configuration over its seeds.

    Attributes:
        rank: 1 is best, ties share a rank; None if not ranked: nothing measured, or hyperparameters
            chosen with labels (`selection` is `oracle`).
        variant: the hyperparameters in which configurations of one method differ; else empty.
        mean, std, ci95_low, ci95_high: of the metric; std needs 2 seeds, the interval 3.
        values, seeds: the metric of each seed, in the order of seeds.
        row_ids: the runs of those seeds; `fedbench export` takes one.
        gain: mean over seeds of (trained - untrained encoder).
        mb_up_down: bytes of one run in both directions, in units of 1e6; mean over seeds.
        minutes: wall time of one run; mean over seeds.
        tune_runs: runs of the study that hyperparameters come from; None if untuned or not known.
        num_diverged, num_failed: runs that ended so; a line with diverged runs ranks last.
        difference: mean - published value.
        keys: the comparability class, columns and further settings.
    """

    rank: int | None
    method: str
    variant: str
    config_id: str
    metric: str
    mean: float | None
    std: float | None
    ci95_low: float | None
    ci95_high: float | None
    n_seeds: int
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    row_ids: tuple[str, ...]
    objective_mean: float | None
    knn_acc_mean: float | None
    linear_acc_mean: float | None
    untrained_mean: float | None
    gain: float | None
    mb_up_down: float | None
    minutes: float | None
    collapsed: bool
    num_diverged: int
    num_failed: int
    tuned: bool
    tune_runs: int | None
    selection: str
    preset: str
    published: Published | None
    difference: float | None
    class_id: str
    keys: Mapping[str, Any] = field(repr=False)

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: the fields, with the columns of the class beside them."""
        flat = asdict(self)
        keys = flat.pop("keys")
        flat["seeds"], flat["values"] = list(self.seeds), list(self.values)
        return flat | {key: keys[key] for key in KEYS}


@dataclass(frozen=True)
class Group:
    """The lines of one comparability class, best first; the title says what sets it apart."""

    title: str
    keys: Mapping[str, Any]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Leaderboard:
    """All groups, ranked by one metric."""

    metric: str
    groups: tuple[Group, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines in the order of groups and ranks."""
        return tuple(line for group in self.groups for line in group.lines)

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints: numbers unrounded, accuracies in [0, 1]."""
        rows = []
        for group in self.groups:
            rows += [{**line.record(), "group": group.title} for line in group.lines]
        return {"metric": self.metric, "rows": rows}


def metric_value(row: Row, metric: str) -> float | None:
    """A metric of a row by column name or by key of `metrics_json`; None if not measured."""
    if metric in Row.model_fields:
        value = getattr(row, metric)
    else:
        value = json.loads(row.metrics_json or "{}").get(metric)
    return float(value) if isinstance(value, int | float) else None


def leaderboard(
    rows: Iterable[Row],
    *,
    grid: str | None = None,
    row_ids: Collection[str] | None = None,
    dataset: str | None = None,
    metric: str = "linear_acc",
    published: bool = True,
    budgets: Mapping[str, int] | None = None,
) -> Leaderboard:
    """Rank configurations within their comparability class.

    Args:
        rows: rows of a store, in any order; the result does not depend on it.
        grid: keep rows that ran as cells of this grid.
        row_ids: keep these rows; with it `grid` is ignored. Cells that two grids share carry the
            name of the one that ran them first, so a planned list of cells finds more.
        dataset: keep rows of this data set.
        metric: column to rank by, or a key of `metrics_json`; `knn`, `linear`, `linear-paper`,
            `linear-local`, `mlp`, `mlp-local` are known. Higher is better, but for `final_loss`.
        published: look up the published numbers.
        budgets: runs of each tuning study, by its id.

    Raises:
        UnknownNameError: a metric that is no column and in no row.
    """
    chosen = [row for row in rows if _chosen(row, grid, row_ids, dataset)]
    metric = _checked_metric(metric, chosen)
    classes: dict[str, list[Row]] = {}
    keys: dict[str, dict[str, Any]] = {}
    for row in chosen:
        key = class_keys(row)
        class_id = content_id(key)
        classes.setdefault(class_id, []).append(row)
        keys[class_id] = key
    title_of = titles(keys, {i: {row.preset for row in members} for i, members in classes.items()})
    budgets = budgets or {}
    groups = [
        Group(title_of[i], keys[i], _rank(_lines(members, metric, i, keys[i], published, budgets)))
        for i, members in classes.items()
    ]
    return Leaderboard(metric, tuple(sorted(groups, key=lambda group: order(group.keys))))


def _chosen(
    row: Row, grid: str | None, row_ids: Collection[str] | None, dataset: str | None
) -> bool:
    if dataset is not None and dataset_name(row.dataset) != dataset_name(dataset):
        return False
    if row_ids is not None:
        return row.row_id in row_ids
    return grid is None or row.grid == grid


def _checked_metric(metric: str, rows: Sequence[Row]) -> str:
    metric = _ALIASES.get(metric, metric)
    if metric not in FINAL_METRICS:
        known = {name for row in rows for name in json.loads(row.metrics_json or "{}")}
        if metric not in known:
            raise UnknownNameError("metric", metric, known | set(FINAL_METRICS))
    return metric


def _lines(
    rows: Sequence[Row],
    metric: str,
    class_id: str,
    keys: Mapping[str, Any],
    look_up: bool,
    budgets: Mapping[str, int],
) -> list[Line]:
    configs: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.config_id, row.seed, row.row_id)):
        configs.setdefault(row.config_id, []).append(row)
    variant_of = variants({config_id: runs[0] for config_id, runs in configs.items()})
    return [
        replace(
            _line(runs, metric, variant_of[config_id], class_id, keys, look_up),
            tune_runs=budgets.get(runs[0].study_id or ""),
        )
        for config_id, runs in configs.items()
    ]


def _line(
    runs: Sequence[Row],
    metric: str,
    variant: str,
    class_id: str,
    keys: Mapping[str, Any],
    look_up: bool,
) -> Line:
    done = [row for row in runs if row.status == "ok"]
    measured = [(row, v) for row in done if (v := metric_value(row, metric)) is not None]
    values = [value for _, value in measured]
    before = [(value, metric_value(row, f"untrained_{metric}")) for row, value in measured]
    pairs = [(after, start) for after, start in before if start is not None]
    summary = summarize(values)
    found = published_number(runs[0], metric) if look_up else None
    difference = None
    if found is not None and summary.mean is not None:
        difference = summary.mean - found.value
    return Line(
        rank=None,
        method=runs[0].method,
        variant=variant,
        config_id=runs[0].config_id,
        metric=metric,
        mean=summary.mean,
        std=summary.std,
        ci95_low=summary.ci95_low,
        ci95_high=summary.ci95_high,
        n_seeds=len(values),
        seeds=tuple(row.seed for row, _ in measured),
        values=tuple(values),
        row_ids=tuple(row.row_id for row, _ in measured),
        objective_mean=_mean(row.objective for row in done),
        knn_acc_mean=_mean(row.knn_acc for row in done),
        linear_acc_mean=_mean(row.linear_acc for row in done),
        untrained_mean=mean([start for _, start in pairs]),
        gain=mean([after - start for after, start in pairs]),
        mb_up_down=_mean(_megabytes(row) for row in done),
        minutes=_mean(_minutes(row) for row in done),
        collapsed=any(row.collapsed for row in done),
        num_diverged=sum(row.status == "diverged" for row in runs),
        num_failed=sum(row.status == "error" for row in runs),
        tuned=any(row.tuned for row in runs),
        tune_runs=None,
        selection=runs[0].selection,
        preset=runs[0].preset,
        published=found,
        difference=difference,
        class_id=class_id,
        keys=keys,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    return mean([value for value in values if value is not None])


def _megabytes(row: Row) -> float | None:
    if row.bytes_up is None or row.bytes_down is None:
        return None
    return (row.bytes_up + row.bytes_down) / 1e6


def _minutes(row: Row) -> float | None:
    return None if row.wall_seconds is None else row.wall_seconds / 60


def _rank(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Best first, lines with diverged runs after all others, unranked lines at the end."""

    def score(line: Line) -> tuple[bool, bool, float]:
        if line.mean is None:
            return bool(line.num_diverged), True, 0.0
        sign = 1 if line.metric in _LOWER_IS_BETTER else -1
        return bool(line.num_diverged), False, sign * line.mean

    def ranked(line: Line) -> bool:
        return line.selection != "oracle" and (line.mean is not None or line.num_diverged > 0)

    ordered = sorted(
        lines,
        key=lambda line: (not ranked(line), score(line), line.method, line.variant, line.config_id),
    )
    ranks: list[Line] = []
    for position, line in enumerate(ordered, start=1):
        rank: int | None = None
        if ranked(line):
            tied = bool(ranks) and score(ranks[-1]) == score(line)
            rank = ranks[-1].rank if tied else position
        ranks.append(replace(line, rank=rank))
    return tuple(ranks)
