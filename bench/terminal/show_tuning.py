"""Text about studies and sweeps: trials, runs, cost, and the command to run next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.metrics import heading, main_metrics
from fedbench.bench.evaluation.objectives.names import DEFAULT, FINDINGS
from fedbench.bench.terminal.console import emit, note
from fedbench.bench.terminal.show_results import show_reproduction
from fedbench.bench.terminal.tables import show_record, show_records
from fedbench.bench.terminal.units import duration, parameters, size, text

if TYPE_CHECKING:
    from fedbench.bench.results.leaderboard.studies import Correlation, StudyView
    from fedbench.bench.tuning.confirm import Confirmed
    from fedbench.bench.tuning.cost import Cost
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult

_TRIALS = 20  # of more trials, only the best are listed
_RUNS = 100  # of more runs of a sweep, only failed and diverged ones are listed
_COST = (
    *("hours", "concurrency", "device", "device_hours", "finish_hours", "bytes_up", "bytes_down"),
    "disk_bytes",
)


def show_study(result: StudyResult) -> None:
    """Print the trials of a study and the best of them, or with `dry_run` its expected cost."""
    head = f"study {result.study_id} · {result.spec} · preset {result.preset}"
    if result.estimate is not None:
        trials = f"{result.to_run} to run, {len(result.trials)} in the store already"
        show_record(head, {"trials": trials, "fidelity": result.fidelity})
        _show_cost(result.estimate)
        return
    best = "none: no trial gave an objective; narrow the space with --space"
    if result.best is not None:
        score = text("objective", result.best["objective"])
        best = f"trial {result.best['trial']}, objective {score}: "
        best += parameters(result.best["params"])
    elif any(trial["status"] == "refused" for trial in result.trials):
        best = "none: the gate refused every trial; no configuration beat not training"
    _show_trials(result.trials, result.untrained)
    _show_confirmed(result.confirmed)
    again = "" if result.repeated is None else "every bit of the stored trials is the same"
    failed = f"{text('', result.kept_errors)}: not run again, since later trials depend on them"
    show_record(
        head,
        {
            "fidelity": result.fidelity,
            "objective": FINDINGS.get(result.objective, ""),
            "random init": _random_init(result),
            "best": best,
            "caution": result.cautions,
            "failed": failed if result.kept_errors else "",
            "watched": _watched([result.correlation] if result.correlation else []),
            "repeated": [*map(str, result.repeated or ())] or again,
            "file": result.config_file,
        },
    )


def _show_confirmed(confirmed: Sequence[Confirmed]) -> None:
    """Print how the best trial does by labels beside the preset and the worst trial."""
    if not confirmed:
        return
    seeds = list(confirmed[0].values)
    records = [
        {
            "configuration": each.name,
            heading(each.metric): f"{50 * sum(each.interval):.1f} ± {_half(each.interval):.1f}",
            "Δ init": "" if each.gain is None else f"{100 * each.gain:+.1f}",
            "best trial is ahead by": "" if each.behind is None else _ahead(each.behind),
            "params": parameters(each.params),
        }
        for each in confirmed
    ]
    emit(f"confirmation · seeds {seeds[0]} to {seeds[-1]}, which the search has not used")
    show_records(records, tuple(records[0]))
    emit(
        "look at the column before the last: the search read no label; an interval without 0 is a"
        " difference that these seeds show"
    )


def _half(interval: tuple[float, float]) -> float:
    return 50 * (interval[1] - interval[0])


def _ahead(interval: tuple[float, float]) -> str:
    low, high = (100 * value for value in interval)
    return f"{(low + high) / 2:+.1f} [{low:+.1f}, {high:+.1f}]"


def show_stored_study(view: StudyView) -> None:
    """Print the trials of a study, and the correlation of its objective with watched metrics."""
    state = "" if view.finished_at else " · not finished"
    _show_trials(view.trials, view.untrained)
    show_record(
        f"study {view.study_id} · {view.spec} · preset {view.preset} · {view.sampler}{state}",
        {
            "fidelity": view.fidelity,
            "random init": _random_init(view),
            "caution": view.cautions,
            "watched": _watched(view.correlations),
            "cost": f"{duration(view.seconds)}, {size(view.num_bytes)} sent",
        },
    )


def _watched(correlations: Iterable[Correlation]) -> list[str]:
    """Describe correlations of the objective with metrics that the search never saw."""
    return [
        f"objective against {c.metric}: Pearson {_interval(c, 'pearson')}, Spearman"
        f" {_interval(c, 'spearman')} over {c.n} trials (95 % intervals)"
        for c in correlations
    ]


def show_studies(views: Sequence[StudyView]) -> None:
    """Print one line for each study, and why not to trust its best values."""
    records = [
        {
            **vars(view),
            "trials": len(view.trials),
            "k-NN Pearson": "".join(
                _interval(c, "pearson") for c in view.correlations if c.metric == "knn_acc"
            ),
        }
        for view in views
    ]
    names = ("study_id", "spec", "preset", "trials", "best_objective", "k-NN Pearson")
    show_records(records, (*names, "seconds", "num_bytes"))
    for view in views:
        for caution in view.cautions:
            emit(f"{view.study_id}: caution: {caution}")


def _show_trials(
    trials: Sequence[Mapping[str, Any]], untrained: Sequence[Mapping[str, float]]
) -> None:
    """Print trials, the best first; `untrained` has the metrics of encoders at random init."""

    def place(trial: Mapping[str, Any]) -> tuple[Any, ...]:  # objectives compare at equal rounds
        objective = trial["objective"]
        return objective is None, -trial.get("rounds", 0), -(objective or 0), trial["number"]

    records = [
        {
            **trial,
            **trial["watched"],
            "trial": trial["number"],
            "params": parameters(trial["params"]),
            "notes": trial["error"] or _notes(trial, untrained),
        }
        for trial in sorted(trials, key=place)[:_TRIALS]
    ]
    if len(trials) > _TRIALS:
        note(f"showing the best {_TRIALS} of {len(trials)} trials; --json has all")
    watched = _distinct(name for trial in trials for name in trial["watched"])
    names = ("trial", "rounds", "objective", *watched, "params", "status", "seconds", "notes")
    show_records(records, names, bold=[True])


def _notes(trial: Mapping[str, Any], untrained: Sequence[Mapping[str, float]]) -> str:
    from fedbench.bench.tuning.random_init import shrinkage_of

    shrunk = "shrunk" if shrinkage_of(trial, untrained) else ""
    return ", ".join(filter(None, ["no weight moved" if trial.get("unmoved") else "", shrunk]))


def _random_init(study: StudyResult | StudyView) -> str:
    """Describe the objective of encoders at random init, with which trials are compared."""
    from fedbench.bench.tuning.random_init import noise_limit

    name = study.objective or DEFAULT
    if name == DEFAULT:  # without torch
        objectives = [values["objective"] for values in study.untrained if "objective" in values]
    else:
        from fedbench.bench.tuning.scoring import Scoring

        objectives = Scoring(name).scores(study.untrained)
    if not objectives:
        return ""
    limit, average = noise_limit(objectives), sum(objectives) / len(objectives)
    further = "" if limit is None else f", of a further one up to {text('', limit)}"
    return f"{name} of {len(objectives)} encoders {text('', average)}{further}"


def _interval(correlation: Correlation, kind: str) -> str:
    value, low, high = (getattr(correlation, f"{kind}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def show_sweep(result: SweepResult, *, ids: bool = False) -> None:
    """Print the runs of a sweep and their counts, or with `dry_run` its expected cost.

    Args:
        result: what to print.
        ids: begin each line with the short id of its run.
    """
    head = f"grid {result.grid} · {result.planned} cells: {result.skipped} in the store already"
    if result.estimate is not None:
        show_record(f"{head}, {result.to_run} to run", plan_record(result))
        emit("\n")
        names = ("setting", "least", "most", "idle_clients", "num_clients")
        show_records(local_steps(result.cells), names, title="local steps of a client and round")
        _show_cost(result.estimate)
        return
    _show_cells(result.cells, ids=ids)
    done = f"{result.done} done" + (f" ({result.diverged} diverged)" if result.diverged else "")
    emit(f"{head}, {done}, {result.failed} failed, {duration(result.seconds)}")
    for each in result.repeated:
        show_reproduction(each)


def plan_record(result: SweepResult) -> dict[str, Any]:
    """Describe what the runs of a planned sweep differ in."""
    cells = result.cells
    points = _distinct(cell["axes"] for cell in cells)
    axes = {
        key: _distinct(point[key] for point in points if key in point)
        for key in _distinct(key for point in points for key in point)
    }
    if len(points) != math.prod(map(len, axes.values())):  # no product of lists
        axes = {"settings": [parameters(point) or "none" for point in points]}
    by_scaling: dict[str, dict[str, None]] = {}  # text about a scaled value -> its methods
    for cell in cells:
        for scaled in cell["scaled"]:
            by_scaling.setdefault(scaled, {})[cell["method"]] = None
    weights = f"{result.measured} cells take the weights of runs with the same training"
    return {
        "preset": result.preset,
        "methods": ", ".join(_distinct(cell["method"] for cell in cells)),
        "seeds": _distinct(cell["seed"] for cell in cells),
        **axes,
        "scaled": [f"{', '.join(methods)}: {scaled}" for scaled, methods in by_scaling.items()],
        "measured": weights if result.measured else "",
    }


def local_steps(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return local steps per client and round of each setting, over its methods and seeds."""
    import pandas as pd

    records = [{"setting": parameters(cell["axes"]), **cell["local_steps"]} for cell in cells]
    steps = pd.DataFrame(records).groupby("setting", sort=False)
    columns = {"least": "min", "most": "max", "idle_clients": "max", "num_clients": "first"}
    lines = steps.agg(columns).reset_index().to_dict("records")
    return [{str(name): value for name, value in line.items()} for line in lines]


def _distinct(items: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def _show_cost(cost: Cost) -> None:
    record = asdict(cost)
    show_record("cost", record, _COST)
    emit("\n")
    show_records(record["steps"], ("method", "backbone", "batch_size", "seconds", "steps", "cells"))


def _show_cells(cells: Sequence[Mapping[str, Any]], *, ids: bool) -> None:
    """Print runs, one per line; if there are many, only failed and diverged ones."""
    from fedbench.bench.results.listing import short_ids

    short = short_ids([cell["run_id"] for cell in cells]) if ids else {}
    if len(cells) > _RUNS:
        cells = [cell for cell in cells if cell["status"] not in ("ok", "planned")]
    records = [
        {**cell, **cell["axes"], **cell["metrics"], "id": short.get(cell["run_id"])}
        for cell in cells
    ]
    axes = _distinct(key for cell in cells for key in cell["axes"])
    shown = main_metrics(name for cell in cells for name in cell["metrics"])
    if records:
        show_records(records, ("id", "method", *axes, "seed", *shown, "status", "error"))
