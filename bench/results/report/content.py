"""Content of the page as plain JSON: tables by column, charts, studies, published numbers."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from fedbench.bench.evaluation.catalogue import load_plugins, needed
from fedbench.bench.evaluation.metrics import heading, is_accuracy, main_metrics
from fedbench.bench.evaluation.objectives.names import DEFAULT, GATE
from fedbench.bench.results.chance import NO_MARKS, Marks, marks
from fedbench.bench.results.leaderboard.across_cells import CellComparison
from fedbench.bench.results.leaderboard.columns import BOARD
from fedbench.bench.results.leaderboard.comparability import (
    classes,
    measured_alike,
    measured_metrics,
    metric_values,
)
from fedbench.bench.results.leaderboard.curves import (
    CURVE_METRICS,
    DRIFT,
    FURTHER,
    Curve,
    Losses,
    load_curves,
)
from fedbench.bench.results.leaderboard.entries import Group, Usual
from fedbench.bench.results.leaderboard.formats import across_table, group_table
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard, leaderboard
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.results.leaderboard.seeds import Beside
from fedbench.bench.results.leaderboard.statistics import mean, pareto_front, summarize
from fedbench.bench.results.leaderboard.studies import (
    StudyView,
    correlate,
    is_usable,
    spent,
    studies,
)
from fedbench.bench.results.store.frame import lines, plain
from fedbench.bench.results.store.row import FINAL_METRICS
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import parse_json
from fedbench.bench.system.errors import FedbenchError
from fedbench.bench.system.identity import canonical_json, content_id

_MAX_MAPS = 40
"""Maps on a page, of the first runs; each has a thousand points or so."""
_COMMON = 0.1
"""Share of the finished rows that have a metric which the page shows."""
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

NUM_COLOURS, NUM_SYMBOLS = 36, 7
"""Colours and symbols of the page: a method has one colour, its lines have different symbols."""
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
    settings = [
        json.loads(text)["data"] | {"name": "", "label_fraction": 0} for text in frame.config_json
    ]
    frame = frame.assign(settings=[*map(canonical_json, settings)]).sort_values(
        "seed", kind="stable"
    )
    frame = frame.drop_duplicates(["dataset_revision", "settings"])[:_MAX_PARTITIONS]
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
    losses: dict[str, Losses] = {}
    curves, unreadable = load_curves(store, frame, losses)
    marked = marks(store, lines(frame[["row_id", "status", "finished_at"]]))
    geometry, torn = geometries(store, frame.file)
    views = studies(store)
    by_client, not_known = partitions(store, frame, data_dir)
    metrics = _metrics(frame)
    studied = spent(store, frame.study_id.dropna().unique())
    beside: Beside = {"curves": curves, "marks": marked, "studies": studied}
    tell(f"ranking them by {', '.join(map(heading, metrics))}")
    boards = {metric: leaderboard(frame, metric=metric, **beside) for metric in metrics}
    tell("comparing methods over cells")
    across = {metric: board.across() for metric, board in boards.items()}
    groups = boards[metrics[0]].groups if metrics else ()
    specs = {*frame.method} | {view.spec for view in views}
    labels = {entry.label: entry.method for b in boards.values() for entry in b.entries}
    return {
        "title": title,
        "problems": [*views.problems, *unreadable, *torn],
        "metrics": [{"name": m, "title": heading(m), "percent": is_accuracy(m)} for m in metrics],
        "styles": styles(labels | {name: name for name in specs}),
        "columns": [c.heading(metric) for metric in metrics[:1] for c in BOARD if c.title],
        "boards": {metric: _board(board, across[metric]) for metric, board in boards.items()},
        "sweeps": {metric: sweeps(board, across[metric]) for metric, board in boards.items()},
        "losses": {
            cell: losses_of(group, losses)
            for cell, group in zip(cell_ids(groups), groups, strict=True)
        },
        "curves": {
            cell: curves_of(group, curves)
            for cell, group in zip(cell_ids(groups), groups, strict=True)
        },
        "scatter": {m: scatter(frame, boards[m]) for m in metrics if m != "objective"},
        "pictures": pictures(frame, data_dir) if show_images else [],
        "partitions": by_client,
        "partitions_not_shown": not_known,
        "geometry": geometry,
        "runs": _runs(frame, marked),
        "studies": [_study(v, (store.study(v.study_id) or {}).get("space", {})) for v in views],
        "papers": _papers(),
    }


def _runs(rows: pd.DataFrame, marked: Mapping[str, Marks]) -> dict[str, Any]:
    shown = rows.assign(
        started_at=[at.isoformat(timespec="seconds") for at in rows.started_at],
        at_chance=[", ".join(marked.get(i, NO_MARKS).at_chance) for i in rows.row_id],
    )
    return by_column(shown[[*_RUN_COLUMNS]])


def by_column(frame: pd.DataFrame) -> dict[str, Any]:
    """Return a frame as plain lists by column; missing values are null."""
    lists: dict[Any, Any] = plain(frame).to_dict("list")
    return lists


def _metrics(rows: pd.DataFrame) -> list[str]:
    """Return the metrics that lists show and enough rows have: linear accuracy, others, objective.

    `fedbench leaderboard --metric` ranks by any other.
    """
    load_plugins()
    least = _COMMON * (rows.status == "ok").sum()
    names = main_metrics({*FINAL_METRICS, *measured_metrics(rows)})
    there = [name for name in names if metric_values(rows, name).count() >= max(least, 1)]
    return sorted(there, key=lambda name: (name != "linear_acc", name == "objective"))


def _board(board: Leaderboard, across: Sequence[CellComparison]) -> dict[str, Any]:
    cells = zip(cell_ids(board.groups), short_titles(board.groups), board.groups, strict=True)
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
    ranked = [e for e in comparison.entries if e.mean_rank is not None]
    return asdict(across_table(comparison, usual)) | {
        "ranks": [{"name": e.label, "rank": e.mean_rank, "best": e.best} for e in ranked],
        "difference": comparison.critical_difference,
        "cliques": comparison.cliques,
    }


def _group(group: Group, usual: Usual) -> dict[str, Any]:
    table = group_table(group, usual=usual)
    return {
        "title": table.title,
        "note": " ".join(f"{line}." for line in table.below()),
        "power": group.note,
        "header": list(table.header),
        "standings": group.frame.standing.tolist(),
        "rows": table.rows,
        "points": points_of(group),
    }


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


# Charts


def styles(methods: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return colour and symbol by name; names of one method, by which they are given, share one."""
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
    """Return what sets each group apart from most of the others.

    Data set and alpha stay unless all groups share them.
    """
    parts = [group.title.split(" · ") for group in groups]
    times = Counter(part for each in parts for part in {*each})
    kept = {each[0] for each in parts} | {part for part in times if part.startswith("alpha ")}

    def without(usual: Collection[str]) -> list[str]:
        return [" · ".join(p for p in each if p not in usual) or each[0] for each in parts]

    most = {
        p for p, n in times.items() if n > len(parts) / 2 and (p not in kept or n == len(parts))
    }
    short = without(most)
    if len({*short}) == len(short):
        return short
    return without({part for part, n in times.items() if n == len(parts)})


