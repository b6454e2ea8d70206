"""Data of the charts: means along axes, curves, objective against accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.leaderboard.comparability import (
    classes,
    measured_alike,
    metric_values,
)
from fedbench.bench.results.leaderboard.curves import CURVE_METRICS, Curve
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.statistics import pareto_front, summarize
from fedbench.bench.results.leaderboard.studies import correlate
from fedbench.bench.system.identity import content_id

if TYPE_CHECKING:
    import pandas as pd

NUM_COLOURS, NUM_SYMBOLS = 8, 7
"""Colours and symbols of the page; 56 names have a pair of their own."""


def columns(records: Sequence[Mapping[Any, Any]], names: Iterable[str]) -> dict[str, Any]:
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


def points_of(group: Group) -> dict[str, Any]:
    """Return the entries of a group for charts, with the Pareto fronts over bytes and minutes."""
    score = needed(group.entries[0].metric).score
    scores = [None if mean is None else score(mean) for mean in group.frame["mean"]]
    points = group.frame.rename(columns=_POINT)
    for name in ("mb", "minutes"):
        points[f"front_{name}"] = pareto_front(points[name].tolist(), scores)
    points["values"] = points["values"].map(list)
    names = [*_POINT.values(), "front_mb", "front_minutes"]
    return columns(points[names].to_dict("records"), names)


_POINT = {
    "label": "name",
    "rank": "rank",
    "mean": "mean",
    "ci95_low": "low",
    "ci95_high": "high",
    "values": "values",
    "untrained_mean": "untrained",
    "gain": "gain",
    "mb_up_down": "mb",
    "minutes": "minutes",
    "num_diverged": "diverged",
    "standing": "standing",
}
"""Columns of entries to the names that charts have for them."""


def sweeps(board: Leaderboard) -> list[dict[str, Any]]:
    """Return the means with their intervals along each axis, where a method has two of them."""
    groups = {group.class_id: group for group in board.groups}
    charts = []
    for comparison in board.across():
        if comparison.axis is None:
            continue
        points = [
            {
                "name": entry.label,
                "x": value,
                "mean": entry.mean,
                "low": entry.ci95_low,
                "high": entry.ci95_high,
                "n": entry.n_seeds,
            }
            for value, class_id in zip(comparison.values, comparison.class_ids, strict=True)
            for entry in groups[class_id].entries
            if entry.mean is not None
        ]
        seen = [point["name"] for point in points]
        if len({*seen}) < len(seen):
            chart = {"title": comparison.title, "axis": comparison.axis, "points": points}
            charts.append(chart)
    return charts


def curves_of(group: Group, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Return the mean of each entry over its seeds at every evaluation, with the interval."""
    points: list[dict[str, Any]] = []
    for entry in group.entries:
        of_entry = [curves[row_id] for row_id in entry.curve_ids]
        for metric in CURVE_METRICS:
            at: dict[int, list[tuple[float, int]]] = {}
            for curve in of_entry:
                for e in curve:
                    if (value := getattr(e, metric)) is not None:
                        at.setdefault(e.rounds, []).append((value, e.num_bytes))
            for done, pairs in sorted(at.items()):
                summary = summarize([value for value, _ in pairs])
                points.append(
                    {
                        "name": entry.label,
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


def scatter(rows: pd.DataFrame, board: Leaderboard) -> dict[str, Any]:
    """Return objective against a board's metric by cell, with correlations by method.

    Only rows that measured the objective as most of their class did are shown, and of rows with the
    same training and the same two values one.
    """
    ids, _ = classes(rows, board.metric)
    scored = rows.assign(class_id=ids, value=metric_values(rows, board.metric))
    # Each row counts by itself here, whatever its configuration.
    alike = measured_alike(scored.assign(entry=range(len(scored))), "objective")
    scored = scored[alike & scored.objective.notna() & scored.value.notna()]
    scored = scored.drop_duplicates(["class_id", "entry", "seed", "objective", "value"])
    return {
        cell: [
            {"name": method, "points": pairs, **asdict(correlate(board.metric, pairs))}
            for method, points in scored[scored.class_id == group.class_id].groupby("method")
            if (pairs := [*points[["objective", "value"]].itertuples(index=False, name=None)])
        ]
        for group, cell in zip(board.groups, cell_ids(board.groups), strict=True)
    }
