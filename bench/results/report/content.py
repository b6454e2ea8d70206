"""Content of the page as plain JSON: tables by column, charts, studies, published numbers."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.bench.data.datasets import cached_dataset
from fedbench.bench.data.partition import make_partition, summary
from fedbench.bench.data.preview import preview_png
from fedbench.bench.evaluation.catalogue import load_plugins
from fedbench.bench.evaluation.metrics import heading, is_accuracy, main_metrics
from fedbench.bench.evaluation.objectives.names import DEFAULT, GATE
from fedbench.bench.results.chance import NO_MARKS, Marks, marks
from fedbench.bench.results.leaderboard.columns import BOARD
from fedbench.bench.results.leaderboard.comparability import measured_metrics, metric_values
from fedbench.bench.results.leaderboard.curves import load_curves
from fedbench.bench.results.leaderboard.formats import across_table, group_table
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard, leaderboard
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.results.leaderboard.seeds import Beside
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.leaderboard.studies import StudyView, is_usable, spent, studies
from fedbench.bench.results.report.charts import (
    by_column,
    cell_ids,
    curves_of,
    losses_of,
    points_of,
    scatter,
    short_titles,
    styles,
    sweeps,
)
from fedbench.bench.results.report.colours import COLOURS, SYMBOLS
from fedbench.bench.results.store.frame import lines
from fedbench.bench.results.store.row import FINAL_METRICS
from fedbench.bench.results.store.schema import CONFIG
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import parse_json
from fedbench.bench.system.errors import FedbenchError

_MAX_MAPS = 40
"""Maps on a page, of the first runs; each has a thousand points or so."""
_COMMON = 0.1
"""Share of the finished rows that have a metric which the page shows; all take twice as long."""
_MAX_PICTURES, _MAX_CLASSES = 8, 24
"""Data sets of which the page has pictures, and classes in each, the first ones."""
_MAX_CLIENTS, _MAX_PARTITIONS = 40, 24
"""Clients in a chart, and partitions on a page, the first ones."""
_RUN_COLUMNS = (
    "row_id", "measured_from", "status", "method", "preset", "dataset", "partition", "alpha",
    "num_clients", "participation", "num_rounds", "local_epochs", "seed", "linear_acc", "knn_acc",
    "objective", "untrained_linear_acc", "untrained_knn_acc", "collapsed", "at_chance", "unmoved",
    "bytes_up", "bytes_down", "revealing_messages", "epsilon", "epsilon_of", "wall_seconds",
    "peak_memory_bytes", "device", "hardware", "package_version", "grid", "study_id", "started_at",
    "error",
)  # fmt: skip


def geometries(store: Store, names: Iterable[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return angles and maps of runs, by their files, and a line for every unreadable one."""
    records: list[dict[str, Any]] = []
    problems = []
    for name in names:
        path = store.cell_dir(name) / "geometry.json"
        try:
            record = parse_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{str(path)!r}: {str(error).splitlines()[0]}")
            continue
        records.append(record if len(records) < _MAX_MAPS else {**record, "map": None})
    return records, problems


