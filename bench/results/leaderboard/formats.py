"""A leaderboard as text tables, CSV, Markdown, LaTeX or a DataFrame.

Machine formats (CSV, JSON, frame) have unrounded numbers and fractions; text tables, Markdown and
LaTeX have percent, MB and minutes. Equal rows give equal text, except for the minutes.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.results.leaderboard.across_cells import MIN_CELLS, CellComparison
from fedbench.bench.results.leaderboard.columns import (
    BEST,
    BOARD,
    MARKS,
    Column,
    Note,
    cells,
    chance_notes,
    mean_text,
    notes,
    number,
)
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.published import PUBLISHED
from fedbench.bench.system.text import markdown, plain_table, single_line

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # At the start of a row, LaTeX would take these for options of the \\ before.
    | {character: f"{{{character}}}" for character in "[]*"}
    | {"\\": r"\textbackslash{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}"}
    | {"\xa0": "~", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$"}
    | {"±": r"$\pm$", "·": r"$\cdot$", "μ": r"$\mu$", "α": r"$\alpha$", "ε": r"$\varepsilon$"}
)

UNEQUAL_BUDGETS = "tuned in … runs: the methods of this table were tuned with different budgets"
UNEVEN_CURVES = (
    "area and rounds are at the evaluations that most curves have; empty where a curve lacks some"
)
_LETTERS = "in a column, lines that share a letter do not differ significantly from their best"
_NO_TEST = "no best and no ties are told: the first line has fewer than 3 seeds"


@dataclass(frozen=True)
class TextTable:
    """A table for people."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Sequence[bool]  # True for rows of the best, and of those that cannot be told from it
    column: int  # the cell of such a row to stress
    footer: str = ""
    footnotes: Sequence[str] = ()  # sentences, whose numbers from 1 are in the column `notes`
    narrow: Sequence[str] = ()  # headings that a narrow terminal leaves out, the first one first
    over: str = ""  # heading over the first `num_over` columns after the method, in LaTeX
    num_over: int = 0
    best_cells: Sequence[tuple[int, int]] = ()  # rows and columns of the best of a column

    def stressed(
        self, stress: Callable[[str], str], escape: Callable[[str], str]
    ) -> list[list[str]]:
        """Return the rows, each cell passed through `escape`, then the best through `stress`."""
        rows = [[escape(cell) for cell in row] for row in self.rows]
        for row, best in zip(rows, self.best, strict=True):
            if best and row[self.column]:
                row[self.column] = stress(row[self.column])
        for i, j in self.best_cells:
            rows[i][j] = stress(rows[i][j])
        return rows

    @property
    def bold(self) -> list[str]:
        """Say what stressed cells have, if there are any."""
        means = "lines with a star" if "best" in self.header else BEST
        in_columns = [f"bold in a column: {BEST}"] * bool(self.best_cells)
        return [*in_columns, *[f"bold: {means}"] * any(self.best)]

    def below(self) -> list[str]:
        """Return the lines under the table: numbered footnotes, then the footer."""
        numbered = [f"{number}: {text}" for number, text in enumerate(self.footnotes, 1)]
        return [*numbered, *[self.footer] * bool(self.footer)]


def _table(
    title: str,
    rows: Sequence[dict[str, str]],
    notes: Sequence[Sequence[Note]],
    best: Sequence[bool],
    footers: Iterable[str],
    *,
    always: Sequence[str],
    narrow: Sequence[str],
    stressed: str = "method",
) -> TextTable:
    """Return a table without the columns, but for some, that are empty throughout."""
    sentences = [*dict.fromkeys(note.sentence for each in notes for note in each)]
    for row, each in zip(rows, notes, strict=True):
        if "notes" in row:
            row["notes"] = ", ".join(str(1 + sentences.index(note.sentence)) for note in each)
    names = dict.fromkeys(name for row in rows for name in row)
    header = [name for name in names if name in always or any(row[name] for row in rows)]
    column = header.index(stressed if stressed in header else "method")
    table = [[row[name] for name in header] for row in rows]
    footer = "; ".join(filter(None, footers))
    return TextTable(title, header, table, best, column, footer, sentences, narrow)


