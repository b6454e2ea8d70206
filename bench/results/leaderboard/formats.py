"""A leaderboard as text tables, CSV, Markdown, LaTeX or a DataFrame.

Machine formats (CSV, JSON, frame) have unrounded numbers and fractions; text tables, Markdown and
LaTeX have percent, MB and minutes. Equal rows give equal text, except for the minutes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.results.leaderboard.across_cells import MIN_CELLS, CellComparison
from fedbench.bench.results.leaderboard.entries import COLUMNS, Group, Usual
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.published import PUBLISHED
from fedbench.bench.system.text import markdown, plain_table, single_line

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    # At the start of a row, LaTeX would take these for options of the \\ before.
    | {character: f"{{{character}}}" for character in "[]*"}
    | {"\\": r"\textbackslash{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$"}
    | {"±": r"$\pm$", "·": r"$\cdot$", "μ": r"$\mu$", "α": r"$\alpha$", "ε": r"$\varepsilon$"}
)

MARKS = {"first": "*", "alike": "*", "unclear": "?", "worse": "", "untested": ""}
"""Marks of standings in the column `best`."""

UNEQUAL_BUDGETS = "tuned in … runs: the methods of this table were tuned with different budgets"
UNEVEN_CURVES = (
    "area and rounds are at the evaluations that most curves have; empty where a curve lacks some"
)
_LETTERS = "in a column, lines with one letter are not told from the best of them"
_NO_TEST = "no best is marked: the first line has fewer than 3 seeds"

_LEGEND = {
    "±": "± half of the 95 % interval over seeds",
    "descriptive": "descriptive: fewer than 3 seeds, no interval; of 2 seeds both values",
    "gain": "gain: over the same encoder before training",
    "local": "local: on each client's own test images, mean and sd over clients",
    "*": "*: the best, or not significantly different from it (t test over seeds, Holm, 5 %)",
    "ties": "ties: lines with one letter are not told from the best of them (t test, Holm, 5 %)",
    "?": "?: the seeds cannot tell whether it is below the first; on the first, whether any is",
    "chance": "at chance: a loss ended within 10 % of a net's without information",
    "minimises": "minimises the objective: its loss is nearly the score of tuning",
    "area": "area: mean k-NN accuracy over rounds; rounds to, GB to: k-NN accuracy {reach:g} %",
}
"""Explanations of words in the headings and cells of tables."""


@dataclass(frozen=True)
class TextTable:
    """A table for people."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Sequence[bool]  # True for rows of the best, and of those that cannot be told from it
    column: int  # the cell of such a row to stress
    footer: str = ""

    def stressed(
        self, stress: Callable[[str], str], escape: Callable[[str], str] = str
    ) -> list[list[str]]:
        """Return the rows, each cell passed through `escape`, then the best through `stress`."""
        rows = [[escape(cell) for cell in row] for row in self.rows]
        for row, best in zip(rows, self.best, strict=True):
            if best and row[self.column]:
                row[self.column] = stress(row[self.column])
        return rows


def number(value: float | None, percent: bool, *, signed: bool = False) -> str:
    """A value for people: one decimal of a percentage, three of anything else; empty for None.

    >>> number(-0.0001, percent=False)  # a zero has no sign
    '0.000'
    """
    if value is None:
        return ""
    sign = "+" if signed else ""
    # Without the rounding, the last bits of a mean of 0.3055 would decide between 30.5 and 30.6.
    return f"{round(value * 100, 9):{sign}z.1f}" if percent else f"{value:{sign}z.3f}"


def _table(
    title: str,
    rows: Sequence[Mapping[str, str]],
    best: Sequence[bool],
    footers: Iterable[str],
    *,
    always: Sequence[str],
    stressed: str = "method",
) -> TextTable:
    """Return a table without the columns, but for some, that are empty throughout."""
    names = dict.fromkeys(name for row in rows for name in row)
    header = [name for name in names if name in always or any(row[name] for row in rows)]
    cells = [[row[name] for name in header] for row in rows]
    column = header.index(stressed if stressed in header else "method")
    return TextTable(title, header, cells, best, column, "; ".join(filter(None, footers)))


