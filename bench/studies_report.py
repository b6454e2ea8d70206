"""Studies, merges and reproductions on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.bench.cells_report import show_trials
from fedbench.bench.console import emit, show_table
from fedbench.bench.wording import count, duration, size

if TYPE_CHECKING:
    from fedbench.bench.reproduce import Reproduction
    from fedbench.bench.results.merge import Merged
    from fedbench.bench.results.studies import Correlation, StudyView

_DIFFERENCES, _WIDTH = 20, 60


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


def show_study(view: StudyView) -> None:
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


def merged_text(merged: Merged, *, dry_run: bool) -> str:
    """What a merge did, in one line."""
    would = "would be " if dry_run else ""
    replaced = f", {count(merged.rows_replaced, 'failed one')} replaced"
    return (
        f"{count(merged.rows_added, 'row')} {would}added{replaced if merged.rows_replaced else ''},"
        f" {merged.rows_same} there already;"
        f" {count(merged.trials_added, 'trial')} {would}added, {merged.trials_same} there already"
    )


def show_reproduction(found: Reproduction) -> None:
    """Print whether every bit agrees, and what does not."""
    what = f"{found.row_id} · {found.method} · seed {found.seed}"
    compared = f"{found.num_results} values of the row, {count(found.num_rounds, 'round')}"
    if found.same:
        emit(f"{what}: reproduced, every bit the same ({compared})")
    else:
        emit(f"{what}: not reproduced, {count(len(found.differences), 'difference')} ({compared})")
        shown = found.differences[:_DIFFERENCES]
        rows = [[d.name, _short(d.first), _short(d.second)] for d in shown]
        show_table(["name", "stored", "now"], rows)
    if found.environment:
        rows = [
            [name, *(str(value or "") for value in pair)]
            for name, pair in found.environment.items()
        ]
        show_table(["name", "stored", "now"], rows, title="made with")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
