"""Text about one run: its plan, its result, its problems."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fedbench.bench.results.metrics import METRICS, contraction
from fedbench.bench.terminal.console import emit
from fedbench.bench.terminal.units import count, duration, percent, size, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbench.bench.results.store.row import Row
    from fedbench.bench.runs.run import RunPlan, RunResult

_PROBES = {
    "knn_acc": "k-NN",
    "linear_acc": "linear probe",
    "finetune_1pct_acc": "fine-tuned 1 %",
    "finetune_10pct_acc": "fine-tuned 10 %",
    "mlp_acc": "MLP probe",
    "linear_local_acc": "linear, local",
    "mlp_local_acc": "MLP, local",
}
"""Labels of accuracies; the local ones have a standard deviation over clients."""


def show_result(result: RunResult) -> None:
    """Print the result of a run in a few lines."""
    row, metrics = result.row, result.metrics
    lines = [f"{result.method} · preset {result.preset} · seed {result.seed} · {result.status}"]
    if metrics["objective"] is not None:
        objective = f"{metrics['objective']:.4f}"
        if metrics["untrained_objective"] is not None:
            objective += f"  (untrained encoder {metrics['untrained_objective']:.4f})"
        lines.append(_entry("objective", objective))
    lines += _accuracies(metrics)
    if metrics["linear_paper_acc"] is not None:
        lines.append(_entry("linear (paper)", percent(metrics["linear_paper_acc"])))
    up, down = row.bytes_up or 0, row.bytes_down or 0
    lines.append(_entry("traffic", f"{size(up)} up, {size(down)} down"))
    lines += [_entry("privacy", text) for text in _privacy(row)]
    lines.append(_entry("time", f"{duration(row.wall_seconds or 0)} on {row.device}"))
    lines.append(_entry("run id", result.run_id))
    if result.measured_from is not None:
        lines.append(_entry("training", f"its weights are those of run {result.measured_from}"))
    lines.append(_entry("stored in", result.paths["run"] or result.paths["store"] or ""))
    emit("\n".join(lines))


def _accuracies(metrics: Mapping[str, float | None]) -> list[str]:
    """Format the accuracies that were measured, beside those of the untrained encoder."""
    lines = []
    for name, label in _PROBES.items():
        value, before = metrics.get(name), metrics.get(f"untrained_{name}")
        if value is None:
            continue
        text = percent(value)
        if (deviation := metrics.get(f"{name}_std")) is not None and name.endswith("_local_acc"):
            text += f" ± {percent(deviation)} over clients"
        if before is not None:
            gain = f"{(value - before) * 100:+.1f} points"
            text += f"  (untrained encoder {percent(before)}, gain {gain})"
        lines.append(_entry(label, text))
    return lines


def _privacy(row: Row) -> list[str]:
    """State what messages reveal, and which epsilon holds."""
    lines = []
    if row.revealing_messages:
        lines.append(f"{row.revealing_messages:,} messages to the server reveal single images")
    elif row.smallest_group is not None:
        lines.append(f"every message combines at least {row.smallest_group} images")
    if row.epsilon_of is not None:
        epsilon = "no epsilon" if row.epsilon is None else f"epsilon {row.epsilon:.3g}"
        lines.append(f"{epsilon} for {row.epsilon_of}, at delta {row.delta:g}, over all rounds")
    return lines


def warnings(row: Row) -> list[str]:
    """List the problems of a finished run: divergence, weights that stay, collapse, contraction."""
    problems: list[str] = []
    metrics = {name: getattr(row, name) for name in METRICS} | json.loads(row.metrics_json or "{}")
    before = {
        name.removeprefix("untrained_"): value
        for name, value in metrics.items()
        if name.startswith("untrained_")
    }
    if row.status == "diverged":
        rounds = f"{row.rounds_done or 0} of {row.num_rounds} rounds"
        problems.append(
            f"the run diverged after {rounds}: loss or weights are not finite, so nothing was"
            " evaluated; try a lower client.lr"
        )
    if row.unmoved:
        problems.append(
            "no weight has moved: all that is measured is that of the encoder before training"
        )
    if row.collapsed:
        problems.append(
            f"the encoder has collapsed: spread of features {metrics['std_ratio'] or 0:.3f}, of"
            f" projections {metrics.get('projection_std_ratio') or 0:.3f} (1 = even, 0 = constant)"
        )
    elif text := contraction(metrics, before):
        problems.append(f"the encoder is narrower than before training: {text}")
    return problems


def show_plan(plan: RunPlan) -> None:
    """Print what a run would do and cost."""
    config, estimate = plan.config, plan.estimate
    data, federation = config.data, config.federation
    rounds = count(federation.num_rounds, "round", comma=False)
    workers = count(estimate.workers, "worker")
    local = plan.local_steps
    steps = spread(local.least, local.median, local.most)
    lines = [
        f"{config.spec} · preset {plan.preset} · seed {config.seed}",
        _entry(
            "data",
            f"{data.name}, {data.num_clients} clients, {data.partition}, alpha {data.alpha:g}",
        ),
        _entry(
            "federation",
            f"{rounds} with {config.cohort_size} clients each,"
            f" local epochs: {config.client.local_epochs}",
        ),
        _entry("steps", f"{estimate.num_steps:,}; {steps} per client and round"),
        *([_entry("", local.idle)] if local.idle else []),
        _entry("time", f"about {duration(estimate.seconds)} with {workers} on {plan.device}"),
        _entry(
            "",
            f"start {duration(estimate.start_seconds)},"
            f" training {duration(estimate.train_seconds)},"
            f" evaluation {duration(estimate.evaluation_seconds)}",
        ),
        _entry("traffic", f"{size(estimate.bytes_up)} up, {size(estimate.bytes_down)} down"),
        _entry("disk", f"{size(estimate.disk_bytes)} while it runs"),
        _entry("run id", plan.run_id + (" (stored already)" if plan.stored else "")),
        *(
            [_entry("training", f"none: the weights of run {plan.measured_from} are evaluated")]
            if plan.measured_from is not None
            else []
        ),
        _entry("store", str(plan.store)),
    ]
    emit("\n".join(lines))


def _entry(label: str, text: str) -> str:
    return f"  {label:<16}{text}"
