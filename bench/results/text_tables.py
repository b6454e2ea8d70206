"""Tables as text, before they become Markdown, LaTeX or lines on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbench.bench.results.across import MIN_CELLS, Across, Entrant

TITLES = {
    "linear_acc": "linear %",
    "linear_paper_acc": "linear (paper) %",
    "knn_acc": "k-NN %",
    "mlp_acc": "MLP %",
    "mlp_local_acc": "MLP, local %",
    "linear_local_acc": "linear, local %",
    "finetune_1pct_acc": "fine-tuned 1 %",
    "finetune_10pct_acc": "fine-tuned 10 %",
    "objective": "objective",
}


@dataclass(frozen=True)
class TextTable:
    """Cells as people read them.

    Attributes:
        title: a line above.
        header: headings.
        rows: cells.
        best: which rows hold the best, or what cannot be told from it.
        column: the cell of such a row to stress.
        footer: what to know, in a line below.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Sequence[bool]
    column: int
    footer: str = ""

    def stressed(
        self, stress: Callable[[str], str], escape: Callable[[str], str] = str
    ) -> list[list[str]]:
        """The rows with the best cells passed through `stress`, all through `escape` before."""
        rows = [[escape(cell) for cell in row] for row in self.rows]
        for row, best in zip(rows, self.best, strict=True):
            if best and row[self.column]:
                row[self.column] = stress(row[self.column])
        return rows


def metric_title(metric: str) -> str:
    """Heading of a metric's column, with its unit."""
    return TITLES.get(metric, f"{metric} %" if metric.endswith("_acc") else metric)


def number(value: float | None, percent: bool, *, signed: bool = False) -> str:
    """A value for people: one decimal of a percentage, three of anything else; empty for None.

    >>> number(-0.0001, percent=False)  # a zero has no sign
    '0.000'
    """
    if value is None:
        return ""
    sign = "+" if signed else ""
    return f"{value * 100:{sign}z.1f}" if percent else f"{value:{sign}z.3f}"


def across_table(across: Across) -> TextTable:
    """The methods over the cells: means, worst, slope, mean rank."""
    percent = across.metric.endswith("_acc")
    values = [f"{value:g}" if isinstance(value, int | float) else "" for value in across.values]
    shown = values if across.axis is not None else []
    header = ["method", *shown, "worst", "slope", "cells", "mean rank", "best"]

    def cells(entrant: Entrant) -> list[str]:
        name = entrant.method + (f" ({entrant.variant})" if entrant.variant else "")
        means = [
            "diverged" if gone else number(m, percent) or "-"
            for m, gone in zip(entrant.means, entrant.diverged, strict=True)
            if shown
        ]
        have = sum(entrant.has(cell) for cell in range(len(entrant.means)))
        return [
            name,
            *means,
            "diverged" if any(entrant.diverged) else number(entrant.worst, percent),
            number(entrant.slope, percent, signed=True),
            f"{have}/{len(entrant.means)}",
            "" if entrant.mean_rank is None else f"{entrant.mean_rank:.2f}",
            "*" if entrant.best else "",
        ]

    rows = [cells(entrant) for entrant in across.entrants]
    kept = [
        index
        for index, name in enumerate(header)
        if name in ("method", *shown) or any(row[index] for row in rows)
    ]
    return TextTable(
        title=f"{across.title} · {metric_title(across.metric)} · {len(values)} cells",
        header=[header[index] for index in kept],
        rows=[[row[index] for index in kept] for row in rows],
        best=[bool(entrant.best) for entrant in across.entrants],
        column=0,
        footer=_footer(across),
    )


def _footer(across: Across) -> str:
    if all(entrant.mean_rank is None for entrant in across.entrants):
        return "" if len(across.entrants) < 2 else "too few common cells for mean ranks"
    cells = f"ranks over {across.num_common} common cells"
    if across.friedman_p is None:
        return f"{cells}: descriptive (a test needs 3 methods and {MIN_CELLS} common cells)"
    verdict = f"Friedman p = {across.friedman_p:.2g}"
    if across.critical_difference is None:
        return f"{cells}: {verdict}, no method can be told from another"
    return f"{cells}: {verdict}, Nemenyi critical difference {across.critical_difference:.2f}"
