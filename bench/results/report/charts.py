"""Numbers behind charts: points, curves and losses of the lines of a board, and what names them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.leaderboard.comparability import classes, measured_alike, metric_values
from fedbench.bench.results.leaderboard.curves import MEASURED, Curve, Losses
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.statistics import mean, pareto_front, summarize
from fedbench.bench.results.leaderboard.studies import correlate
from fedbench.bench.results.report.colours import SYMBOLS, Look, looks
from fedbench.bench.results.store.frame import lines, plain
from fedbench.bench.system.identity import content_id

_MAX_LOSSES = 40
"""Rounds of a curve of losses, evenly spaced."""
_POINT = {
    "label": "name",
    "method": "method",
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


def by_column(frame: pd.DataFrame) -> dict[str, Any]:
    """Return a frame as plain lists by column; missing values are null."""
    lists: dict[Any, Any] = plain(frame).to_dict("list")
    return lists


def styles(labels: Mapping[str, str], methods: Collection[str]) -> dict[str, Look]:
    """Return the looks of methods, and of lines by their labels, which map to a line's method.

    Lines of one method have its colour and different symbols, the first one its own.
    """
    chosen, order, times = looks({*labels.values(), *methods}), [*SYMBOLS], Counter[str]()
    lines = dict[str, Look]()
    for label, method in sorted(labels.items()):
        colour, symbol = chosen[method]
        lines[label] = Look(colour, order[(order.index(symbol) + times[method]) % len(order)])
        times[method] += 1
    return chosen | lines


def cell_ids(groups: Sequence[Group]) -> list[str]:
    """Return an identity of each group that is the same for every metric."""
    ids: list[str] = []
    for group in groups:
        keys = group.keys.items()
        of = {k: v for k, v in keys if k != "dataset" and not k.startswith("evaluation.")}
        identity = content_id(of)[:8]
        again = sum(known.partition("-")[0] == identity for known in ids)
        ids.append(f"{identity}-{again + 1}" if again else identity)
    return ids


def short_titles(titles: Sequence[str]) -> list[str]:
    """Return what sets each title apart from the others.

    Data set, preset and alpha stay unless all titles share them; a budget or the like stays where
    titles of one preset differ in it, for what the preset gives follows from its name.

    >>> short_titles(["a · preset p · 3 rounds", "a · preset p · 9 rounds", "a · preset q · 4 min"])
    ['preset p · 3 rounds', 'preset p · 9 rounds', 'preset q']
    """
    parts = [title.split(" · ") for title in titles]
    presets = [[part for part in each if part.startswith("preset ")] for each in parts]

    def apart(part: str, title: list[str], preset: list[str]) -> bool:
        always = part == title[0] or part.startswith(("preset ", "alpha "))
        others = [o for o, p in zip(parts, presets, strict=True) if always or p == preset]
        return any(part not in other for other in others)

    return [
        " · ".join(part for part in each if apart(part, each, preset)) or each[0]
        for each, preset in zip(parts, presets, strict=True)
    ]


def points_of(group: Group) -> pd.DataFrame:
    """Return the entries of a group for charts, with the Pareto fronts over bytes and minutes."""
    score = needed(group.entries[0].metric).score
    # The mean of the seeds that did not diverge would flatter an entry.
    scores = [
        None
        if entry.mean is None or entry.rank is None or entry.num_diverged
        else score(entry.mean)
        for entry in group.entries
    ]
    points = group.frame.rename(columns=_POINT)
    for name in ("mb", "minutes"):
        points[f"front_{name}"] = pareto_front(points[name].tolist(), scores)
    points["main"] = points.index.isin(main_lines(group.frame).index)
    names = [*_POINT.values(), "front_mb", "front_minutes", "main"]
    return points[names]


def main_lines(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one line for each method: with the most seeds, and of those the best."""
    order = frame.sort_values("n_seeds", ascending=False, kind="stable")
    return order.drop_duplicates("method")


def losses_of(group: Group, losses: Mapping[str, Losses]) -> pd.DataFrame:
    """Return the mean loss of one line of each method over its seeds, by round."""
    points: list[dict[str, Any]] = []
    for line in lines(main_lines(group.frame)):
        by_round: dict[int, list[float]] = {}
        for run_id in line.run_ids:
            for done, loss in losses.get(run_id, ()):
                by_round.setdefault(done, []).append(loss)
        every = sorted(by_round)
        step = -(-len(every) // _MAX_LOSSES) or 1
        chosen = sorted({*every[::step], *every[-1:]})
        points += [
            {"name": line.label, "method": line.method, "round": done, "mean": mean(by_round[done])}
            for done in chosen
        ]
    return pd.DataFrame(points)


def sweeps(board: Leaderboard) -> list[dict[str, Any]]:
    """Return along each axis the means, with intervals, of entries that have two of them."""
    groups = {group.class_id: group for group in board.groups}
    names = {"mean": "mean", "low": "ci95_low", "high": "ci95_high", "n": "n_seeds"}
    charts = []
    for comparison in board.across:
        points = [
            {"name": entry.label, "method": entry.method, "x": value}
            | {k: None if entry.num_diverged else getattr(entry, of) for k, of in names.items()}
            for value, class_id in zip(comparison.values, comparison.class_ids, strict=True)
            for entry in groups[class_id].entries
            if entry.mean is not None
        ]
        times = Counter(point["name"] for point in points)
        points = [point for point in points if times[point["name"]] > 1]
        if comparison.axis is not None and points:
            chart = {"title": comparison.title, "axis": comparison.axis, "points": points}
            charts.append(chart)
    return charts


def curves_of(group: Group, curves: Mapping[str, Curve]) -> pd.DataFrame:
    """Return the mean of each entry over its seeds at every evaluation, with the interval."""
    points: list[dict[str, Any]] = []
    for entry in group.entries:
        evaluations = [e for row_id in entry.curve_ids for e in curves[row_id]]
        for metric in MEASURED:
            there = [e for e in evaluations if metric in e.values]
            for done in sorted({e.rounds for e in there}):
                at = [e for e in there if e.rounds == done]
                n, centre, _, low, high = summarize([e.values[metric] for e in at])
                of = {"name": entry.label, "metric": metric, "round": done}
                gb = sum(e.num_bytes for e in at) / n / 1e9
                if hours := [e.hours for e in at if e.hours is not None]:
                    of["hours"] = sum(hours) / len(hours)
                points.append(of | {"gb": gb, "mean": centre, "low": low, "high": high, "n": n})
    return pd.DataFrame(points)


def scatter(rows: pd.DataFrame, board: Leaderboard) -> dict[str, Any]:
    """Return objective against a board's metric by cell, with correlations by method.

    Only rows that measured the objective as most of their class did are shown, and of rows with the
    same training and the same two values one.
    """
    ids, _ = classes(rows, board.metric)
    scored = rows.assign(class_id=ids, value=metric_values(rows, board.metric))
    # Each row counts by itself here, whatever its configuration.
    alike = measured_alike(scored.assign(config_id=range(len(scored))), "objective")
    scored = scored[alike & scored.objective.notna() & scored.value.notna()]
    scored = scored.drop_duplicates(["class_id", "config_id", "seed", "objective", "value"])
    return {
        cell: [
            {"name": method, "points": pairs, **asdict(correlate(board.metric, pairs))}
            for method, points in scored[scored.class_id == group.class_id].groupby("method")
            if (pairs := [*points[["objective", "value"]].itertuples(index=False, name=None)])
        ]
        for group, cell in zip(board.groups, cell_ids(board.groups), strict=True)
    }
