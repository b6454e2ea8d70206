"""What a person sees of one run: its rounds as they pass, its plan, its outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fedbench.bench.terminal.console import Status, note
from fedbench.bench.terminal.units import duration, percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbench.bench.config import RunConfig
    from fedbench.bench.results.store.row import Row
    from fedbench.bench.runs.run import RunPlan, RunResult
    from fedbench.bench.training.history import RoundRecord


_EVERY_LINE = 20  # up to so many rounds, each gets its line in a pipe
_SECONDS = 5.0  # beyond, one line per so many seconds


class RunProgress:
    """Rounds on stderr: one line that moves on a terminal, plain lines in a pipe.

    Args:
        title: what is running.
        quiet: show nothing.
        verbose: a line for every round, with all terms of the loss.
    """

    def __init__(self, title: str, *, quiet: bool = False, verbose: bool = False) -> None:
        self._title, self._quiet, self._verbose = title, quiet, verbose
        self._status = Status(quiet=quiet or verbose)
        self._last_line = float("-inf")
        self._rounds = 0
        self._seconds = 0.0
        self._bytes = 0

    def __enter__(self) -> Self:
        self._status.__enter__()
        self._status.update(f"{self._title} · preparing")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def start(self, config: RunConfig, devices: Sequence[str]) -> None:
        """At once: what begins."""
        data, federation = config.data, config.federation
        subset = "" if data.train_subset is None else f" ({data.train_subset:,} images)"
        self._title += f" · {data.public_name}{subset}"
        where = f"{_count(len(devices), 'worker')} on {', '.join(dict.fromkeys(devices))}"
        text = (
            f"{self._title} · {data.num_clients} clients, {config.cohort_size} in each round ·"
            f" {_count(federation.num_rounds, 'round')} · {where}"
        )
        self._status.update(text)
        if not (self._status.live or self._quiet):
            note(text)

    def resume(self, done: int, total: int) -> None:
        """An earlier attempt is continued."""
        after = f"round {done + 1}" if done < total else "the evaluation"
        text = f"resuming at {after}: {done} of {total} rounds are done"
        self._status.update(f"{self._title} · {text}")
        if not self._quiet:
            note(text)

    def __call__(self, record: RoundRecord, total: int) -> None:
        """After every round."""
        traffic = record.bytes_up + record.bytes_down
        if self._rounds == 0:  # rounds of an earlier, interrupted attempt
            self._bytes = traffic * record.round_index
        self._rounds += 1
        self._seconds += record.seconds
        self._bytes += traffic
        now = time.monotonic()
        line = self._line(record, total)
        if self._status.live:
            self._status.update(f"{self._title} · {line}")
        elif not self._quiet and self._due(record, total, now):
            self._last_line = now
            note(line)

    def _due(self, record: RoundRecord, total: int, now: float) -> bool:
        last = record.round_index + 1 == total
        few = total <= _EVERY_LINE
        return self._verbose or few or last or now - self._last_line >= _SECONDS

    def _line(self, record: RoundRecord, total: int) -> str:
        done = record.round_index + 1
        loss = "-" if record.loss is None else f"{record.loss:.4f}"
        parts = [
            f"round {done}/{total}",
            f"loss {loss}",
            f"spread {record.std_ratio:.2f}" + (" (collapsed)" if record.collapsed else ""),
            size(self._bytes),
        ]
        if self._verbose:
            parts += [f"{name} {value:.4f}" for name, value in record.parts.items()]
        parts += [f"{name} {value:.4f}" for name, value in record.metrics.items()]
        left = self._seconds / self._rounds * (total - done)
        parts.append(f"{duration(left)} left" if done < total else "evaluating")
        return " · ".join(parts)


_WITH_GAIN = {
    "knn_acc": "k-NN",
    "linear_acc": "linear probe",
    "finetune_1pct_acc": "fine-tuned 1 %",
    "finetune_10pct_acc": "fine-tuned 10 %",
}


def summary(result: RunResult) -> str:
    """The outcome of a run in a few lines of plain text."""
    row, metrics = result.row, result.metrics
    head = f"{result.method} · preset {result.preset} · seed {result.seed} · {result.status}"
    lines = [head]
    if metrics["objective"] is not None:
        objective = f"{metrics['objective']:.4f}"
        if metrics["untrained_objective"] is not None:
            objective += f"  (untrained encoder {metrics['untrained_objective']:.4f})"
        lines.append(_entry("objective", objective))
    for name, label in _WITH_GAIN.items():
        value, before = metrics.get(name), metrics.get(f"untrained_{name}")
        if value is not None:
            text = percent(value)
            if before is not None:
                gain = f"{(value - before) * 100:+.1f} points"
                text += f"  (untrained encoder {percent(before)}, gain {gain})"
            lines.append(_entry(label, text))
    lines += _client_lines(metrics)
    if metrics["linear_paper_acc"] is not None:
        lines.append(_entry("linear (paper)", percent(metrics["linear_paper_acc"])))
    up, down = row.bytes_up or 0, row.bytes_down or 0
    per_gb = result.cost["linear_acc_per_gb"]
    worth = "" if per_gb is None else f"  (linear probe per GB: {per_gb * 100:,.0f} points)"
    lines.append(_entry("traffic", f"{size(up)} up, {size(down)} down{worth}"))
    lines += [_entry("privacy", text) for text in _privacy(row)]
    lines.append(_entry("time", f"{duration(row.wall_seconds or 0)} on {row.device}"))
    lines.append(_entry("run id", result.run_id))
    lines.append(_entry("stored in", result.paths["run"] or result.paths["store"] or ""))
    return "\n".join(lines)


def _client_lines(metrics: Mapping[str, float | None]) -> list[str]:
    """The MLP probe, and both probes on clients' own test images, where they were measured."""
    labels = {
        "mlp_acc": "MLP probe",
        "linear_local_acc": "linear, local",
        "mlp_local_acc": "MLP, local",
    }
    lines = []
    for name, label in labels.items():
        value, spread = metrics.get(name), metrics.get(f"{name}_std")
        before = metrics.get(f"untrained_{name}")
        if value is None:
            continue
        text = percent(value)
        if spread is not None:
            text += f" ± {percent(spread)} over clients"
        if before is not None:
            text += f"  (untrained encoder {percent(before)})"
        lines.append(_entry(label, text))
    return lines


