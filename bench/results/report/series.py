"""Data of the charts: means along axes, curves, objective against accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedbench.bench.results.leaderboard.comparability import (
    Meaning,
    class_id,
    classes,
    contender,
    metric_value,
)
from fedbench.bench.results.leaderboard.curves import CURVE_METRICS, Curve
from fedbench.bench.results.leaderboard.formats import method_title
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.lines import Group
from fedbench.bench.results.leaderboard.statistics import summarize
from fedbench.bench.results.leaderboard.studies import correlate
from fedbench.bench.results.store.row import Row


def columns(records: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Return records by column; texts that repeat are stored once: `{"d": texts, "i": places}`."""
    by_name: dict[str, Any] = {}
    for name in names:
        values = [record[name] for record in records]
        distinct = dict.fromkeys(values) if all(isinstance(v, str | None) for v in values) else {}
        if values and len(distinct) <= len(values) // 2 and distinct:
            place = {value: index for index, value in enumerate(distinct)}
            by_name[name] = {"d": list(distinct), "i": [place[value] for value in values]}
        else:
            by_name[name] = values
    return by_name


def sweeps(board: Leaderboard) -> list[dict[str, Any]]:
    """Return the means with their intervals along each axis."""
    groups = {group.class_id: group for group in board.groups}
    charts = []
    for comparison in board.across():
        if comparison.axis is None:
            continue
        points = [
            {
                "name": method_title(line),
                "x": value,
                "mean": line.mean,
                "low": line.ci95_low,
                "high": line.ci95_high,
                "n": line.n_seeds,
            }
            for value, class_id in zip(comparison.values, comparison.class_ids, strict=True)
            for line in groups[class_id].lines
            if line.mean is not None
        ]
        charts.append({"title": comparison.title, "axis": comparison.axis, "points": points})
    return charts


def curves_of(group: Group, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Return the mean of each line over its seeds at every evaluation, with the interval."""
    points: list[dict[str, Any]] = []
    for line in group.lines:
        of_line = [curves[row_id] for row_id in line.curve_ids]
        for metric in CURVE_METRICS:
            at: dict[int, list[tuple[float, int]]] = {}
            for curve in of_line:
                for done, sent, value in zip(
                    curve.rounds, curve.num_bytes, getattr(curve, metric), strict=True
                ):
                    if value is not None:
                        at.setdefault(done, []).append((value, sent))
            for done, pairs in sorted(at.items()):
                summary = summarize([value for value, _ in pairs])
                points.append(
                    {
                        "name": method_title(line),
                        "metric": metric,
                        "round": done,
                        "gb": sum(sent for _, sent in pairs) / len(pairs) / 1e9,
                        "mean": summary.mean,
                        "low": summary.ci95_low,
                        "high": summary.ci95_high,
                        "n": summary.n,
                    }
                )
    return columns(points, points[0] if points else ())


def scatter(rows: Sequence[Row], metrics: Sequence[str]) -> dict[str, Any]:
    """Return objective against every other metric by class, with correlations by method.

    Only rows that measured the objective as most of their class did are shown, and of rows with the
    same training and the same two values one.
    """
    by_metric: dict[str, Any] = {}
    for metric in metrics:
        by_class: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for keys, members in classes(rows, metric):
            scored = [row for row in members if row.objective is not None]
            meaning, seen = Meaning([[row] for row in scored], "objective"), set()
            for row in scored:
                value = metric_value(row, metric)
                point = (contender(row), row.seed, row.objective, value)
                if value is not None and row in meaning and point not in seen:
                    seen.add(point)
                    methods = by_class.setdefault(class_id(keys), {})
                    methods.setdefault(row.method, []).append((row.objective or 0.0, value))
        by_metric[metric] = {
            identity: [
                {"name": method, "points": pairs, **asdict(correlate(metric, pairs))}
                for method, pairs in sorted(methods.items())
            ]
            for identity, methods in by_class.items()
        }
    return by_metric