def across_table(comparison: CellComparison, *, alone: bool = False) -> TextTable:
    """Return the methods over the cells as text: means, worst, slope, mean rank.

    Lines with a result in one cell only are counted below and not listed. Below stands what labels
    leave out, too, of methods that the table has several lines of; where it stands `alone`, without
    tables of the cells, the only line of a method has no label but this.
    """
    percent, axis = is_accuracy(comparison.metric), comparison.axis
    shown = [] if axis is None else [f"{value:g}" for value in comparison.values]
    listed = [entry for entry in comparison.entries if comparison.num_cells(entry) > 1]
    times = Counter(entry.method for entry in listed)
    whole = all(entry.coverage == 1 for entry in listed)

    def texts(entry: Any) -> dict[str, str]:
        columns = zip(entry.means, entry.halves, entry.ties, entry.diverged, strict=True)
        means = [
            "diverged"
            if diverged
            else " ".join(filter(None, (mean_text(mean, half, percent), ties))) or "-"
            for mean, half, ties, diverged in columns
        ]
        return {
            "method": entry.method if alone and times[entry.method] == 1 else entry.label,
            **dict(zip(shown, means, strict=False)),
            "worst": ""
            if axis is None
            else "diverged"
            if any(entry.diverged)
            else number(entry.worst, percent),
            "slope": number(entry.slope, percent, signed=True),
            "cells": "" if whole else f"{comparison.num_cells(entry)}/{len(comparison.values)}",
            "mean rank": "" if entry.mean_rank is None else f"{entry.mean_rank:.2f}",
            "best": "*" if entry.best else "",
            "notes": "",
        }

    left = len(comparison.entries) - len(listed)
    few = [f"not listed: {left} line{'s' * (left > 1)} of one cell only"] * bool(left)
    seeds = sorted(
        {n for e in listed for n, mean in zip(e.seeds, e.means, strict=True) if mean is not None}
    )
    counts = " to ".join(map(str, dict.fromkeys((*seeds[:1], *seeds[-1:]))))
    means = [f"means over {counts} seed{'s' * (seeds != [1])}"] * bool(shown and seeds)
    letters = [_LETTERS] * any(shown and any(entry.ties) for entry in listed)
    table = _table(
        f"{comparison.title} · {heading(comparison.metric)} · {len(comparison.values)} cells",
        [*map(texts, listed)],
        [chance_notes(e.num_at_chance, e.num_runs, e.minimises_objective) for e in listed],
        [bool(entry.best) for entry in listed],
        [*means, _footer(comparison), *few, *letters, *_left_out(listed)],
        always=("method", *shown),
        narrow=("slope", "worst", "cells", "notes", "best"),
    )
    best = [
        (i, j + 1)
        for j in range(len(shown))
        if {entry.ties[j] for entry in listed} - {None} > {"a"}
        for i, entry in enumerate(listed)
        if entry.ties[j] == "a"
    ]
    over = "" if axis is None else f"{heading(comparison.metric)} at {axis.replace('_', ' ')}"
    return replace(table, over=over, num_over=len(shown), best_cells=best)


def _footer(comparison: CellComparison) -> str:
    if all(entry.mean_rank is None for entry in comparison.entries):
        return "" if len(comparison.entries) < 2 else "too few common cells for mean ranks"
    cells = f"ranks over {comparison.num_common} common cells"
    if comparison.friedman_p is None:
        return f"{cells}; a test needs 3 methods and {MIN_CELLS} common cells"
    verdict = f"Friedman p = {comparison.friedman_p:.2g}"
    if comparison.critical_difference is None:
        return f"{cells}: {verdict}, no method can be told from another"
    difference = f"Nemenyi critical difference {comparison.critical_difference:.2f}"
    return f"{cells}: {verdict}, {difference}; *: no further than that from the best"