def _privacy(row: Row) -> list[str]:
    """What messages reveal, and what epsilon holds."""
    found = []
    if row.revealing_messages:
        found.append(f"{row.revealing_messages:,} messages to the server show single images")
    elif row.smallest_group is not None:
        found.append(f"every message stands for {row.smallest_group} images or more")
    if row.epsilon_of is not None:
        holds = "no epsilon" if row.epsilon is None else f"epsilon {row.epsilon:.3g}"
        found.append(f"{holds} for {row.epsilon_of}, at delta {row.delta:g}, all rounds together")
    return found


def warnings(result: RunResult) -> list[str]:
    """What went wrong in a run that has ended."""
    found = []
    if result.status == "diverged":
        rounds = f"{result.row.rounds_done or 0} of {result.row.num_rounds} rounds"
        found.append(
            f"the run diverged after {rounds}: loss or weights are not finite, nothing was"
            " evaluated; try a lower client.lr"
        )
    if result.collapsed:
        metrics = result.metrics
        found.append(
            f"the encoder has collapsed: spread of features {metrics['std_ratio'] or 0:.3f}, of"
            f" projections {metrics.get('projection_std_ratio') or 0:.3f} (1 = even, 0 = constant)"
        )
    return found


def plan_text(plan: RunPlan) -> str:
    """What a run would do and cost."""
    config, estimate = plan.config, plan.estimate
    data, federation = config.data, config.federation
    number = _count(estimate.workers, "worker")
    parts = [
        f"start {duration(estimate.start_seconds)}",
        f"training {duration(estimate.train_seconds)}",
        f"evaluation {duration(estimate.evaluation_seconds)}",
    ]
    lines = [
        f"{config.spec} · preset {plan.preset} · seed {config.seed}",
        _entry(
            "data",
            f"{data.name}, {data.num_clients} clients, {data.partition}, alpha {data.alpha:g}",
        ),
        _entry(
            "federation",
            f"{_count(federation.num_rounds, 'round')} with {config.cohort_size} clients each,"
            f" local epochs: {config.client.local_epochs}",
        ),
        _entry("steps", f"{estimate.num_steps:,}"),
        _entry("time", f"about {duration(estimate.seconds)} with {number} on {plan.device}"),
        _entry("", ", ".join(parts)),
        _entry("traffic", f"{size(estimate.bytes_up)} up, {size(estimate.bytes_down)} down"),
        _entry("disk", f"{size(estimate.disk_bytes)} while it runs"),
        _entry("run id", plan.run_id + (" (stored already)" if plan.stored else "")),
        _entry("store", str(plan.store)),
    ]
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _entry(label: str, text: str) -> str:
    return f"  {label:<16}{text}"
