"""A leaderboard on the terminal or in one of its text formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.bench.results.leaderboard.formats import tables, to_csv, to_latex, to_markdown
from fedbench.bench.terminal.console import emit, emit_json, show_table
from fedbench.bench.terminal.units import count

if TYPE_CHECKING:
    from fedbench.bench.results.leaderboard.formats import Ranking
    from fedbench.bench.results.store.merge import Merged
    from fedbench.bench.runs.reproduce import Reproduction


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


_DIFFERENCES, _WIDTH = 20, 60


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
