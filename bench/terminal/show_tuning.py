"""Studies, merges and reproductions on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedbench.bench.terminal.console import Status, emit, note, show_table
from fedbench.bench.terminal.show_lists import describe_varied
from fedbench.bench.terminal.units import duration, parameters, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbench.bench.results.leaderboard.studies import Correlation, StudyView
    from fedbench.bench.terminal.groups import Cluster, Places, Settings
    from fedbench.bench.tuning.cost import Cost
    from fedbench.bench.tuning.events import Began, Event, TrialDone
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult


_LINES = 8  # running cells shown at a time
_TRIALS = 20  # of more trials, only the best are listed
_NEXT_GRID = "heterogeneity"  # what is worth a sweep after a study
_CELLS = 100  # of more cells, only those that went wrong are listed


class CellProgress:
    """Cells on stderr: those that run, on a terminal; a line for each that ends, in a pipe.

    Args:
        title: what is running.
        quiet: show nothing.
        verbose: a line for each that ends on a terminal, too.
    """

    def __init__(self, title: str, *, quiet: bool = False, verbose: bool = False) -> None:
        self._title, self._quiet, self._verbose = title, quiet, verbose
        self._status = Status(quiet=quiet)
        self._running: dict[str, str] = {}
        self._head = f"{title} · preparing"

    def __enter__(self) -> Self:
        self._status.__enter__()
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        """After everything that happens."""
        from fedbench.bench.tuning.events import Began, TrialProgress, TrialStarted

        if isinstance(event, Began):
            self._begin(event)
        elif isinstance(event, TrialStarted):
            self._running[event.id] = event.label
            self._head = f"{self._title} · {event.done}/{event.total} done"
        elif isinstance(event, TrialProgress):
            loss = "-" if event.loss is None else f"{event.loss:.4f}"
            collapsed = " · collapsed" if event.collapsed else ""
            rounds = f"round {event.round}/{event.total}"
            self._running[event.id] = f"{event.label} · {rounds} · loss {loss}{collapsed}"
        else:
            self._running.pop(event.id, None)
            self._end(event)
        self._draw()

    def _begin(self, event: Began) -> None:
        device = f"{event.gpus:g} GPU each" if event.gpus else "cpu"
        number = "as many as the cluster holds" if event.concurrency is None else event.concurrency
        text = (
            f"{self._title} · {event.total - event.done} to run, {event.done} of {event.total} in"
            f" the store already · {number} at a time, {device}"
        )
        self._head = f"{text} · starting Ray"
        if not (self._status.live or self._quiet):
            note(text)

    def _end(self, event: TrialDone) -> None:
        left = "" if event.eta_seconds is None else f" · {duration(event.eta_seconds)} left"
        self._head = f"{self._title} · {event.done}/{event.total} done{left}"
        shown = not self._status.live or self._verbose or event.status in ("error", "diverged")
        if self._quiet or not shown:
            return
        objective = "" if event.objective is None else f" · objective {event.objective:.4f}"
        why = f" · {event.error}" if event.error else ""
        note(
            f"{event.done}/{event.total} · {event.label} · {event.status}{objective}"
            f" · {duration(event.seconds)}{why}{'' if event.done == event.total else left}"
        )

    def _draw(self) -> None:
        running = list(self._running.values())
        more = [f"  and {len(running) - _LINES} more"] if len(running) > _LINES else []
        self._status.update(self._head, *(f"  {text}" for text in running[:_LINES]), *more)


def show_study(result: StudyResult) -> None:
    """Print the trials of a study and the best of them, or with `dry_run` what it would cost."""
    head = f"study {result.study_id} · {result.spec} · preset {result.preset}"
    if result.estimate is not None:
        emit(
            f"{head}\n  trials   {result.to_run} to run, {len(result.trials)} in the store already"
        )
        emit(_cost(result.estimate))
        return
    show_trials(result.trials)
    emit(head)
    if result.best is not None:
        trial, objective = result.best["trial"], result.best["objective"]
        emit(f"  best     trial {trial}, objective {objective:.4f}")
        emit(f"           {parameters(result.best['params'])}")
    else:
        emit("  best     none: no trial gave an objective; narrow the space with --space")
    if result.kept_errors:
        numbers = ", ".join(map(str, result.kept_errors))
        emit(f"  failed   {numbers}: not run again, since later trials were suggested after them")
    if result.correlation is not None:
        pearson, spearman = (result.correlation[key] for key in ("pearson", "spearman"))
        emit(
            f"  watched  objective against k-NN accuracy: Pearson {_number(pearson, 1, 2) or '-'},"
            f" Spearman {_number(spearman, 1, 2) or '-'} over {result.correlation['n']} trials"
        )
    if result.config_file is not None:
        emit(f"  file     {result.config_file}")


def next_command(result: StudyResult, settings: Settings, places: Places, cluster: Cluster) -> str:
    """The command that uses what a study found, under the options that the study had.

    A sweep; but if a file or the environment sets what its grid varies, which no option can undo,
    a run with the best values.
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


