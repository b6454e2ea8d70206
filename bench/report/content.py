"""What the page shows, as plain JSON: tables by column, curves, studies, published numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedbench.bench.config import content_id
from fedbench.bench.results.comparability import class_keys
from fedbench.bench.results.curves import METRICS, Curve
from fedbench.bench.results.formats import plain_cells, visible_columns
from fedbench.bench.results.leaderboard import Group, Leaderboard, leaderboard
from fedbench.bench.results.lines import Line, metric_value
from fedbench.bench.results.papers import paper_cells, paper_ranks
from fedbench.bench.results.row import Row
from fedbench.bench.results.statistics import summarize
from fedbench.bench.results.studies import StudyView, correlate
from fedbench.bench.results.text_tables import across_table, metric_title

_FIRST = ("linear_acc", "knn_acc", "linear_paper_acc", "objective")
_RUN_COLUMNS = (
    "row_id",
    "status",
    "method",
    "preset",
    "dataset",
    "partition",
    "alpha",
    "num_clients",
    "participation",
    "num_rounds",
    "local_epochs",
    "seed",
    "linear_acc",
    "knn_acc",
    "objective",
    "untrained_linear_acc",
    "untrained_knn_acc",
    "collapsed",
    "bytes_up",
    "bytes_down",
    "revealing_messages",
    "epsilon",
    "epsilon_of",
    "wall_seconds",
    "peak_memory_bytes",
    "device",
    "hardware",
    "grid",
    "study_id",
    "git_sha",
    "package_version",
    "started_at",
    "error",
)
_SORTED_BY = {
    "rank": "rank",
    "seeds": "n_seeds",
    "gain": "gain",
    "linear %": "linear_acc_mean",
    "k-NN %": "knn_acc_mean",
    "objective": "objective_mean",
    "area %": "area",
    "MB up": "mb_up",
    "MB down": "mb_down",
    "% / GB": "per_gb",
    "per GB": "per_gb",
    "minutes": "minutes",
    "published": "difference",
}
"""Text column of a line to the unrounded number that it shows."""


def content(
    rows: Sequence[Row],
    curves: Mapping[str, Curve],
    studies: Sequence[StudyView],
    problems: Sequence[str],
    *,
    title: str,
) -> dict[str, Any]:
    """Everything on the page.

    Args:
        rows: of the store.
        curves: by row id.
        studies: of the store.
        problems: a line for every file that could not be read.
        title: of the page.
    """
    metrics = _metrics(rows)
    boards = {metric: leaderboard(rows, metric=metric, curves=curves) for metric in metrics}
    groups = boards[metrics[0]].groups if metrics else ()
    class_of = {row.row_id: content_id(class_keys(row)) for row in rows}
    return {
        "title": title,
        "problems": list(problems),
        "metrics": [
            {"name": m, "title": metric_title(m), "percent": m.endswith("_acc")} for m in metrics
        ],
        "classes": {group.class_id: group.title for group in groups},
        "boards": {metric: _board(board) for metric, board in boards.items()},
        "sweeps": {metric: _sweeps(board) for metric, board in boards.items()},
        "curves": {group.class_id: _curves(group, curves) for group in groups},
        "scatter": _scatter(rows, class_of, [m for m in metrics if m != "objective"]),
        "runs": columns([_run(row) for row in rows], _RUN_COLUMNS),
        "machines": _machines(rows),
        "studies": [_study(study) for study in studies],
        "papers": _papers(),
    }


def columns(records: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Records by column; texts that repeat are stored once, as `{"d": texts, "i": places}`."""
    found: dict[str, Any] = {}
    for name in names:
        values = [record[name] for record in records]
        distinct = dict.fromkeys(values) if all(isinstance(v, str | None) for v in values) else {}
        if values and len(distinct) <= len(values) // 2 and distinct:
            place = {value: index for index, value in enumerate(distinct)}
            found[name] = {"d": list(distinct), "i": [place[value] for value in values]}
        else:
            found[name] = values
    return found


def _metrics(rows: Sequence[Row]) -> list[str]:
    """What rows were measured by, the usual ones first; what methods add comes after."""
    further = {
        name
        for row in rows
        for name in json.loads(row.metrics_json or "{}")
        if name.endswith("_acc") and not name.startswith("untrained_")
    }
    names = [*_FIRST, *sorted(further - {*_FIRST})]
    return [m for m in names if any(metric_value(row, m) is not None for row in rows)]


def _run(row: Row) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in _RUN_COLUMNS}
    return values | {"started_at": row.started_at.isoformat(timespec="seconds")}


def _board(board: Leaderboard) -> dict[str, Any]:
    """Tables of a leaderboard: a cell is its text, or its text and the number behind it."""
    return {
        "groups": [_group(group) for group in board.groups],
        "across": [_across(table) for table in map(across_table, board.across())],
    }


def _group(group: Group) -> dict[str, Any]:
    header = visible_columns(group)
    return {
        "title": group.title,
        "header": header,
        "best": [bool(line.best) for line in group.lines],
        "rows": [
            [_cell(line, n, text) for n, text in _texts(line, header)] for line in group.lines
        ],
    }