def to_csv(board: Leaderboard) -> str:
    """Return one line per configuration, unrounded; `published` is spread over several columns.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    return to_frame(board).map(_csv).to_csv(index=False, lineterminator="\n")


def to_frame(board: Leaderboard) -> pd.DataFrame:
    """Return the rows of `to_csv` as a DataFrame; seeds and values stay lists."""
    records = []
    for record in board.to_dict()["rows"]:
        if "published" in record:
            cell = record.pop("published") or {}
            record |= {
                "published" if k == "value" else f"published_{k}": cell.get(k) for k in PUBLISHED
            }
        records.append(record)
    names = None if records else [column.name for column in board.columns or BOARD]
    return pd.DataFrame.from_records(records, columns=names)


def legend(shown: Sequence[TextTable], reach: float | None) -> list[str]:
    """Return explanations of the marks in some tables; `reach` is the board's."""
    words = set[str]()
    for table in shown:
        texts = [text for row in (table.header, *table.rows) for text in row]
        # A star of ranks is explained in the footer.
        none = {"*"} if "mean rank" in table.header else set()
        words |= {word.strip(",()") for text in texts for word in text.split()} - none
    explained = {word: text for column in BOARD for word, text in column.explains.items()}
    return [t.format(reach=100 * (reach or 0)) for word, t in explained.items() if word in words]


def to_markdown(board: Leaderboard) -> str:
    """Return a heading and a table per group, then those over several groups; the best in bold.

    Explanations of the marks stand below all.
    """
    parts, shown = [], tables(board)
    for table in shown:
        body = table.stressed(lambda cell: f"**{cell}**", markdown)
        rows = [table.header, ["---"] * len(table.header), *body]
        text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        below = "".join(f"\n\n{markdown(line)}" for line in table.below())
        parts.append(f"### {markdown(table.title)}\n\n{text}{below}\n")
    explained = legend(shown, board.reach)
    explained += dict.fromkeys(line for table in shown for line in table.bold)
    return "\n".join([*parts, *(f"- {markdown(text)}" for text in explained)])


