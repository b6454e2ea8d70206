"""Text about stored runs: a list of them, and one in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fedbench.bench.terminal.console import emit, note, show_table, takes_unicode, warn
from fedbench.bench.terminal.show_run import warnings
from fedbench.bench.terminal.units import count, duration, size

if TYPE_CHECKING:
    from fedbench.bench.results.listing import Listing
    from fedbench.bench.results.store.row import Row
    from fedbench.bench.runs.describe import Description

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_CURVE = 40
_CURVES = ("loss", "objective", "knn_acc", "linear_acc", "projection_std_ratio")


def show_listing(listing: Listing) -> None:
    """Print some rows as a table, newest first."""
    now = datetime.now(UTC)
    header = ["id", "method", "preset", "data", "setting", "seed", "status"]
    header += ["linear %", "k-NN %", "objective", "age"]
    rows = [
        [
            *(short, row.method, row.preset, row.dataset, _setting(row), str(row.seed), row.status),
            *(_percent(row.linear_acc), _percent(row.knn_acc)),
            "" if row.objective is None else f"{row.objective:.3f}",
            age((now - row.finished_at).total_seconds()),
        ]
        for row, short in zip(listing.rows, listing.short_ids, strict=True)
    ]
    if not rows:
        note("no run fits")
        return
    show_table(header, rows)
    if listing.total > len(rows):
        note(f"{len(rows)} of {count(listing.total, 'run')}; --limit shows more")


def age(seconds: float) -> str:
    """Format how long ago something was, in its largest unit.

    >>> age(5), age(7300), age(3e5)
    ('5 s', '2 h', '3 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def sparkline(values: Sequence[float]) -> str:
    """Draw numbers as bars between their least and their greatest, at most 40 of them.

    >>> sparkline([0, 1, 2, 7])
    '▁▂▃█'
    """
    if len(values) > _LONGEST_CURVE:
        step = (len(values) - 1) / (_LONGEST_CURVE - 1)
        values = [values[round(i * step)] for i in range(_LONGEST_CURVE)]
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(_BARS[round((v - low) / width * (len(_BARS) - 1))] for v in values)


def show_description(description: Description) -> None:
    """Print a run in full: results, curves, configuration, traffic, provenance, commands."""
    row = description.row
    emit(f"{row.method} · preset {row.preset} · {row.dataset} · seed {row.seed} · {row.status}")
    if row.error is not None:
        emit(f"error: {row.error}")
    warn(*warnings(row))
    _show_metrics(row)
    _show_curves(description)
    rows = [[key, json.dumps(v), source] for key, (v, source) in description.config.items()]
    emit("\n")
    show_table(["key", "value", "source"], rows, title="configuration")
    if description.sources_unknown:
        note(f"sources are unknown: {description.sources_unknown}")
    _show_traffic(row)
    _show_provenance(row)
    emit("\nrepeat it:")
    for command in description.commands:
        emit(f"  {command}")


def _show_metrics(row: Row) -> None:
    values = {
        name: getattr(row, name)
        for name in ("objective", "align", "unif", "knn_acc", "linear_acc", "linear_paper_acc")
    }
    before = {
        name: getattr(row, f"untrained_{name}", None)
        for name in ("objective", "knn_acc", "linear_acc")
    }
    values |= {"effective_rank": row.effective_rank, "final_loss": row.final_loss}
    more = json.loads(row.metrics_json or "{}")
    before |= {
        n.removeprefix("untrained_"): v for n, v in more.items() if n.startswith("untrained_")
    }
    values |= {n: v for n, v in more.items() if not n.startswith("untrained_")}
    lines = [
        [name, _number(name, value), _number(name, before.get(name))]
        for name, value in values.items()
        if value is not None
    ]
    if lines:
        emit("\n")
        show_table(["metric", "trained", "untrained"], lines)


def _show_curves(description: Description) -> None:
    lines = []
    for name in _CURVES:
        points = [
            (p["round_index"] + 1, p[name]) for p in description.curve if p.get(name) is not None
        ]
        if len(points) < 2:
            continue
        values = [value for _, value in points]
        drawn = sparkline(values) if takes_unicode() else ""
        ends = f"{_number(name, values[0])} to {_number(name, values[-1])}"
        lines.append(f"  {name:22} {drawn}  {ends}, rounds {points[0][0]} to {points[-1][0]}")
    if lines:
        emit("\ncurves, each between its least and its greatest:")
        emit("\n".join(lines))


def _show_traffic(row: Row) -> None:
    flows = json.loads(row.traffic_json or "{}")
    lines = [
        [f"{name} {way}", f"{flow['messages']:,}", size(flow["bytes"]), f"{flow['revealing']:,}"]
        for way, groups in flows.items()
        for name, flow in groups.items()
    ]
    scoring = json.loads(row.metrics_json or "{}").get("objective_bytes")
    if lines and scoring:  # not in the ledger of the method
        lines.append(["label-free scores up, each scoring", "", size(int(scoring)), ""])
    if lines:
        emit("\n")
        header = ["what", "messages", "bytes", "show an image"]
        show_table(header, lines, title="sent between clients and server")


def _show_provenance(row: Row) -> None:
    took = "" if row.wall_seconds is None else f", {duration(row.wall_seconds)}"
    entries = {
        "run id": row.row_id,
        "finished": f"{row.finished_at:%Y-%m-%d %H:%M} UTC{took}",
        "fedbench": f"{row.package_version}, commit {row.git_sha or 'unknown'}",
        "benchmark": f"version {row.benchmark_version}",
        "data": f"{row.dataset}, revision {row.dataset_revision[:16]}",
        "partition": f"hash {row.partition_hash[:16]}",
        "computed on": ", ".join(filter(None, (row.device, row.hardware))),
        "platform": row.platform,
        "grid": row.grid,
        "study": row.study_id,
        "weights of": row.measured_from,
        "command": row.argv,
    }
    emit("\nprovenance:")
    for name, text in entries.items():
        if text:
            emit(f"  {name:12} {text}")


def _setting(row: Row) -> str:
    alpha = "" if row.alpha is None else f" {row.alpha:g}"
    return f"{row.partition}{alpha}, {row.num_clients} clients, {count(row.num_rounds, 'round')}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value * 100:.1f}"


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return size(int(value))
    return f"{value * 100:.1f} %" if name.endswith("_acc") else f"{value:.4g}"