def across_table(comparison: CellComparison, usual: Usual | None = None) -> TextTable:
    """Return the methods over the cells as text: means, worst, slope, mean rank.

    Lines with a result in one cell only are counted below and not listed. Below stands what labels
    leave out, too, of methods that the table has several lines of (`usual`).
    """
    percent, axis = is_accuracy(comparison.metric), comparison.axis
    shown = [] if axis is None else [f"{value:g}" for value in comparison.values]

    def cells(entry: Any) -> dict[str, str]:
        columns = zip(entry.means, entry.halves, entry.ties, entry.diverged, strict=True)
        means = [
            "diverged"
            if diverged
            else " ".join(filter(None, (_mean(mean, half, percent), ties))) or "-"
            for mean, half, ties, diverged in columns
        ]
        notes = _marks(entry.num_at_chance, entry.num_runs, entry.minimises_objective)
        return {
            "method": entry.label,
            **dict(zip(shown, means, strict=False)),
            "worst": "diverged" if any(entry.diverged) else number(entry.worst, percent),
            "slope": number(entry.slope, percent, signed=True),
            "cells": f"{comparison.num_cells(entry)}/{len(comparison.values)}",
            "mean rank": "" if entry.mean_rank is None else f"{entry.mean_rank:.2f}",
            "best": "*" if entry.best else "",
            "notes": ", ".join(notes),
        }

    listed = [entry for entry in comparison.entries if comparison.num_cells(entry) > 1]
    left = len(comparison.entries) - len(listed)
    few = [f"not listed: {left} line{'s' * (left > 1)} of one cell only"] * bool(left)
    letters = [_LETTERS] * any(shown and any(entry.ties) for entry in listed)
    return _table(
        f"{comparison.title} · {heading(comparison.metric)} · {len(comparison.values)} cells",
        [*map(cells, listed)],
        [bool(entry.best) for entry in listed],
        [_footer(comparison), *few, *letters, *_left_out(listed, usual)],
        always=("method", *shown),
    )


def _footer(comparison: CellComparison) -> str:
    if all(entry.mean_rank is None for entry in comparison.entries):
        return "" if len(comparison.entries) < 2 else "too few common cells for mean ranks"
    cells = f"ranks over {comparison.num_common} common cells"
    if comparison.friedman_p is None:
        return f"{cells}; a test needs 3 methods and {MIN_CELLS} common cells"
    verdict = f"Friedman p = {comparison.friedman_p:.2g}"
    if comparison.critical_difference is None:
        return f"{cells}: {verdict}, no method can be told from another"
    return f"{cells}: {verdict}, Nemenyi critical difference {comparison.critical_difference:.2f}"


def plain_cells(entry: Any) -> dict[str, str]:
    """Return an entry as text by column heading; empty where nothing was measured.

    Three or more seeds give mean ± half the 95 % interval; two give the mean and both values; one
    gives its value.
    """
    percent = is_accuracy(entry.metric)
    local = published = minutes = ""
    if entry.local_acc_mean is not None and not entry.metric.endswith("_local_acc"):
        local = number(entry.local_acc_mean, True)
        if entry.local_acc_std is not None:
            local += f" (sd {number(entry.local_acc_std, True)})"
    if entry.published is not None:
        published = number(entry.published.value, percent)
        if entry.difference is not None:
            published += f" ({number(entry.difference, percent, signed=True)})"
    if entry.minutes is not None:
        minutes = f"{entry.minutes:.{1 if entry.minutes >= 0.1 else 2}f}"
    others = {
        heading(name): number(getattr(entry, f"{name}_mean"), name != "objective")
        for name in ("linear_acc", "knn_acc", "objective")
        if name != entry.metric
    }
    per_gb = None if entry.per_gb is None else entry.per_gb * (100 if percent else 1)
    return {
        "rank": "" if entry.rank is None else str(entry.rank),
        "method": entry.label,
        heading(entry.metric): _spread(entry, percent),
        "best": MARKS[entry.standing],
        "ties": entry.ties or "",
        "seeds": str(entry.n_seeds),
        "gain": number(entry.gain, percent, signed=True),
        "local %": local,
        **others,
        "area %": number(entry.area, True),
        "rounds to": _reached(entry.rounds_to_reach, entry),
        "GB to": _reached(entry.gb_to_reach, entry),
        "MB up": _short(entry.mb_up),
        "MB down": _short(entry.mb_down),
        "% / GB" if percent else "per GB": _short(per_gb),
        "minutes": minutes,
        "published": published,
        "notes": ", ".join(_notes(entry)),
    }