def to_latex(board: Leaderboard) -> str:
    r"""One `table` for each of `tables`, with its notes below.

    It needs `\usepackage{booktabs}` and `\usepackage[T1]{fontenc}`.
    """
    parts, small = [], r"\small\setlength{\tabcolsep}{3pt}"
    for table in tables(board):
        columns = "".join("l" if name in ("method", "notes") else "r" for name in table.header)
        body = table.stressed(lambda cell: rf"\textbf{{{cell}}}", _tex)
        header, *rows = (" & ".join(row) + r" \\" for row in (map(_tex, table.header), *body))
        if table.num_over:
            last = table.num_over + 1
            above = rf" & \multicolumn{{{table.num_over}}}{{c}}{{{_tex(table.over)}}} \\"
            header = f"{above}\n\\cmidrule(lr){{2-{last}}}\n{header}"
        below = [*table.below(), *legend([table], board.reach), *table.bold]
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}"]
        lines += [small, rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule", header]
        lines += [r"\midrule", *rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        if below:
            lines += [
                r"\par\smallskip",
                rf"\parbox{{\linewidth}}{{\footnotesize {_tex('; '.join(below))}.}}",
            ]
        parts.append("\n".join([*lines, r"\end{table}"]) + "\n")
    return "\n".join(parts)


def tables(board: Leaderboard) -> list[TextTable]:
    """Return the tables of the groups, unless the board is over an axis, and those over several."""
    alone = board.over is not None
    groups = [] if alone else [group_table(group, board.columns) for group in board.groups]
    return [*groups, *(across_table(each, alone=alone) for each in board.across)]


def group_table(group: Group, columns: Sequence[Column] = ()) -> TextTable:
    """Return a group as text; see `cells` for `columns`."""
    entries, no_area = group.entries, group.frame.area.isna()
    metric = entries[0].metric
    untested = entries[0].n_seeds < 3 and len(entries) > 1 and max(e.n_seeds for e in entries) > 1
    budgets = {entry.tune_runs for entry in entries if entry.tuned}
    uneven = not no_area.all() and any(map(len, group.frame.curve_ids[no_area]))
    noted = not columns or any(column.name == "notes" for column in columns)
    narrow = sorted((c for c in BOARD if c.narrow), key=lambda column: -column.narrow)
    return _table(
        group.title,
        [cells(entry, columns) for entry in entries],
        [notes(entry) if noted else () for entry in entries],
        [MARKS[standing] == "*" for standing in group.frame.standing],
        [
            *[UNEQUAL_BUDGETS] * (len(budgets) > 1),
            *[UNEVEN_CURVES] * uneven,
            *[_NO_TEST] * untested,
            *_left_out(entries),
        ],
        always=[column.heading(metric) for column in BOARD if column.always],
        narrow=[column.heading(metric) for column in narrow],
        stressed=heading(metric),
    )


def _left_out(entries: Sequence[Any]) -> list[str]:
    several = Counter((entry.method, entry.left_out) for entry in entries)
    return [
        f"{method} has {', '.join(parts)} unless stated otherwise"
        for (method, parts), times in sorted(several.items())
        if parts and times > 1
    ]


def _tex(text: str) -> str:
    # LaTeX prints - as a hyphen; before a number it is a minus, in cross-device or 1e-3 it stays.
    signed = re.sub(r"(?<![\w-])-(?=[\d.])", "−", single_line(text)).replace(" %", "\xa0%")
    if text == "-":
        return "--"
    if found := re.fullmatch(r"(−?[\d.]+(?: ± [\d.]+)?) ([a-z]+)", signed):  # and its letter
        return rf"{found[1].translate(_LATEX)}\textsuperscript{{{found[2]}}}"
    return signed.translate(_LATEX)


def _csv(value: Any) -> Any:
    """Return a number, a list as words, or a text that no spreadsheet takes for a formula."""
    if isinstance(value, list | tuple):
        return " ".join(str(_csv(each)) for each in value)
    if not isinstance(value, str):
        return value
    text = single_line(value)
    return f"'{text}" if re.match(r"[=+\-@]", text) else text


@dataclass(frozen=True, repr=False)
class Ranking:
    """A leaderboard, and what was found beside it."""

    board: Leaderboard
    problems: tuple[str, ...]  # a line per unreadable file, whose rows are missing
    nothing: str = ""  # why the board is empty

    def as_dict(self) -> dict[str, Any]:
        """Output of `fedbench leaderboard --json`: `metric`, flat `rows`, and `across` cells."""
        return {
            **self.board.to_dict(),
            "across": [comparison.as_dict() for comparison in self.board.across],
            "problems": list(self.problems),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one line per configuration, numbers unrounded."""
        return to_frame(self.board)

    def __len__(self) -> int:
        return len(self.board.entries)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the lines of all tables, with the columns of `to_frame` as attributes."""
        return iter(self.board.entries)

    def _repr_html_(self) -> str:
        shown = []
        for table in tables(self.board):
            body = table.stressed(lambda cell: f"<b>{cell}</b>", html.escape)
            parts = [(map(html.escape, table.header), "th"), *((row, "td") for row in body)]
            rows = ("".join(f"<{tag}>{cell}</{tag}>" for cell in row) for row, tag in parts)
            below = "<br>".join(map(html.escape, table.below()))
            filled = "".join(f"<tr>{row}</tr>" for row in rows)
            title = html.escape(table.title)
            shown.append(f"<h4>{title}</h4><table>{filled}</table><small>{below}</small>")
        return "\n".join(shown) or html.escape(self.nothing)

    def __repr__(self) -> str:
        shown = [
            "\n".join([plain_table(t.header, t.rows, title=t.title), *t.below()])
            for t in tables(self.board)
        ]
        return "\n\n".join(shown) or self.nothing