def points_of(group: Group) -> dict[str, Any]:
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
    points["values"] = points["values"].map(list)
    points["main"] = points.index.isin(_main(group.frame).index)
    names = [*_POINT.values(), "front_mb", "front_minutes", "main"]
    return by_column(points[names])


def _main(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one line for each method: with the most seeds, and of those the best."""
    order = frame.assign(few=-frame.n_seeds.astype(int)).sort_values("few", kind="stable")
    return order.drop_duplicates("method")


def losses_of(group: Group, losses: Mapping[str, Losses]) -> dict[str, Any]:
    """Return the mean loss of one line of each method over its seeds, by round."""
    points: list[dict[str, Any]] = []
    for line in lines(_main(group.frame)):
        by_round: dict[int, list[float]] = {}
        for run_id in line.run_ids:
            for done, loss in losses.get(run_id, ()):
                by_round.setdefault(done, []).append(loss)
        step = -(-len(by_round) // _MAX_LOSSES) or 1
        chosen = [done for i, done in enumerate(sorted(by_round)) if i % step == 0]
        chosen += [done for done in [max(by_round, default=0)] if done and done not in chosen]
        points += [
            {"name": line.label, "method": line.method, "round": done, "mean": mean(by_round[done])}
            for done in chosen
        ]
    return by_column(pd.DataFrame(points))


def sweeps(board: Leaderboard, across: Sequence[CellComparison]) -> list[dict[str, Any]]:
    """Return along each axis the means, with intervals, of entries that have two of them."""
    groups = {group.class_id: group for group in board.groups}
    names = {"mean": "mean", "low": "ci95_low", "high": "ci95_high", "n": "n_seeds"}
    charts = []
    for comparison in across:
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


def curves_of(group: Group, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Return the mean of each entry over its seeds at every evaluation, with the interval."""
    points: list[dict[str, Any]] = []
    for entry in group.entries:
        evaluations = [e for row_id in entry.curve_ids for e in curves[row_id]]
        for metric in (*CURVE_METRICS, *FURTHER, *DRIFT):
            values = [(e, e.further.get(metric, getattr(e, metric, None))) for e in evaluations]
            there = [(e, value) for e, value in values if value is not None]
            for done in sorted({e.rounds for e, _ in there}):
                at = [e for e, _ in there if e.rounds == done]
                n, centre, _, low, high = summarize([v for e, v in there if e.rounds == done])
                of = {"name": entry.label, "metric": metric, "round": done}
                gb = sum(e.num_bytes for e in at) / n / 1e9
                if hours := [e.hours for e in at if e.hours is not None]:
                    of["hours"] = sum(hours) / len(hours)
                points.append(of | {"gb": gb, "mean": centre, "low": low, "high": high, "n": n})
    return by_column(pd.DataFrame(points))


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
