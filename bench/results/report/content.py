"""Content of the page as plain JSON: tables by column, curves, studies, published numbers."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from fedbench.bench.evaluation.metrics import heading, is_accuracy, main_metrics
from fedbench.bench.results.chance import NO_MARKS, Marks, marks
from fedbench.bench.results.leaderboard.across_cells import CellComparison
from fedbench.bench.results.leaderboard.comparability import metric_values, unmoved
from fedbench.bench.results.leaderboard.curves import load_curves
from fedbench.bench.results.leaderboard.entries import Group, Spent
from fedbench.bench.results.leaderboard.formats import across_table, group_table
from fedbench.bench.results.leaderboard.importance import importances
from fedbench.bench.results.leaderboard.labels import Usual
from fedbench.bench.results.leaderboard.leaderboard import (
    Leaderboard,
    leaderboard,
    measured_metrics,
)
from fedbench.bench.results.leaderboard.published import paper_cells, paper_ranks
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.leaderboard.studies import StudyView, studies
from fedbench.bench.results.report.partitions import partitions
from fedbench.bench.results.report.series import (
    cell_ids,
    columns,
    curves_of,
    points_of,
    scatter,
    short_titles,
    styles,
    sweeps,
)
from fedbench.bench.results.store.row import FINAL_METRICS, Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import parse_json

if TYPE_CHECKING:
    import pandas as pd

_MAX_MAPS = 40
"""Maps on a page, of the first runs; each has a thousand points or so."""
_RUN_COLUMNS = (
    *("row_id", "measured_from", "status", "method", "preset", "dataset", "partition", "alpha"),
    *("num_clients", "participation", "num_rounds", "local_epochs", "seed"),
    *("linear_acc", "knn_acc", "objective", "untrained_linear_acc", "untrained_knn_acc"),
    *("collapsed", "at_chance", "unmoved", "bytes_up", "bytes_down", "revealing_messages"),
    *("epsilon", "epsilon_of", "wall_seconds", "peak_memory_bytes", "device", "hardware"),
    *("grid", "study_id", "git_sha", "package_version", "started_at", "error"),
)
_COUNTS = ("bytes_up", "bytes_down", "revealing_messages", "peak_memory_bytes")
"""Those of them that are whole numbers or null."""
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
"""Text column of an entry to the unrounded number that it shows."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _Histogram(_Part):
    median: float | None
    edges: list[float]
    counts: list[int]


class _Map(_Part):
    points: list[tuple[float, float]]
    labels: list[int]
    class_names: list[str]


class _Geometry(_Part):
    run_id: str
    title: str
    setting: str
    angles: dict[str, _Histogram]
    map: _Map | None


