"""Text about studies and sweeps: trials, cells, cost, and the command to run next."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.objectives.of_clients import DEFAULT
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.terminal.console import emit, note, show_table
from fedbench.bench.terminal.show_lists import describe_cells
from fedbench.bench.terminal.units import count, duration, parameters, size, spread

if TYPE_CHECKING:
    from fedbench.bench.results.leaderboard.studies import Correlation, Studies, StudyView
    from fedbench.bench.terminal.groups import Cluster, Places, Settings
    from fedbench.bench.tuning.cost import Cost
    from fedbench.bench.tuning.dashboard import Journal
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult

_TRIALS = 20  # of more trials, only the best are listed
_CELLS = 100  # of more cells, only failed and diverged ones are listed
_NEXT_GRID = "heterogeneity"  # suggested for a sweep after a study
_OPTIONAL_COLUMNS = {
    "linear, local %": "linear_local_acc",
    "MLP %": "mlp_acc",
    "MLP, local %": "mlp_local_acc",
}
"""Headings and metrics of accuracies that a table has only where a cell measured them."""


def show_study(result: StudyResult) -> None:
    """Print the trials of a study and the best of them, or with `dry_run` its expected cost."""
    head = f"study {result.study_id} · {result.spec} · preset {result.preset}"
    if result.estimate is not None:
        stored = len(result.trials)
        emit(f"{head}\n  trials   {result.to_run} to run, {stored} in the store already")
        _show_fidelity(result.fidelity)
        emit(_cost(result.estimate))
        return
    show_trials(result.trials, result.untrained)
    emit(head)
    _show_fidelity(result.fidelity)
    _show_untrained(result.untrained, result.objective)
    if result.best is not None:
        trial, objective = result.best["trial"], result.best["objective"]
        emit(f"  best     trial {trial}, objective {objective:.4f}")
        emit(f"           {parameters(result.best['params'])}")
        for text in result.cautions:
            emit(f"  caution  {text}")
    elif any(trial["status"] == "refused" for trial in result.trials):
        emit("  best     none: the gate refused every trial; no configuration beat not training")
    else:
        emit("  best     none: no trial gave an objective; narrow the space with --space")
    if result.kept_errors:
        numbers = ", ".join(map(str, result.kept_errors))
        emit(f"  failed   {numbers}: not run again, because later trials were suggested after them")
    if result.correlation is not None:
        pearson, spearman = (result.correlation[key] for key in ("pearson", "spearman"))
        emit(
            f"  watched  objective against k-NN accuracy: Pearson {_number(pearson, 1, 2) or '-'},"
            f" Spearman {_number(spearman, 1, 2) or '-'} over {result.correlation['n']} trials"
        )
    if result.config_file is not None:
        emit(f"  file     {result.config_file}")


def _show_fidelity(fidelity: Mapping[str, Any] | None) -> None:
    """Print how trials fall; nothing if every trial is run to its end."""
    if fidelity is not None:
        rounds, sizes = (", ".join(map(str, fidelity[key])) for key in ("rounds", "sizes"))
        emit(
            f"  fidelity {fidelity['name']}: brackets of {sizes} trials, of which one in"
            f" {fidelity['eta']} goes on; rungs end after rounds {rounds}"
        )


def next_command(result: StudyResult, settings: Settings, places: Places, cluster: Cluster) -> str:
    """Return the command that uses the best values of a study, with the options of the study.

    It is a sweep. If a file or the environment sets what the sweep's grid varies, which no option
    can undo, it is a run.
    """
    from fedbench.bench.runs.resolve import user_keys
    from fedbench.bench.tuning.grid import load_grid

    axes, _, _ = load_grid(_NEXT_GRID).lists(result.preset)
    if {*axes, "seed"} & {*user_keys(result.spec, settings.config or ())}:
        best = ["--config", str(result.config_file)]
        words = ["run", result.spec, *settings.words(), *best, *places.words()]
    else:
        words = ["sweep", "--grid", _NEXT_GRID, "--methods", result.spec]
        words += ["--tuned", result.study_id, *settings.words(without=axes)]
        words += [*places.words(), *cluster.words()]
    return shlex.join(["fedbench", *words])


def show_trials(
    trials: Sequence[Mapping[str, Any]], untrained: Sequence[Mapping[str, float]] = ()
) -> None:
    """Print trials, the best first.

    Args:
        trials: of a study.
        untrained: figures of encoders without training.
    """
    from fedbench.bench.tuning.untrained import contraction_of

    trials = sorted(
        trials,
        key=lambda t: (
            t["objective"] is None,
            -t.get("rounds", 0),  # objectives after other rounds do not compare
            -(t["objective"] or 0),
            t["number"],
        ),
    )
    by_rung = any("rounds" in trial for trial in trials)
    watched = list(dict.fromkeys(name for trial in trials for name in trial["watched"]))
    header = ["trial", *(["rounds"] if by_rung else []), "objective", *watched]
    header += ["value", "status", "seconds", "notes"]
    rows = [
        [
            str(trial["number"]),
            *([str(trial.get("rounds", ""))] if by_rung else []),
            _number(trial["objective"], 1, 4),
            *(_number(trial["watched"].get(name), 1, 4) for name in watched),
            parameters(trial["params"]),
            trial["status"],
            _number(trial["seconds"], 1, 0),
            trial["error"] or ("contracted" if contraction_of(trial, untrained) else ""),
        ]
        for trial in trials[:_TRIALS]
    ]
    if len(trials) > _TRIALS:
        note(f"showing the best {_TRIALS} of {len(trials)} trials; --json has all")
    show_table(header, rows, bold=[index == 0 for index in range(len(rows))])


def _show_untrained(untrained: Sequence[Mapping[str, float]], objective: str) -> None:
    """Print the objective of encoders without training, beside which trials are judged."""
    from fedbench.bench.tuning.untrained import noise_limit

    if objective == DEFAULT:  # without torch
        objectives = [figures["objective"] for figures in untrained if "objective" in figures]
    else:
        from fedbench.bench.tuning.scoring import Scoring

        emit(f"  by       {objective}")
        objectives = Scoring(objective).scores(untrained)
    if objectives:
        limit = noise_limit(objectives)
        further = "" if limit is None else f", of a further one up to {limit:.4f}"
        average = sum(objectives) / len(objectives)
        emit(f"  before   objective of {len(objectives)} untrained encoders {average:.4f}{further}")


def show_sweep(result: SweepResult, *, ids: bool = False) -> None:
    """Print the cells of a sweep and their counts, or with `dry_run` its expected cost.

    Args:
        result: what to print.
        ids: begin each cell with the short id of its run.
    """
    if result.estimate is None:
        _show_cells(result.cells, ids=ids)
    emit(sweep_text(result))


def _measured(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line about the cells to run that need no training; none without any."""
    cells = [c for c in cells if c["status"] == "planned" and c["measured_from"] is not None]
    if not cells:
        return []
    shown = ", ".join(f"{cell['row_id']} from {cell['measured_from']}" for cell in cells[:2])
    more = ", …" if len(cells) > 2 else ""
    return [
        f"  measured {len(cells)} from the weights of runs with the same training: {shown}{more}"
    ]


