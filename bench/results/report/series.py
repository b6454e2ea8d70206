"""Data of the charts: means along axes, curves, objective against accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.leaderboard.comparability import (
    Meaning,
    class_id,
    classes,
    contender,
    metric_value,
)
from fedbench.bench.results.leaderboard.curves import CURVE_METRICS, Curve
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.lines import Group
from fedbench.bench.results.leaderboard.statistics import pareto_front, summarize
from fedbench.bench.results.leaderboard.studies import correlate
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.identity import content_id

NUM_COLOURS, NUM_SYMBOLS = 8, 7
"""Colours and symbols of the page; 56 names have a pair of their own."""


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


def styles(methods: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return colour and symbol of each name, the same for the whole page.

    Names of one method, which differ in hyperparameters, share its colour.

    Args:
        methods: method by name.
    """
    colours = {method: i % NUM_COLOURS for i, method in enumerate(sorted({*methods.values()}))}
    taken: set[tuple[int, int]] = set()
    chosen = {}
    for position, name in enumerate(sorted(methods)):
        colour = colours[methods[name]]
        order = [(colour, (position + step) % NUM_SYMBOLS) for step in range(NUM_SYMBOLS)]
        chosen[name] = next((pair for pair in order if pair not in taken), order[0])
        taken.add(chosen[name])
    return chosen


def cell_ids(groups: Sequence[Group]) -> list[str]:
    """Return an identity of each group that is the same for every metric."""
    ids: list[str] = []
    for group in groups:
        keys = {
            key: value
            for key, value in group.keys.items()
            if key != "dataset" and not key.startswith("evaluation.")
        }
        identity = content_id(keys)[:8]
        again = sum(known.partition("-")[0] == identity for known in ids)
        ids.append(f"{identity}-{again + 1}" if again else identity)
    return ids


def short_titles(groups: Sequence[Group]) -> list[str]:
    """Return the titles without the parts that all groups have."""
    parts = [group.title.split(" · ") for group in groups]
    shared = {part for part in (parts[0] if parts else ()) if all(part in each for each in parts)}
    return [" · ".join(p for p in each if p not in shared) or each[0] for each in parts]


def points_of(group: Group, standings: Sequence[str]) -> dict[str, Any]:
    """Return the lines of a group for charts, with the Pareto fronts over bytes and minutes."""
    scores = [
        None if line.mean is None else needed(line.metric).score(line.mean) for line in group.lines
    ]
    fronts = {
        name: pareto_front([getattr(line, name) for line in group.lines], scores)
        for name in ("mb_up_down", "minutes")
    }
    return columns(
        [
            {
                "name": line.label,
                "rank": line.rank,
                "mean": line.mean,
                "low": line.ci95_low,
                "high": line.ci95_high,
                "values": list(line.values),
                "untrained": line.untrained_mean,
                "gain": line.gain,
                "mb": line.mb_up_down,
                "minutes": line.minutes,
                "front_mb": fronts["mb_up_down"][index],
                "front_minutes": fronts["minutes"][index],
                "diverged": line.num_diverged,
                "standing": standings[index],
            }
            for index, line in enumerate(group.lines)
        ],
        _POINT,
    )


_POINT = (
    *("name", "rank", "mean", "low", "high", "values", "untrained", "gain", "mb", "minutes"),
    *("front_mb", "front_minutes", "diverged", "standing"),
)


def sweeps(board: Leaderboard) -> list[dict[str, Any]]:
    """Return the means with their intervals along each axis, where a method has two of them."""
    groups = {group.class_id: group for group in board.groups}
    charts = []
    for comparison in board.across():
        if comparison.axis is None:
            continue
        points = [
            {
                "name": line.label,
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
        seen = [point["name"] for point in points]
        if len({*seen}) < len(seen):
            chart = {"title": comparison.title, "axis": comparison.axis, "points": points}
            charts.append(chart)
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
                        "name": line.label,
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


def scatter(rows: Sequence[Row], board: Leaderboard) -> dict[str, Any]:
    """Return objective against a board's metric by cell, with correlations by method.

    Only rows that measured the objective as most of their class did are shown, and of rows with the
    same training and the same two values one.
    """
    cells = {
        group.class_id: i for group, i in zip(board.groups, cell_ids(board.groups), strict=True)
    }
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for keys, members in classes(rows, board.metric):
        scored = [row for row in members if row.objective is not None]
        meaning, seen = Meaning([[row] for row in scored], "objective"), set()
        methods: dict[str, list[tuple[float, float]]] = {}
        for row in scored:
            value = metric_value(row, board.metric)
            point = (contender(row), row.seed, row.objective, value)
            if value is not None and row in meaning and point not in seen:
                seen.add(point)
                methods.setdefault(row.method, []).append((row.objective or 0.0, value))
        by_cell[cells[class_id(keys)]] = [
            {"name": method, "points": pairs, **asdict(correlate(board.metric, pairs))}
            for method, pairs in sorted(methods.items())
        ]
    return by_cell
