"""A leaderboard on the terminal or in one of its text formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.bench.console import emit, emit_json, show_table
from fedbench.bench.results.formats import (
    tables,
    to_csv,
    to_latex,
    to_markdown,
)

if TYPE_CHECKING:
    from fedbench.bench.records import Ranking


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
        for index, table in enumerate(tables(board)):
            if index:
                emit("\n")
            # Where nothing could be tested, the first rank is all there is to stress.
            bold = table.best if any(table.best) else [row[0] == "1" for row in table.rows]
            show_table(table.header, table.rows, title=table.title, bold=bold)
            if table.footer and not quiet:
                emit(table.footer)
        if board.groups and not quiet and (legend := _legend(ranking)):
            emit(f"\n{legend}")


def _legend(ranking: Ranking) -> str:
    lines = ranking.board.lines
    parts = []
    if any(line.n_seeds >= 3 for line in lines):
        parts.append("± half of the 95 % interval over seeds")
    if any(0 < line.n_seeds < 3 for line in lines):
        parts.append("descriptive: fewer than 3 seeds, no interval")
    if any(line.gain is not None for line in lines):
        parts.append("gain: over the same encoder before training")
    if any(line.local_acc_mean is not None for line in lines):
        parts.append("local: on each client's own test images, mean and sd over clients")
    if any(line.best for line in lines):
        parts.append("*: the best, or not to be told from it (paired t-test over seeds, Holm, 5 %)")
    if ranking.board.reach is not None:
        target = f"k-NN accuracy {ranking.board.reach * 100:g} %"
        parts.append(f"area: mean k-NN accuracy over rounds; rounds to, GB to: {target}")
    return "\n".join(parts)
