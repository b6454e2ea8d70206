"""Text about runs: what one would cost, its result, a list of stored ones, and one in full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.metrics import is_accuracy, main_metrics
from fedbench.bench.evaluation.shrinkage import shrinkage
from fedbench.bench.terminal.console import emit, note, takes_unicode, warn
from fedbench.bench.terminal.show_results import show_reproduction
from fedbench.bench.terminal.tables import head, show_record, show_records
from fedbench.bench.terminal.units import count, text

if TYPE_CHECKING:
    from fedbench.bench.execution.describe import Description
    from fedbench.bench.execution.result import RunPlan, RunResult
    from fedbench.bench.results.listing import Listing
    from fedbench.bench.results.store.row import Row

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_CURVE = 40
_CURVES = ("loss", "objective", "knn_acc", "linear_acc", "projection_std_ratio")
_BEFORE = "untrained_"
DIVERGED = "loss or weights are not finite, so nothing was evaluated; try a lower client.lr"
_PRIVACY = ("revealing_messages", "smallest_group", "epsilon", "delta", "epsilon_of")
_COST = ("bytes_up", "bytes_down", "wall_seconds", "simulated_hours")
_LISTED = (
    "run_id", "method", "settings", "preset", "start", "dataset", "partition", "alpha",
    "num_clients", "participation", "num_rounds", "local_epochs", "grid", "seed", "status",
    "linear_acc", "knn_acc", "objective", "code", "finished_at", "notes",
)  # fmt: skip
_SHARED = (
    "preset", "dataset", "partition", "alpha", "num_clients", "participation", "num_rounds",
    "local_epochs", "grid", "status",
)  # fmt: skip
"""Columns of listed runs that are said once if all runs have one value there."""
_PROVENANCE = (
    "row_id", "finished_at", "wall_seconds", "package_version", "git_sha", "benchmark_version",
    "dataset", "dataset_revision", "partition_hash", "device", "hardware", "platform", "grid",
    "study_id", "measured_from", "argv",
)  # fmt: skip


def show_plan(plan: RunPlan) -> None:
    """Print what a run would do and cost."""
    record, data = plan.as_dict(), plan.config.data
    show_record(
        f"{plan.config.spec} · preset {plan.preset} · seed {plan.config.seed}",
        {
            "data": f"{data.name}, {count(data.num_clients, 'client')}, {data.partition}"
            + ("" if data.alpha_read is None else f", alpha {data.alpha:g}"),
            "rounds": f"{count(plan.config.federation.num_rounds, 'round')} with"
            f" {count(plan.config.cohort_size, 'client')} each",
            "local_epochs": plan.config.client.local_epochs,
            "local_steps": [text("steps", record["local_steps"]), plan.local_steps.idle],
            "without effect": record["without_effect"],
            **{name: record[name] for name in ("device", "status", "run_id", "measured_from")},
            **record["estimate"],
            "store": plan.store,
        },
    )


def show_result(result: RunResult) -> None:
    """Print the result of a run: objective, the scores asked for, accuracies, cost, privacy."""
    from fedbench.bench.evaluation.objectives.scores import objectives  # which loads torch
    from fedbench.bench.evaluation.protocols import probes

    emit(f"{result.method} · preset {result.preset} · seed {result.seed} · {result.status}")
    metrics = result.row.metrics
    further = [n for n in metrics if is_accuracy(n) and not n.endswith("_train_acc")]
    asked = [objectives()[n].metric.name for n in result.config.evaluation.objectives]
    measured = [metric.name for probe in probes() for metric in probe.metrics]  # of plugins
    listed = (*main_metrics(metrics), *asked, *measured, *further)
    shown = [name for n in listed for name in (n, _BEFORE + n)]
    _show_metrics({n: metrics[n] for n in shown if n in metrics}, result.row.num_rounds)
    record = result.as_dict()
    stored = {"stored_in": result.paths["run"] or result.paths["store"]}
    names = ("at_chance", *_COST, *_PRIVACY, "run_id", "measured_from", "stored_in")
    show_record("", {**record["cost"], **record["privacy"], **record, **stored}, names)
    if result.repeated is not None:
        show_reproduction(result.repeated)


def note_outdated(run_ids: Sequence[str], *, again: bool) -> None:
    """Say how many stored runs other code made of the same settings, and if they were replaced."""
    if run_ids:
        found = f"{len(run_ids)} of the same settings, of code that is not installed any more"
        note(f"replaced {found}" if again else f"the store has {found}; --again replaces them")


def warnings(row: Row) -> list[str]:
    """List the problems of a finished run: divergence, weights that stay, collapse."""
    metrics, problems = row.metrics, list[str]()
    if row.status == "diverged":
        rounds = f"{row.rounds_done or 0} of {row.num_rounds} rounds"
        problems.append(f"the run diverged after {rounds}: {DIVERGED}")
    if row.unmoved:
        problems.append("no weight has moved: every metric is of the encoder before training")
    if parts := row.without_gradient:
        problems.append(
            f"the loss never reached {', '.join(parts)}, so that only decay of weights moved it:"
            " look for .detach() or no_grad() in loss()"
        )
    if row.collapsed:
        problems.append(
            f"the encoder has collapsed: spread of features {metrics.get('std_ratio', 0):.3f}, of"
            f" projections {metrics.get('projection_std_ratio', 0):.3f} (1 = even, 0 = constant)"
        )
    elif row.num_rounds and (narrower := shrinkage(metrics, _before(metrics))):
        problems.append(f"the encoder is narrower than before training: {narrower}")
    return problems


def _before(metrics: Mapping[str, float]) -> dict[str, float]:
    return {n.removeprefix(_BEFORE): v for n, v in metrics.items() if n.startswith(_BEFORE)}


def _show_metrics(metrics: Mapping[str, float], rounds: int) -> None:
    """Print the metrics of a run, and of the encoder that it started from, if it has trained."""
    before, measured = _before(metrics) if rounds else {}, "trained" if rounds else "start"
    records = []
    for name, value in metrics.items():
        if name.startswith(_BEFORE):
            continue
        record = {"metric": name, measured: text(name, value)}
        first = before.get(name)
        if isinstance(value, bool) and first is not None:
            record["start"] = text(name, bool(first))
        elif first is not None:
            gain = text(name, value - first).removesuffix(" %")  # points
            record |= {
                "start": text(name, first),
                "gain": gain if gain.startswith("-") else f"+{gain}",
            }
        records.append(record)
    show_records(records, ("metric", "trained", "start", "gain"))


def show_listing(listing: Listing) -> None:
    """Print some rows as a table, newest first: what tells them apart, and above what all share."""
    apart = _apart(listing.rows)
    records = [
        {
            **dict(row),
            "run_id": row.row_id[:8],
            "start": (row.start or "")[:8],
            "notes": marks.at_chance and f"{head('at_chance')}: {text('', marks.at_chance)}",
            "code": row.code,
            "settings": settings,
        }
        for row, marks, settings in zip(listing.rows, listing.marks, apart, strict=True)
    ]
    if not records:
        note("no finished run fits; to continue an interrupted one, repeat its command")
        return
    alike = [name for name in _SHARED if len({record[name] for record in records}) == 1]
    said = [f"{head(name)} {text(name, records[0][name])}" for name in alike if records[0][name]]
    shared = " · ".join(said) if len(records) > 1 else ""
    show_records(records, [n for n in _LISTED if not (shared and n in alike)], title=shared)
    if listing.total > len(records):
        note(f"{len(records)} of {count(listing.total, 'run')}; --limit shows more")


def _apart(rows: Sequence[Row]) -> list[str]:
    """Describe each row by the hyperparameters in which rows of its method differ: `lr=0.1`."""
    from fedbench.bench.config.dotted import last_names  # loads pydantic
    from fedbench.bench.results.leaderboard.comparability import as_text, differing
    from fedbench.bench.results.store.settings import hyperparameters, settings_of

    of = [hyperparameters(row.settings, row.scaled) for row in rows]
    names = {
        method: differing([o for o, row in zip(of, rows, strict=True) if row.method == method])
        for method in {row.method for row in rows}
    }
    last = last_names(sorted({name for each in names.values() for name in each}))
    whole = [{**settings_of(row.settings), **o} for o, row in zip(of, rows, strict=True)]
    return [
        " ".join(f"{last[name]}={as_text(o[name])}" for name in names[row.method] if name in o)
        for o, row in zip(whole, rows, strict=True)
    ]


def show_description(description: Description) -> None:
    """Print a run in full: results, curves, configuration, traffic, provenance, commands."""
    row = description.row
    emit(f"{row.method} · preset {row.preset} · {row.dataset} · seed {row.seed} · {row.status}")
    if row.error is not None:
        emit(f"error: {row.error}")
    warn(*warnings(row))
    _show_metrics(row.metrics, row.num_rounds)
    if description.at_chance:
        show_record("", {"at_chance": description.at_chance})
    _show_curves(description.curve)
    if drift := _drift(description.curve[-1:]):
        show_record("", {"drift in the last round": drift})
    emit("\n")
    config = [
        {"key": key, "value": json.dumps(value, ensure_ascii=False), "source": source}
        for key, (value, source) in description.config.items()
    ]
    show_records(config, ("key", "value", "source"), title="configuration")
    if description.sources_unknown:
        note(f"sources are unknown: {description.sources_unknown}")
    flows = [
        {"what": f"{name} {way}", **flow}
        for way, groups in row.traffic.items()
        for name, flow in groups.items()
    ]
    if flows:
        emit("\n")
        names = ("what", "messages", "bytes", "revealing", "single")
        show_records(flows, names, title="sent between clients and server")
    emit("\n")
    show_record("provenance", dict(row), _PROVENANCE)
    show_record("", {"repeat it": description.commands})
    if description.other_code:
        from fedbench.bench.experiment.code import not_recorded

        note(f"{not_recorded(description.other_code)}: `fedbench run` would make another run")


def _drift(last: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the drift of a round, a phrase for the encoder and one for the heads."""
    found = []
    for group in ("encoder", "heads") if last else ():
        names = ("norm", "norm_std", "cosine", "diversity")
        norm, std, cosine, diversity = (last[0].get(f"drift.{group}.{name}") for name in names)
        if norm is not None:
            found.append(f"{group} {norm:.3g} ± {std:.2g}")
            if cosine is not None:
                found[-1] += f" (cosine {cosine:.2f}, diversity {diversity:.2f})"
    return found


def _show_curves(curve: Sequence[Mapping[str, Any]]) -> None:
    records = []
    for name in _CURVES:
        points = [(p["round_index"] + 1, p[name]) for p in curve if p.get(name) is not None]
        if len(points) > 1:
            values = [value for _, value in points]
            records.append(
                {
                    "curve": name,
                    "least to greatest": sparkline(values) if takes_unicode() else "",
                    "first": text(name, values[0]),
                    "last": text(name, values[-1]),
                    "rounds": f"{points[0][0]} to {points[-1][0]}",
                }
            )
    if records:
        emit("\n")
        show_records(records, tuple(records[0]))


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
