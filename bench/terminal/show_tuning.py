"""Studies and sweeps as text: trials, runs, and what they cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.metrics import heading, main_metrics
from fedbench.bench.evaluation.objectives.names import DEFAULT, GATE
from fedbench.bench.terminal.console import emit, emit_notes, note
from fedbench.bench.terminal.show_results import show_reproduction
from fedbench.bench.terminal.tables import show_record, show_records
from fedbench.bench.terminal.units import count, duration, parameters, text

if TYPE_CHECKING:
    from fedbench.bench.experiment.common_options import Settings
    from fedbench.bench.results.leaderboard.confirmed import Confirmed
    from fedbench.bench.results.leaderboard.studies import Correlation, StudyView
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult

_TRIALS = 20  # of more trials, only the best are listed
_RUNS = 100  # of more runs of a sweep, only failed and diverged ones are listed


def show_study(result: StudyResult) -> None:
    """Print the trials of a study and the best of them, or with `dry_run` its expected cost."""
    head = f"study {result.study_id} · {result.spec} · preset {result.preset}"
    if result.estimate is not None:
        trials = f"{result.to_run} to run, {len(result.trials)} in the store already"
        show_record(head, {"trials": trials, "fidelity": result.fidelity})
        show_record("cost", asdict(result.estimate))
        return
    best = "none: no trial gave an objective; mend errors, or narrow the space with --space"
    if result.doubts:
        best = f"none can be told: {result.doubts[0]}; use preset {result.preset!r} as it is"
    if result.best is not None:
        score = text("objective", result.best["objective"])
        best = f"trial {result.best['trial']}, objective {score}: "
        best += parameters(result.best["params"])
        if result.best["params"] == result.preset_params:
            best += f"; these are the values of preset {result.preset!r}"
    elif result.objective.endswith(GATE) and {t["status"] for t in result.trials} == {"refused"}:
        best = "none: the gate refused every trial; no configuration beat not training"
    _show_trials(result)
    _show_confirmed(result.confirmed)
    again = "" if result.repeated is None else "every bit of the stored trials is the same"
    failed = f"{text('', result.kept_errors)}: not run again, since later trials depend on them"
    show_record(
        head,
        {
            "fidelity": result.fidelity,
            "best": best,
            "caution": [*result.doubts[1:], *result.cautions],
            "failed": failed if result.kept_errors else "",
            "watched": _watched([result.correlation] if result.correlation else []),
            "repeated": [*map(str, result.repeated or ())] or again,
            "file": result.config_file,
        },
        sentences=True,
    )


def advice(result: StudyResult, settings: Settings, store: Any) -> str:
    """Say in one sentence what to do after a study that was run with these settings."""
    words = ["fedbench", "run", result.spec, *settings.words(result.preset)]
    words += [] if store is None else ["--store", str(store)]
    command, ended = shlex.join(words), count(len(result.trials), "trial")
    if result.best is None:
        return f"no setting of {ended} can be told from the preset's, so use that: {command}"
    if result.best["params"] == result.preset_params:
        return (
            f"no setting of {ended} scored above the preset's own setting, so use that: {command}"
        )
    told = _told(result.confirmed)
    best = f"trial {result.best['trial']} scored best of {ended}{told and f'; by labels it {told}'}"
    if told == _BEHIND:
        return f"{best}, so use that: {command}"
    return (
        f"{best}; to train with it: {command}"
        f" --config {shlex.quote(str(result.config_file))}; in a sweep: --tuned {result.study_id}"
    )


def _show_confirmed(confirmed: Sequence[Confirmed]) -> None:
    """Compare the best trial with the preset and the worst trial, by labels."""
    records = [
        {
            "configuration": each.name,
            heading(each.metric): _points(each.interval),
            "gain": each.gain and f"{100 * each.gain:+.1f}",
            "best trial is ahead by": _points(each.behind),
            "params": parameters(each.params),
        }
        for each in confirmed
    ]
    if records:
        seeds = list(confirmed[0].values)
        title = f"confirmation · seeds {seeds[0]} to {seeds[-1]}, which the search has not used"
        show_records(records, tuple(records[0]), title=title)
        emit_notes(
            "the search read no label; an interval without 0 is a difference that these seeds show"
        )
    if told := _told(confirmed):
        emit(f"on these seeds the best trial {told}")


_BEHIND = "is behind the preset"


def _told(confirmed: Sequence[Confirmed]) -> str:
    """Say how the best trial compares with the preset by labels; "" if it was not compared."""
    for each in confirmed:
        if "preset" in each.name and each.behind is not None:
            low, high = each.behind
            if low <= 0 <= high:
                return "cannot be told from the preset"
            return "is ahead of the preset" if low > 0 else _BEHIND
    return ""


def _points(interval: tuple[float, float] | None) -> str:
    """Format an interval in points: its middle and its ends."""
    if interval is None:
        return ""
    low, high = (100 * value for value in interval)
    return f"{(low + high) / 2:.1f} [{low:.1f}, {high:.1f}]"


def show_stored_study(view: StudyView) -> None:
    """Print the trials of a study, and the correlation of its objective with watched metrics."""
    state = "" if view.finished_at else " · not finished"
    _show_trials(view)
    _show_confirmed(view.confirmed)
    show_record(
        f"study {view.study_id} · {view.spec} · preset {view.preset} · {view.sampler}{state}",
        {**vars(view), "watched": _watched(view.correlations)},
        ("fidelity", "cautions", "watched", "seconds", "num_bytes"),
        sentences=True,
    )


def _watched(correlations: Sequence[Correlation]) -> list[str]:
    """Describe correlations of the objective with metrics that the search never saw."""
    return [
        f"objective against {c.metric}: Pearson {_interval(c, 'pearson')}, Spearman"
        f" {_interval(c, 'spearman')} over {c.n} trials"
        f"{'' if c.pearson_low is None else ' (95 % intervals)'}"
        for c in correlations
    ]


def show_studies(views: Sequence[StudyView]) -> None:
    """Print one line for each study, with a warning where its best values cannot be trusted."""
    records = []
    if not views:
        note("no study here; `fedbench tune simclr` makes one")
    for view in views:
        knn = [_interval(c, "pearson") for c in view.correlations if c.metric == "knn_acc"]
        records.append({**vars(view), "trials": len(view.trials), "k-NN Pearson": "".join(knn)})
    names = ("study_id", "spec", "preset", "trials", "best_objective", "k-NN Pearson")
    show_records(records, (*names, "seconds", "num_bytes"))
    for view in views:
        for caution in view.cautions:
            emit_notes(f"{view.study_id}: caution: {caution}")


def _show_trials(study: StudyResult | StudyView) -> None:
    """Print trials, the best first, and what encoders score before training, as their measure."""
    from fedbench.bench.tuning.scoring import Scoring  # which loads torch
    from fedbench.bench.tuning.verdict import UNLIKE_COMPUTE

    def place(trial: Mapping[str, Any]) -> tuple[Any, ...]:  # objectives compare at equal rounds
        objective = trial["objective"]
        return objective is None, -trial.get("rounds", 0), -(objective or 0), trial["number"]

    trials = sorted(study.trials, key=place)
    records = [
        {
            **trial,
            **trial["watched"],
            "trial": trial["number"],
            "params": parameters(trial["params"]),
            "notes": trial["error"] or ("no weight moved" if trial.get("unmoved") else ""),
        }
        for trial in trials[:_TRIALS]
    ]
    if len(trials) > _TRIALS:
        note(f"showing the best {_TRIALS} of {len(trials)} trials; --json has all")
    if starts := Scoring(study.objective or DEFAULT).scores(study.untrained):
        low, high = (text("objective", end(starts)) for end in (min, max))
        untrained = f"before training, {count(len(starts), 'seed')}: {low} to {high}"
        mean = sum(starts) / len(starts)
        records.append({"trial": "start", "objective": mean, "params": untrained})
    watched = dict.fromkeys(name for trial in trials for name in trial["watched"])
    trained = [t["images"] for t in trials if t["status"] == "ok" and t.get("images")]
    unlike = (
        ["images"] if max(trained, default=0) > UNLIKE_COMPUTE * min(trained, default=0) else []
    )
    names = ("trial", "rounds", "objective", *watched, *unlike, "params", "status", "seconds")
    names = (*names, "notes")
    show_records(records, names, bold=[True])


def _interval(correlation: Correlation, kind: str) -> str:
    value, low, high = (getattr(correlation, f"{kind}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def show_sweep(result: SweepResult) -> None:
    """Print the runs of a sweep and their counts, or with `dry_run` its cost."""
    planned = count(result.planned, "cell")
    head = f"grid {result.grid} · {planned}: {result.skipped} in the store already"
    if result.estimate is not None:
        weights = f"{result.measured} cells take the weights of runs with the same training"
        shared = {
            "preset": result.preset,
            "methods": ", ".join(dict.fromkeys(cell["method"] for cell in result.cells)),
            "seeds": list(dict.fromkeys(cell["seed"] for cell in result.cells)),
            "tuned": _studies(result.cells),
            "scaled": list(dict.fromkeys(s for cell in result.cells for s in cell["scaled"])),
            "measured": weights if result.measured else "",
        }
        show_record(f"{head}, {result.to_run} to run", shared)
        emit("\n")
        names = ("setting", "least", "most", "idle_clients", "num_clients")
        show_records(local_steps(result.cells), names, title="local steps of a client and round")
        show_record("cost", asdict(result.estimate))
        return
    _show_cells(result.cells)
    done = f"{result.done} done" + (f" ({result.diverged} diverged)" if result.diverged else "")
    emit(f"{head}, {done}, {result.failed} failed, {duration(result.seconds)}")
    if tuned := _studies(result.cells):
        emit(f"tuned: {', '.join(tuned)}")
    for each in result.repeated:
        show_reproduction(each)


def _studies(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """List which study the tuned values of each method are from."""
    return list(dict.fromkeys(f"{c['method']} from {c['study']}" for c in cells if c["study"]))


def local_steps(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return local steps per client and round of each setting, over its methods and seeds."""
    import pandas as pd

    records = [{"setting": parameters(cell["axes"]), **cell["local_steps"]} for cell in cells]
    steps = pd.DataFrame(records).groupby("setting", sort=False)
    columns = {"least": "min", "most": "max", "idle_clients": "max", "num_clients": "first"}
    lines = steps.agg(columns).reset_index().to_dict("records")
    return [{str(name): value for name, value in line.items()} for line in lines]


def _show_cells(cells: Sequence[Mapping[str, Any]]) -> None:
    """Print runs, one per line; if there are many, only failed and diverged ones."""
    if len(cells) > _RUNS:
        cells = [cell for cell in cells if cell["status"] not in ("ok", "planned")]
    records = [{**cell, **cell["axes"], **cell["metrics"]} for cell in cells]
    axes = dict.fromkeys(key for cell in cells for key in cell["axes"])
    shown = main_metrics(name for cell in cells for name in cell["metrics"])
    show_records(records, ("method", *axes, "seed", *shown, "status", "error"))