def _texts(line: Line, header: Sequence[str]) -> list[tuple[str, str]]:
    cells = plain_cells(line)
    return [(name, cells[name]) for name in header]


def _cell(line: Line, name: str, text: str) -> str | list[Any]:
    if name == metric_title(line.metric):
        return [text, line.mean]
    if name in _SORTED_BY:
        return [text, getattr(line, _SORTED_BY[name])]
    return text


def _across(table: Any) -> dict[str, Any]:
    return {
        "title": table.title,
        "header": list(table.header),
        "rows": [list(row) for row in table.rows],
        "best": list(table.best),
        "footer": table.footer,
    }


def _sweeps(board: Leaderboard) -> list[dict[str, Any]]:
    """Along each axis the means with their intervals."""
    groups = {group.class_id: group for group in board.groups}
    found = []
    for each in board.across():
        if each.axis is None:
            continue
        points = [
            {
                "name": _name(line),
                "x": value,
                "mean": line.mean,
                "low": line.ci95_low,
                "high": line.ci95_high,
                "n": line.n_seeds,
            }
            for value, class_id in zip(each.values, each.class_ids, strict=True)
            for line in groups[class_id].lines
            if line.mean is not None
        ]
        found.append({"title": each.title, "axis": each.axis, "points": points})
    return found


def _name(line: Line) -> str:
    return f"{line.method} ({line.variant})" if line.variant else line.method


def _curves(group: Group, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Of each line the mean over its seeds at every evaluation, with the interval."""
    found: list[dict[str, Any]] = []
    for line in group.lines:
        own = [curves[row_id] for row_id in line.row_ids if row_id in curves]
        for metric in METRICS:
            at: dict[int, list[tuple[float, int]]] = {}
            for curve in own:
                for done, sent, value in zip(
                    curve.rounds, curve.num_bytes, getattr(curve, metric), strict=True
                ):
                    if value is not None:
                        at.setdefault(done, []).append((value, sent))
            for done, pairs in sorted(at.items()):
                summary = summarize([value for value, _ in pairs])
                found.append(
                    {
                        "name": _name(line),
                        "metric": metric,
                        "round": done,
                        "gb": sum(sent for _, sent in pairs) / len(pairs) / 1e9,
                        "mean": summary.mean,
                        "low": summary.ci95_low,
                        "high": summary.ci95_high,
                        "n": summary.n,
                    }
                )
    return columns(found, found[0] if found else ())


def _scatter(
    rows: Sequence[Row], class_of: Mapping[str, str], metrics: Sequence[str]
) -> dict[str, Any]:
    """Objective against every other metric by class, and how they go together by method."""
    found: dict[str, Any] = {}
    for metric in metrics:
        by_class: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for row in rows:
            value = metric_value(row, metric)
            if row.objective is not None and value is not None:
                methods = by_class.setdefault(class_of[row.row_id], {})
                methods.setdefault(row.method, []).append((row.objective, value))
        found[metric] = {
            class_id: [
                {
                    "name": method,
                    "points": pairs,
                    **_interval(correlate(metric, pairs).__dict__),
                }
                for method, pairs in sorted(methods.items())
            ]
            for class_id, methods in by_class.items()
        }
    return found


def _interval(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "metric"}


def _machines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What ran on what, and for how long."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        env = json.loads(row.env_json or "{}")
        versions = ", ".join(
            f"{name} {env[name]}" for name in ("python", "torch", "cuda") if name in env
        )
        key = (row.hardware or "", row.device or "", f"fedbench {row.package_version}", versions)
        found.setdefault(key, []).append(row)
    return [
        {
            "hardware": key[0],
            "device": key[1],
            "code": key[2],
            "versions": key[3],
            "runs": len(ran),
            "hours": sum(row.wall_seconds or 0.0 for row in ran) / 3600,
            "gb": sum((row.bytes_up or 0) + (row.bytes_down or 0) for row in ran) / 1e9,
            "first": min(row.started_at for row in ran).isoformat(timespec="seconds"),
            "last": max(row.finished_at for row in ran).isoformat(timespec="seconds"),
        }
        for key, ran in sorted(found.items())
    ]


def _study(study: StudyView) -> dict[str, Any]:
    keys = ("number", "status", "objective", "seconds", "error")
    return {
        **{k: v for k, v in study.as_dict().items() if k not in ("trials", "correlations")},
        "correlations": [_interval(c.__dict__) | {"metric": c.metric} for c in study.correlations],
        "trials": [
            {key: trial[key] for key in keys}
            | {"watched": trial["watched"], "params": trial["params"], "seeds": len(trial["seeds"])}
            for trial in study.trials
        ],
    }


def _papers() -> dict[str, Any]:
    cells = paper_cells()
    records = [
        {
            "table": cell.source,
            "dataset": cell.dataset,
            "setting": cell.setting,
            "measured": cell.probe or cell.metric,
            "method": cell.method,
            "here": cell.spec,
            "value": cell.value if cell.unit == "fraction" else None,
            "printed": cell.printed,
            "spread": cell.spread,
            "seeds": cell.n_seeds,
            "rank": rank,
            "note": cell.note,
            "paper": cell.citation,
        }
        for cell, rank in zip(cells, paper_ranks(cells), strict=True)
    ]
    return columns(records, records[0])