def _reached(value: float | None, entry: Any) -> str:
    """Rounds or GB to the accuracy asked for, or the number of seeds if not all got there."""
    if entry.num_reached is None or not entry.n_seeds:
        return ""
    return _short(value) if value is not None else f"{entry.num_reached} of {entry.n_seeds} seeds"


def _notes(entry: Any) -> list[str]:
    """Caveats of an entry: failures, collapse, no gain, tuning, privacy, replicas, few seeds."""
    tuned = f"tuned in {entry.tune_runs} runs"
    if entry.tuned_on is not None:
        tuned += f" on {entry.tuned_on}"
    elif entry.tune_runs is None:
        tuned = "said to be tuned"
    gained, score = entry.gain is None, needed(entry.metric).score
    if not gained:
        gained = score(entry.untrained_mean + entry.gain) > score(entry.untrained_mean)
    none_ran = not (entry.n_seeds or entry.num_diverged or entry.num_failed)
    terms = f" ({', '.join(entry.at_chance)})"
    replicas = "replica" if entry.num_replicas == 1 else "replicas"
    notes = {
        f"{entry.num_diverged} diverged": entry.num_diverged,
        f"{entry.num_failed} failed": entry.num_failed,
        f"{heading(entry.metric)} not measured": none_ran,
        "collapsed": entry.collapsed,
        "shrunk": entry.contracted and not entry.collapsed,
        **dict.fromkeys(
            _marks(entry.num_at_chance, entry.n_seeds, entry.minimises_objective, terms), True
        ),
        "no weight moved": entry.unmoved,
        "not above its start": not gained,
        tuned: entry.tuned,
        "tuned with labels, not ranked": entry.selection == "oracle",
        f"ε {entry.epsilon or 0:.3g} for {entry.epsilon_of}": entry.epsilon is not None,
        "shows single images": entry.revealing_messages,
        f"{entry.num_replicas} {replicas}, spread"
        f" {number(entry.replica_spread, is_accuracy(entry.metric))}": entry.num_replicas,
        "descriptive": 0 < entry.n_seeds < 3,
        f"reproduced by {entry.reproduced}": entry.reproduced,
    }
    return [note for note, holds in notes.items() if holds]


def _marks(at_chance: int, runs: int, minimises: bool, terms: str = "") -> list[str]:
    """Return the notes on runs that do not test their method."""
    part = f"{at_chance} of {runs} " if at_chance < runs else ""
    return [f"{part}at chance{terms}"] * bool(at_chance) + ["minimises the objective"] * minimises


def to_csv(board: Leaderboard) -> str:
    """Return one line per configuration, unrounded; `published` is spread over several columns.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    table = to_frame(board).map(_csv)
    return table.to_csv(index=False, lineterminator="\n")


def to_frame(board: Leaderboard) -> pd.DataFrame:
    """Return the rows of `to_csv` as a DataFrame; seeds and values stay lists."""
    records = []
    for record in board.to_dict()["rows"]:
        cell = record.pop("published") or {}
        more = {"published" if k == "value" else f"published_{k}": cell.get(k) for k in PUBLISHED}
        records.append(record | more)
    return pd.DataFrame.from_records(records, columns=None if records else [*COLUMNS])


def legend(shown: Sequence[TextTable], reach: float | None) -> list[str]:
    """Return explanations of the marks in some tables; `reach` is the board's."""
    texts = [text for table in shown for row in (table.header, *table.rows) for text in row]
    words = {word.strip(",()") for text in texts for word in text.split()}
    if all("mean rank" in table.header for table in shown):
        words -= {"*"}  # of ranks, as the footer says
    return [t.format(reach=100 * (reach or 0)) for word, t in _LEGEND.items() if word in words]


def to_markdown(board: Leaderboard) -> str:
    """Return a heading and a table per group, then those over several groups; the best in bold.

    Explanations of the marks stand below all.
    """
    parts, shown = [], tables(board)
    for table in shown:
        body = table.stressed(lambda cell: f"**{cell}**", markdown)
        rows = [table.header, ["---"] * len(table.header), *body]
        text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        footer = f"\n\n{markdown(table.footer)}" if table.footer else ""
        parts.append(f"### {markdown(table.title)}\n\n{text}{footer}\n")
    explained = legend(shown[: len(board.groups)], board.reach)
    return "\n".join([*parts, *(f"- {markdown(text)}" for text in explained)])