def sweep_text(result: SweepResult) -> str:
    """Return the counts of a sweep, or with `dry_run` what it would do and cost."""
    if result.estimate is None:
        diverged = f" ({result.diverged} diverged)" if result.diverged else ""
        parts = [f"{result.skipped} in the store already", f"{result.done} done{diverged}"]
        parts += [f"{result.failed} failed", duration(result.seconds)]
        if result.predicted is not None:
            expected = result.predicted.hours * 3600
            ratio = result.seconds / expected
            parts[-1] += f" (predicted {duration(expected)}: {ratio:.2f} times as long)"
        return f"grid {result.grid} · {result.planned} cells: {', '.join(parts)}"
    varied, settings = describe_varied(result.cells)
    scaled: dict[str, dict[str, None]] = {}  # text about a scaled value -> its methods
    for cell in result.cells:
        for text in cell["scaled"]:
            scaled.setdefault(text, {})[cell["method"]] = None
    return "\n".join(
        [
            f"grid {result.grid} · {result.planned} cells: {result.skipped} in the store already,"
            f" {result.to_run} to run",
            *_measured(result.cells),
            f"  cells    {varied} (preset {result.preset})",
            *(f"           {text}" for text in settings),
            *(f"  scaled   {', '.join(methods)}: {text}" for text, methods in scaled.items()),
            *_steps(result.cells),
            _cost(result.estimate),
        ]
    )