def geometries(store: Store, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return angles and maps of rows, in their order, and a line for every unreadable file."""
    records: list[dict[str, Any]] = []
    problems = []
    for row in rows:
        path = store.cell_dir(store.key(row)) / "geometry.json"
        try:
            record = _Geometry.model_validate_json(json.dumps(parse_json(path.read_bytes())))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{str(path)!r}: {str(error).splitlines()[0]}")
            continue
        if len(records) >= _MAX_MAPS:
            record = record.model_copy(update={"map": None})
        records.append(record.model_dump())
    return records, problems


def content(
    store: Store,
    frame: pd.DataFrame,
    *,
    spent: Mapping[str, Spent],
    data_dir: Path | None,
    title: str,
) -> dict[str, Any]:
    """Collect everything on the page.

    Args:
        store: of the rows; its studies are on the page, and a line for every unreadable file.
        frame: rows to show, with one name for each revision of data.
        spent: cost of each tuning study, by its id.
        data_dir: data caches that labels of clients are read from; None = the usual folder.
        title: of the page.
    """
    names = dict(zip(frame.row_id, frame.dataset, strict=True))
    runs = [
        row.model_copy(update={"dataset": names[row.row_id]})
        for row in store.rows()
        if row.row_id in names
    ]
    curves, unreadable = load_curves(store, runs)
    marked = marks(store, runs)
    geometry, torn = geometries(store, runs)
    views = studies(store)
    by_client, not_known = partitions(runs, data_dir)
    metrics = _metrics(frame)
    boards = {
        metric: leaderboard(frame, metric=metric, curves=curves, studies=spent, marks=marked)
        for metric in metrics
    }
    groups = boards[metrics[0]].groups if metrics else ()
    specs = {*frame.method} | {view.spec for view in views}
    labels = {entry.label: entry.method for b in boards.values() for entry in b.entries}
    return {
        "title": title,
        "problems": [*views.problems, *unreadable, *torn],
        "metrics": [{"name": m, "title": heading(m), "percent": is_accuracy(m)} for m in metrics],
        "styles": styles(labels | {name: name for name in specs}),
        "boards": {metric: _board(board) for metric, board in boards.items()},
        "sweeps": {metric: sweeps(board) for metric, board in boards.items()},
        "curves": {
            cell: curves_of(group, curves)
            for cell, group in zip(cell_ids(groups), groups, strict=True)
        },
        "scatter": {m: scatter(frame, boards[m]) for m in metrics if m != "objective"},
        "partitions": by_client,
        "partitions_not_shown": not_known,
        "geometry": geometry,
        "runs": _runs(frame, marked),
        "machines": _machines(frame),
        "studies": [_study(v, (store.study(v.study_id) or {}).get("space", {})) for v in views],
        "papers": _papers(),
    }


def _runs(rows: pd.DataFrame, marked: Mapping[str, Marks]) -> dict[str, Any]:
    shown = rows.assign(
        started_at=[at.isoformat(timespec="seconds") for at in rows.started_at],
        at_chance=[", ".join(marked.get(i, NO_MARKS).at_chance) for i in rows.row_id],
        unmoved=unmoved(rows),
    )[[*_RUN_COLUMNS]]
    for name in _COUNTS:
        shown[name] = shown[name].astype("Int64")
    shown = shown.astype(object).where(shown.notna(), None)
    return columns(shown.to_dict("records"), _RUN_COLUMNS)


def _metrics(rows: pd.DataFrame) -> list[str]:
    """Return objective and accuracies that rows have, those that judge by labels first."""
    further = measured_metrics(rows)
    others = [m for m in further if is_accuracy(m) and not m.startswith("untrained_")]
    names = dict.fromkeys([*main_metrics({*FINAL_METRICS, *further}), *sorted(others)])
    there = [m for m in names if metric_values(rows, m).notna().any()]
    return sorted(there, key=lambda name: name == "objective")


def _board(board: Leaderboard) -> dict[str, Any]:
    """Tables and points of a leaderboard: a cell is its text, or its text and the number behind."""
    cells = zip(cell_ids(board.groups), short_titles(board.groups), board.groups, strict=True)
    across = board.across()
    return {
        "groups": [
            {"cell": cell, "short": short, **_group(group, board.usual)}
            for cell, short, group in cells
        ],
        "across": [_across(comparison, board.usual) for comparison in across],
        "order": _order(board, across),
    }


def _order(board: Leaderboard, across: Sequence[CellComparison]) -> list[str]:
    """Return names of entries for the rows of the heatmap: by mean rank, else as in groups."""
    whole = [c for c in across if len(c.values) == len(board.groups)]
    ranked = [e.label for c in whole for e in c.entries if e.mean_rank is not None]
    return list(dict.fromkeys([*ranked, *(entry.label for entry in board.entries)]))


def _across(comparison: CellComparison, usual: Usual) -> dict[str, Any]:
    table = asdict(across_table(comparison, usual))
    ranked = [e for e in comparison.entries if e.mean_rank is not None]
    return {key: value for key, value in table.items() if key != "column"} | {
        "ranks": [{"name": e.label, "rank": e.mean_rank, "best": e.best} for e in ranked],
        "difference": comparison.critical_difference,
        "cliques": comparison.cliques,
    }


def _group(group: Group, usual: Usual) -> dict[str, Any]:
    table = group_table(group, usual=usual)
    return {
        "title": table.title,
        "note": table.footer,
        "power": group.note,
        "header": list(table.header),
        "standings": group.frame.standing.tolist(),
        "rows": [
            [_cell(entry, name, text) for name, text in zip(table.header, cells, strict=True)]
            for entry, cells in zip(group.entries, table.rows, strict=True)
        ],
        "points": points_of(group),
    }


def _cell(entry: Any, name: str, text: str) -> str | list[Any]:
    if name == heading(entry.metric):
        return [text, entry.mean]
    if name in _SORTED_BY:
        return [text, getattr(entry, _SORTED_BY[name])]
    return text


def _machines(rows: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Hardware and code that runs were made with, and the hours they took."""
    on = rows.assign(
        hardware=rows.hardware.fillna(""),
        device=rows.device.fillna(""),
        code="fedbench " + rows.package_version,
        versions=[_versions(text) for text in rows.env_json.fillna("{}")],
        sent=rows.bytes_up.fillna(0) + rows.bytes_down.fillna(0),
    )
    by = ["hardware", "device", "code", "versions"]
    found = on.groupby(by).agg(
        runs=("row_id", "size"),
        hours=("wall_seconds", "sum"),
        gb=("sent", "sum"),
        first=("started_at", "min"),
        last=("finished_at", "max"),
    )
    found["hours"], found["gb"] = found.hours / 3600, found.gb / 1e9
    for name in ("first", "last"):
        found[name] = [at.isoformat(timespec="seconds") for at in found[name]]
    return found.reset_index().to_dict("records")


def _versions(env_json: str) -> str:
    env = json.loads(env_json)
    return ", ".join(f"{name} {env[name]}" for name in ("python", "torch", "cuda") if name in env)


def _study(study: StudyView, space: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("number", "status", "objective", "seconds", "error")
    done = [t["status"] == "ok" and t["objective"] is not None for t in study.trials]
    scores = (t["objective"] if ok else -inf for t, ok in zip(study.trials, done, strict=True))
    return {
        **{k: v for k, v in study.as_dict().items() if k not in ("trials", "correlations")},
        "correlations": [asdict(c) for c in study.correlations],
        "space": dict(space),
        "importances": importances(space, study.trials),
        "before": mean([u["objective"] for u in study.untrained if "objective" in u]),
        "trials": [
            {key: trial[key] for key in keys}
            | {"watched": trial["watched"], "params": trial["params"], "seeds": len(trial["seeds"])}
            | {"best": best if best > -inf else None}
            for trial, best in zip(study.trials, accumulate(scores, max), strict=True)
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
