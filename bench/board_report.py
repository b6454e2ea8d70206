"""A leaderboard on the terminal or in one of its text formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.bench.console import emit, emit_json, show_table
from fedbench.bench.results.formats import (
    plain_cells,
    to_csv,
    to_latex,
    to_markdown,
    visible_columns,
)

if TYPE_CHECKING:
    from fedbench.bench.records import Ranking
    from fedbench.bench.results.leaderboard import Group


def show(ranking: Ranking, form: str, *, quiet: bool = False) -> None:
    """Print a ranking to stdout.

    Args:
        ranking: what to print.
        quiet: leave out the explanation below the tables.
        form: `table`, `json`, `csv`, `markdown` or `latex`.
    """
    board = ranking.board
    if form == "json":
        emit_json(ranking.as_dict())
    elif form == "csv":
        emit(to_csv(board))
    elif form == "markdown":
        emit(to_markdown(board))
    elif form == "latex":
        emit(to_latex(board))
    else:
        for index, group in enumerate(board.groups):
            if index:
                emit("\n")
            _show_group(group)
        if board.groups and not quiet and (legend := _legend(ranking)):
            emit(legend)


def _show_group(group: Group) -> None:
    header = visible_columns(group)
    rows = [[plain_cells(line)[name] for name in header] for line in group.lines]
    best = [line.rank == 1 for line in group.lines]
    show_table(header, rows, title=group.title, bold=best)


def _legend(ranking: Ranking) -> str:
    lines = ranking.board.lines
    parts = []
    if any(line.n_seeds >= 3 for line in lines):
        parts.append("± half of the 95 % interval over seeds")
    if any(0 < line.n_seeds < 3 for line in lines):
        parts.append("descriptive: fewer than 3 seeds, no interval")
    if any(line.gain is not None for line in lines):
        parts.append("gain: over the same encoder before training")
    if any(_budgets_differ(group) for group in ranking.board.groups):
        parts.append("tuned in … runs: the methods of a table were tuned with different budgets")
    return "\n".join(parts)


def _budgets_differ(group: Group) -> bool:
    return len({line.tune_runs for line in group.lines if line.tuned}) > 1