def show_trials(found: Sequence[Mapping[str, Any]]) -> None:
    """Print trials, the best first."""
    trials = sorted(
        found, key=lambda t: (t["objective"] is None, -(t["objective"] or 0), t["number"])
    )
    watched = list(dict.fromkeys(name for trial in trials for name in trial["watched"]))
    header = ["trial", "objective", *watched, "value", "status", "seconds", "notes"]
    rows = [
        [
            str(trial["number"]),
            _number(trial["objective"], 1, 4),
            *(_number(trial["watched"].get(name), 1, 4) for name in watched),
            parameters(trial["params"]),
            trial["status"],
            _number(trial["seconds"], 1, 0),
            trial["error"] or "",
        ]
        for trial in trials[:_TRIALS]
    ]
    if len(trials) > _TRIALS:
        note(f"the best {_TRIALS} of {len(trials)} trials; --json has all")
    show_table(header, rows, bold=[index == 0 for index in range(len(rows))])


def show_sweep(result: SweepResult) -> None:
    """Print the cells of a sweep and their counts."""
    if result.estimate is None:
        _show_cells(result)
    emit(_sweep_text(result))


def _sweep_text(result: SweepResult) -> str:
    """The counts of a sweep, or with `dry_run` what it would do and cost."""
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
    scaled: dict[str, dict[str, None]] = {}  # what follows an axis -> the methods where it does so
    for cell in result.cells:
        for text in cell["scaled"]:
            scaled.setdefault(text, {})[cell["method"]] = None
    return "\n".join(
        [
            f"grid {result.grid} · {result.planned} cells: {result.skipped} in the store already,"
            f" {result.to_run} to run",
            f"  cells    {varied} (preset {result.preset})",
            *(f"           {text}" for text in settings),
            *(f"  scaled   {', '.join(methods)}: {text}" for text, methods in scaled.items()),
            _cost(result.estimate),
        ]
    )


def _cost(cost: Cost) -> str:
    return (
        f"  time     about {duration(cost.hours * 3600)} with {cost.concurrency} at a time:"
        f" start, training and evaluation on {cost.device}\n"
        f"  devices  {duration(cost.device_hours * 3600)} of one device; {_finish(cost)}\n"
        f"{_steps(cost)}"
        f"  traffic  {size(cost.bytes_up)} up, {size(cost.bytes_down)} down\n"
        f"  disk     {size(cost.disk_bytes)} at most"
    )


def _finish(cost: Cost) -> str:
    times = cost.finish_hours.items()
    return ", ".join(f"{number} at a time: {duration(hours * 3600)}" for number, hours in times)


def _steps(cost: Cost) -> str:
    """What was measured, a line for each method, encoder and batch size."""
    return "".join(
        f"  step     {step.method} on {step.backbone}, batch {step.batch_size}:"
        f" {step.seconds * 1000:.3g} ms × {step.steps:,} in {step.cells} runs\n"
        for step in cost.steps
    )


def _show_cells(result: SweepResult) -> None:
    """Print the cells of a sweep, one a line; of a large one those that went wrong."""
    cells = list(result.cells)
    if len(cells) > _CELLS:
        cells = [cell for cell in cells if cell["status"] not in ("ok", "planned")]
    if not cells:
        return
    axes = list(dict.fromkeys(key for cell in cells for key in cell["axes"]))
    columns = _columns(cells)
    header = ["method", *axes, "seed", *columns, "objective", "status", "notes"]
    rows = []
    for cell in cells:
        values = [f"{cell['axes'].get(key, '')}" for key in axes]
        metrics = cell["metrics"]
        numbers = [
            *(_number(metrics.get(name), 100, 1) for name in columns.values()),
            _number(metrics.get("objective"), 1, 4),
        ]
        rows.append([cell["method"], *values, str(cell["seed"]), *numbers, cell["status"]])
        rows[-1].append(cell["error"] or "")
    show_table(header, rows)


def _columns(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Headings and metrics of the accuracies; those of some protocols only where they ran."""
    optional = {
        "linear, local %": "linear_local_acc",
        "MLP %": "mlp_acc",
        "MLP, local %": "mlp_local_acc",
    }
    found = {name for cell in cells for name in cell["metrics"]}
    shown = {title: name for title, name in optional.items() if name in found}
    return {"linear %": "linear_acc", **shown, "k-NN %": "knn_acc"}


def _number(value: float | None, scale: int, digits: int) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def show_studies(views: Sequence[StudyView]) -> None:
    """Print one line per study; what they found goes with the cost."""
    header = ["name", "method", "preset", "trials", "objective", "k-NN Pearson", "time", "traffic"]
    rows = [
        [
            view.study_id,
            view.spec,
            view.preset,
            str(len(view.trials)),
            "" if view.best_objective is None else f"{view.best_objective:.4f}",
            "".join(_interval(c, "pearson") for c in view.correlations if c.metric == "knn_acc"),
            duration(view.seconds),
            size(view.num_bytes),
        ]
        for view in views
    ]
    show_table(header, rows)


def show_stored_study(view: StudyView) -> None:
    """Print the trials of one study, and how well its objective foretold what was watched."""
    show_trials(view.trials)
    state = "" if view.finished_at else " · not finished"
    emit(f"study {view.study_id} · {view.spec} · preset {view.preset} · {view.sampler}{state}")
    for each in view.correlations:
        emit(
            f"  watched  objective against {each.metric}: Pearson {_interval(each, 'pearson')},"
            f" Spearman {_interval(each, 'spearman')} over {each.n} trials (95 % intervals)"
        )
    emit(f"  cost     {duration(view.seconds)}, {size(view.num_bytes)} sent")


def _interval(found: Correlation, kind: str) -> str:
    value, low, high = (getattr(found, f"{kind}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"