def to_latex(board: Leaderboard) -> str:
    r"""One `table` per group; needs `\usepackage{booktabs}` and `\usepackage[T1]{fontenc}`."""
    parts = []
    for table in tables(board):
        columns = "".join("l" if name in ("method", "notes") else "r" for name in table.header)
        body = table.stressed(lambda cell: rf"\textbf{{{cell}}}", _tex)
        header, *rows = (" & ".join(row) + r" \\" for row in (map(_tex, table.header), *body))
        texts = [table.title, table.footer, "; ".join(legend([table], board.reach))]
        caption = ". ".join(filter(None, map(_tex, texts)))
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def tables(board: Leaderboard) -> list[TextTable]:
    """Return the tables of the groups, and those over several groups."""
    groups = [group_table(group, board.usual) for group in board.groups]
    return [*groups, *(across_table(comparison, board.usual) for comparison in board.across())]


def group_table(group: Group, usual: Usual | None = None) -> TextTable:
    """Return a group as text; see `across_table` for `usual`."""
    entries, no_area = group.entries, group.frame.area.isna()
    untested = entries[0].n_seeds < 3 and any(entry.n_seeds >= 3 for entry in entries)
    budgets = {entry.tune_runs for entry in entries if entry.tuned}
    uneven = not no_area.all() and any(map(len, group.frame.curve_ids[no_area]))
    return _table(
        group.title,
        [*map(plain_cells, entries)],
        [MARKS[standing] == "*" for standing in group.frame.standing],
        [
            *[UNEQUAL_BUDGETS] * (len(budgets) > 1),
            *[UNEVEN_CURVES] * uneven,
            *[_NO_TEST] * untested,
            *_left_out(entries, usual),
        ],
        always=("rank", "method", "seeds"),
        stressed=heading(entries[0].metric),
    )


def _left_out(entries: Sequence[Any], usual: Usual | None) -> list[str]:
    times = Counter(entry.method for entry in entries)
    return [
        f"{method} has {', '.join(parts)} unless stated otherwise"
        for method, parts in (usual or {}).items()
        if times[method] > 1
    ]


def _spread(entry: Any, percent: bool) -> str:
    known = entry.ci95_low is not None
    text = _mean(entry.mean, (entry.ci95_high - entry.ci95_low) / 2 if known else None, percent)
    if entry.n_seeds > 1 and not known:
        text += f" ({', '.join(number(value, percent) for value in entry.values)})"
    return text


def _mean(mean: float | None, half: float | None, percent: bool) -> str:
    """Return a mean, with half of its interval if there is one."""
    if mean is None or half is None:
        return number(mean, percent)
    # One decimal, or as many as leave the interval a digit: 39.4 ± 0.6, 39.42 ± 0.03.
    scaled = half * 100 if percent else half
    first = 1 if percent else 3
    digits = next((d for d in range(first, 5) if round(scaled, d) > 0), first)
    return f"{round(mean * 100, 9) if percent else mean:.{digits}f} ± {scaled:.{digits}f}"


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _tex(text: str) -> str:
    signed = re.sub(r"(?<![\w-])-(?=[\d.])", "−", single_line(text))
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
    reproductions: tuple[Mapping[str, Any], ...] = ()  # who reproduced runs, on which platforms

    def as_dict(self) -> dict[str, Any]:
        """Output of `fedbench leaderboard --json`: `metric`, flat `rows`, and `across` cells."""
        return {
            **self.board.to_dict(),
            "across": [comparison.as_dict() for comparison in self.board.across()],
            "problems": list(self.problems),
            **({"reproductions": list(self.reproductions)} if self.reproductions else {}),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one line per configuration, numbers unrounded."""
        return to_frame(self.board)

    def __repr__(self) -> str:
        shown = [
            (plain_table(t.header, t.rows, title=t.title), t.footer) for t in tables(self.board)
        ]
        return "\n\n".join("\n".join(filter(None, each)) for each in shown) or self.nothing