def partitions(
    store: Store, frame: pd.DataFrame, data_dir: Path | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return label counts of clients, one record a partition, and a line for each not known.

    Of seeds with the same data and settings the lowest is shown.
    """
    settings = [name for name in frame.columns if name.startswith(f"{CONFIG}data.")]
    of = {"dataset_revision", *settings} - {f"{CONFIG}data.name", f"{CONFIG}data.label_fraction"}
    frame = frame.sort_values("seed", kind="stable").drop_duplicates([*of])[:_MAX_PARTITIONS]
    records, missing = [], []
    for row in lines(frame):
        not_shown = f"Clients of {row.dataset} are not shown"
        try:
            dataset = cached_dataset(row.dataset_revision, data_dir)
            if dataset is None:
                missing.append(
                    f"{not_shown}: its labels are not in the data cache, or of another revision;"
                    " fedbench data prepare fills the cache."
                )
                continue
            labels, config = dataset.train_labels, store.find(row.file).config
            made = make_partition(
                labels, dataset.num_classes, config.data, config.seed, dataset.train_clients
            )
            found = summary(made, labels)
        except FedbenchError as error:
            missing.append(f"{not_shown}, {row.partition} partition: {error}")
            continue
        alpha = "" if row.alpha is None else f" · alpha {row.alpha:g}"
        title = f"{row.dataset} · {len(labels):,} images · {row.partition} partition{alpha}"
        records.append(
            {
                "title": f"{title} · {found['num_clients']:,} clients · seed {row.seed}",
                "num_clients": found["num_clients"],
                "class_names": list(dataset.class_names),
                "counts": found["class_counts"][:_MAX_CLIENTS],
                "classes_per_client": found["classes_per_client"]["ge_1pct_mean"],
            }
        )
    return records, list(dict.fromkeys(missing))


def pictures(frame: pd.DataFrame, data_dir: Path | None) -> list[dict[str, str]]:
    """Return title and picture, as a data URI, of each revision of data that is in a cache here."""
    found = []
    for row in lines(frame.drop_duplicates("dataset_revision")[:_MAX_PICTURES]):
        with suppress(FedbenchError):  # which `partitions` names
            if (data := cached_dataset(row.dataset_revision, data_dir)) is None:
                continue
            sizes = f"{len(data.train_labels):,} training and {len(data.test_labels):,} test images"
            shape = "x".join(map(str, data.image_shape))
            picture = preview_png(vars(data), data.class_names, _MAX_CLASSES)
            found.append(
                {
                    "title": f"{row.dataset} · {sizes} of {shape} · {data.num_classes:,} classes"
                    f" · revision {data.revision[:8]}",
                    "picture": f"data:image/png;base64,{b64encode(picture).decode()}",
                }
            )
    return found


def content(
    store: Store,
    frame: pd.DataFrame,
    *,
    data_dir: Path | None,
    title: str,
    show_images: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Collect everything on the page: rows of a store, with one name for each revision of data.

    Labels of clients, and with `show_images` two images of each class, are read from the data
    caches in `data_dir`; None = the usual folder. `tell` is called with a line about each step that
    takes a while.
    """
    tell(f"reading the curves of {len(frame):,} runs")
    curves, losses, unreadable = load_curves(store, frame)
    marked = marks(store, lines(frame[["row_id", "status", "finished_at"]]))
    geometry, torn = geometries(store, frame.file)
    views = studies(store)
    by_client, not_known = partitions(store, frame, data_dir)
    metrics = _metrics(frame)
    studied = spent(store, frame.study_id)
    beside: Beside = {"curves": curves, "marks": marked, "studies": studied}
    tell(f"ranking them by {', '.join(map(heading, metrics))}")
    boards = {metric: leaderboard(frame, metric=metric, **beside) for metric in metrics}
    tell("comparing methods over cells")
    groups = boards[metrics[0]].groups if metrics else ()
    cells = dict(zip(cell_ids(groups), groups, strict=True))
    specs = {*frame.method} | {view.spec for view in views}
    labels = {entry.label: entry.method for b in boards.values() for entry in b.entries}
    return {
        "title": title,
        "problems": [*views.problems, *unreadable, *torn],
        "metrics": [{"name": m, "title": heading(m), "percent": is_accuracy(m)} for m in metrics],
        "colours": COLOURS,
        "symbols": [*SYMBOLS],
        "styles": styles(labels, specs),
        "columns": [c.heading(metric) for metric in metrics[:1] for c in BOARD if c.title],
        "boards": {metric: _board(board) for metric, board in boards.items()},
        "sweeps": {metric: sweeps(board) for metric, board in boards.items()},
        "losses": {cell: by_column(losses_of(group, losses)) for cell, group in cells.items()},
        "curves": {cell: by_column(curves_of(group, curves)) for cell, group in cells.items()},
        "scatter": {m: scatter(frame, boards[m]) for m in metrics if m != "objective"},
        "pictures": pictures(frame, data_dir) if show_images else [],
        "partitions": by_client,
        "partitions_not_shown": not_known,
        "geometry": geometry,
        "runs": _runs(frame, marked),
        "studies": [_study(v, store.study(v.study_id).get("space", {})) for v in views],
        "papers": _papers(),
    }


def _runs(rows: pd.DataFrame, marked: Mapping[str, Marks]) -> dict[str, Any]:
    shown = rows.assign(
        started_at=[at.isoformat(timespec="seconds") for at in rows.started_at],
        at_chance=[", ".join(marked.get(i, NO_MARKS).at_chance) for i in rows.row_id],
    )
    return by_column(shown[[*_RUN_COLUMNS]])


def _metrics(rows: pd.DataFrame) -> list[str]:
    """Return the metrics that lists show and enough rows have: linear accuracy, others, objective.

    `fedbench leaderboard --metric` ranks by any other.
    """
    load_plugins()  # whose metrics count like ours
    least = _COMMON * (rows.status == "ok").sum()
    names = main_metrics({*FINAL_METRICS, *measured_metrics(rows)})
    there = [name for name in names if metric_values(rows, name).count() >= max(least, 1)]
    return sorted(there, key=lambda name: (name != "linear_acc", name == "objective"))


def _board(board: Leaderboard) -> dict[str, Any]:
    """Return tables and numbers of a metric; `order` is of the rows of the heatmap."""
    short = short_titles([group.title for group in board.groups])
    groups = []
    for cell, group, title in zip(cell_ids(board.groups), board.groups, short, strict=True):
        table = group_table(group)
        groups.append(
            {
                "cell": cell,
                "short": title,
                "title": table.title,
                "note": " ".join(f"{line}." for line in table.below()),
                "power": group.note,
                "header": list(table.header),
                "standings": group.frame.standing.tolist(),
                "rows": table.rows,
                "points": by_column(points_of(group)),
            }
        )
    compared, by_rank = [], []
    for comparison in board.across:
        ranked = [entry for entry in comparison.entries if entry.mean_rank is not None]
        compared.append(
            asdict(across_table(comparison))
            | {
                "ranks": [{"name": e.label, "rank": e.mean_rank, "best": e.best} for e in ranked],
                "difference": comparison.critical_difference,
                "cliques": comparison.cliques,
            }
        )
        if len(comparison.values) == len(groups):
            by_rank += [entry.label for entry in ranked]
    order = dict.fromkeys([*by_rank, *(entry.label for entry in board.entries)])
    return {"groups": groups, "across": compared, "order": [*order]}


def _study(study: StudyView, space: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("number", "status", "objective", "seconds", "error", "watched", "params")
    scores = (t["objective"] if is_usable(t) else -inf for t in study.trials)
    usual = (study.objective or DEFAULT).removesuffix(GATE) == DEFAULT
    return {
        **asdict(study),
        "space": dict(space),
        # Of random init, by the default objective alone: a trained score has no value there.
        "before": mean([u["objective"] for u in study.untrained if "objective" in u and usual]),
        "trials": [
            {key: trial[key] for key in keys}
            | {"seeds": len(trial["seeds"]), "best": best if best > -inf else None}
            for trial, best in zip(study.trials, accumulate(scores, max), strict=True)
        ],
    }


def _papers() -> dict[str, Any]:
    names = ["source", "dataset", "setting", "metric", "probe", "method", "spec", "printed"]
    cells = pd.DataFrame(map(dict, paper_cells()))
    return by_column(cells[[*names, "spread", "n_seeds", "note"]])