def _steps(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe local steps per client and round, and clients that never train.

    One line for all methods and settings that have the same; numbers are over their seeds.
    """
    by_line: dict[str, list[Mapping[str, Any]]] = {}  # method and setting -> its seeds
    for cell in cells:
        setting = parameters({k.rpartition(".")[2]: v for k, v in cell["axes"].items()})
        by_line.setdefault(f"{cell['method']} {setting}".rstrip(), []).append(cell["local_steps"])
    lines: dict[str, list[str]] = {}  # text about steps -> methods and settings
    for line, steps in by_line.items():
        median = statistics.median(step["median"] for step in steps)
        least, most = (f(s[k] for s in steps) for f, k in ((min, "least"), (max, "most")))
        text = f"{spread(least, median, most)} per client and round"
        if idle := max(step["idle_clients"] for step in steps):
            text += f"; {idle:,} of {steps[0]['num_clients']:,} clients never train"
        lines.setdefault(text, []).append(line)
    return [
        f"  local    {text}: {'all cells' if len(names) == len(by_line) else '; '.join(names)}"
        for text, names in lines.items()
    ]


def describe_varied(cells: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Describe what the cells of a sweep differ in.

    Returns:
        One line, and a line for each setting if the settings are not a product of lists.

    >>> points = [{"a.kind": "x"}, {"a.kind": "y", "a.size": 2}]
    >>> describe_varied([{"axes": axes, "seed": 0, "method": "m"} for axes in points])
    ('2 settings × seed 0 × m', ['a.kind=x', 'a.kind=y a.size=2'])
    """

    def distinct(items: Iterable[Any]) -> list[Any]:
        return list(dict.fromkeys(items))

    def settings_of(keys: Sequence[str]) -> list[tuple[tuple[str, Any], ...]]:
        return distinct(tuple((key, p[key]) for key in keys if key in p) for p in points)

    if not cells:
        return "none", []
    points = [cell["axes"] for cell in cells]  # not all have the same names
    keys = distinct(key for point in points for key in point)
    axes = {key: distinct(point[key] for point in points if key in point) for key in keys}
    free = {  # axes whose values are combined with every setting of the others
        key: axes[key]
        for key in keys
        if all(key in point for point in points)
        and len(axes[key]) * len(settings_of([k for k in keys if k != key]))
        == len(settings_of(keys))
    }
    settings = settings_of([key for key in keys if key not in free])
    seeds, methods = (distinct(cell[key] for cell in cells) for key in ("seed", "method"))
    names = f": {', '.join(methods)}" if len(methods) > 1 else ""
    line = describe_cells(free, seeds, methods, len(settings)) + names
    combinations = math.prod(map(len, (*free.values(), settings, seeds, methods)))
    if len(cells) < combinations:  # some are excluded, or are for one method only
        line = f"{len(cells)} of the {combinations:,} combinations of {line}"
    return line, [parameters(dict(setting)) for setting in settings if setting]


def _cost(cost: Cost) -> str:
    steps = (  # one line for each method, encoder and batch size that was measured
        f"  step     {step.method} on {step.backbone}, batch {step.batch_size}:"
        f" {step.seconds * 1000:.3g} ms × {step.steps:,} in {step.cells} runs"
        for step in cost.steps
    )
    finish = (
        f"{number} at a time: {duration(hours * 3600)}"
        for number, hours in cost.finish_hours.items()
    )
    return "\n".join(
        [
            f"  time     about {duration(cost.hours * 3600)} with {cost.concurrency} at a time:"
            f" start, training and evaluation on {cost.device}",
            f"  devices  {duration(cost.device_hours * 3600)} on one device; {', '.join(finish)}",
            *steps,
            f"  traffic  {size(cost.bytes_up)} up, {size(cost.bytes_down)} down",
            f"  disk     {size(cost.disk_bytes)} at most",
        ]
    )


def _show_cells(cells: Sequence[Mapping[str, Any]], *, ids: bool) -> None:
    """Print cells, one per line; if there are many, only failed and diverged ones."""
    from fedbench.bench.results.listing import short_ids

    short = short_ids([cell["row_id"] for cell in cells]) if ids else {}
    if len(cells) > _CELLS:
        cells = [cell for cell in cells if cell["status"] not in ("ok", "planned")]
    if not cells:
        return
    axes = list(dict.fromkeys(key for cell in cells for key in cell["axes"]))
    measured = {name for cell in cells for name in cell["metrics"]}
    optional = {title: name for title, name in _OPTIONAL_COLUMNS.items() if name in measured}
    columns = {"linear %": "linear_acc", **optional, "k-NN %": "knn_acc"}
    header = [*(["id"] if ids else []), "method", *axes, "seed", *columns]
    header += ["objective", "status", "notes"]
    rows = [
        [
            *([short[cell["row_id"]]] if ids else []),
            cell["method"],
            *(f"{cell['axes'].get(key, '')}" for key in axes),
            str(cell["seed"]),
            *(_number(cell["metrics"].get(name), 100, 1) for name in columns.values()),
            _number(cell["metrics"].get("objective"), 1, 4),
            cell["status"],
            cell["error"] or "",
        ]
        for cell in cells
    ]
    show_table(header, rows)


def _number(value: float | None, scale: int, digits: int) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def show_studies(views: Sequence[StudyView]) -> None:
    """Print one line for each study."""
    header = ["name", "method", "preset", "trials", "objective", "k-NN Pearson", "time", "traffic"]
    rows = [
        [
            view.study_id,
            view.spec,
            view.preset,
            str(len(view.trials)),
            _number(view.best_objective, 1, 4),
            "".join(_interval(c, "pearson") for c in view.correlations if c.metric == "knn_acc"),
            duration(view.seconds),
            size(view.num_bytes),
        ]
        for view in views
    ]
    show_table(header, rows)
    for view in views:
        for text in view.cautions:
            emit(f"{view.study_id}: caution: {text}")


def choose_study(views: Studies, study_id: str) -> StudyView:
    """Return the study with an id.

    Raises:
        UnknownNameError: if there is none.
    """
    by_id = {view.study_id: view for view in views}
    if study_id not in by_id:
        raise UnknownNameError("study", study_id, by_id)
    return by_id[study_id]


def show_stored_study(view: StudyView) -> None:
    """Print the trials of a study, and the correlation of its objective with watched metrics."""
    show_trials(view.trials, view.untrained)
    state = "" if view.finished_at else " · not finished"
    emit(f"study {view.study_id} · {view.spec} · preset {view.preset} · {view.sampler}{state}")
    _show_fidelity(view.fidelity)
    _show_untrained(view.untrained, view.objective or DEFAULT)
    for text in view.cautions:
        emit(f"  caution  {text}")
    for correlation in view.correlations:
        emit(
            f"  watched  objective against {correlation.metric}: Pearson"
            f" {_interval(correlation, 'pearson')}, Spearman {_interval(correlation, 'spearman')}"
            f" over {correlation.n} trials (95 % intervals)"
        )
    emit(f"  cost     {duration(view.seconds)}, {size(view.num_bytes)} sent")


def _interval(correlation: Correlation, kind: str) -> str:
    value, low, high = (getattr(correlation, f"{kind}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def show_journal(journal: Journal) -> None:
    """Print the file of a journal of Optuna, and its numbers of studies and trials."""
    studies = count(len(journal.studies), "study", "studies")
    emit(f"{journal.file} · {studies}, {count(journal.num_trials, 'trial')}")
