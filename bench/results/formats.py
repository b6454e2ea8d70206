"""A leaderboard as CSV, Markdown, LaTeX or a DataFrame; the terminal's table is elsewhere.

Machine formats (CSV, JSON, frame) have unrounded numbers and fractions; Markdown and LaTeX have
what people read: percent, MB, minutes. Equal rows give equal text, but for the minutes.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from fedbench.bench.results.leaderboard import Group, Leaderboard, Line

if TYPE_CHECKING:
    import pandas as pd

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
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "−": r"$-$",
    "–": "--",
    "μ": r"$\mu$",
    "α": r"$\alpha$",
}


def metric_title(metric: str) -> str:
    """Heading of a metric's column, with its unit."""
    return TITLES.get(metric, f"{metric} %" if metric.endswith("_acc") else metric)


def plain_cells(line: Line) -> dict[str, str]:
    """What a person reads of a line, by column heading; empty where nothing was measured.

    Three or more seeds give mean ± half the 95 % interval; two give the mean and both values; one
    gives its value.
    """
    percent = line.metric.endswith("_acc")
    cells = {
        "rank": "" if line.rank is None else str(line.rank),
        "method": f"{line.method} ({line.variant})" if line.variant else line.method,
        metric_title(line.metric): _spread(line, percent),
        "seeds": str(line.n_seeds),
        "gain": _number(line.gain, percent, signed=True),
    }
    others = {
        "linear_acc": line.linear_acc_mean,
        "knn_acc": line.knn_acc_mean,
        "objective": line.objective_mean,
    }
    for metric, value in others.items():
        if metric != line.metric:
            cells[metric_title(metric)] = _number(value, metric != "objective")
    cells["MB"] = "" if line.mb_up_down is None else f"{line.mb_up_down:.3g}"
    if line.mb_up_down is not None and line.mb_up_down >= 1000:
        cells["MB"] = f"{line.mb_up_down:,.0f}"
    cells["minutes"] = "" if line.minutes is None else f"{line.minutes:.1f}"
    cells["published"] = ""
    if line.published is not None:
        cells["published"] = _number(line.published.value, percent)
        if line.difference is not None:
            cells["published"] += f" ({_number(line.difference, percent, signed=True)})"
    cells["notes"] = ", ".join(notes(line))
    return cells


def notes(line: Line) -> list[str]:
    """What a reader must know of a line: divergence, failures, collapse, few seeds, labels."""
    found = []
    if line.num_diverged:
        found.append(f"{line.num_diverged} diverged")
    if line.num_failed:
        found.append(f"{line.num_failed} failed")
    if line.collapsed:
        found.append("collapsed")
    if line.tuned:
        found.append("tuned" if line.tune_runs is None else f"tuned in {line.tune_runs} runs")
    if line.selection == "oracle":
        found.append("tuned with labels, not ranked")
    if 0 < line.n_seeds < 3:
        found.append("descriptive")
    return found


def to_csv(board: Leaderboard) -> str:
    """One line per configuration, unrounded; `published` is spread over its own columns."""
    records = [_flat(record) for record in board.to_dict()["rows"]]
    names = list(dict.fromkeys(name for record in records for name in record)) or _empty_names()
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def to_frame(board: Leaderboard) -> pd.DataFrame:
    """The rows of `to_csv` as a DataFrame; seeds and values stay lists."""
    import pandas as pd

    records = [_flat(record, join=False) for record in board.to_dict()["rows"]]
    return pd.DataFrame.from_records(records, columns=None if records else _empty_names())


def to_markdown(board: Leaderboard) -> str:
    """One heading and one table per group."""
    parts = []
    for group in board.groups:
        header, body = _table(group)
        lines = [
            f"### {group.title}",
            "",
            _markdown_row(header),
            _markdown_row(["---"] * len(header)),
        ]
        parts.append("\n".join([*lines, *map(_markdown_row, body)]) + "\n")
    return "\n".join(parts)


def to_latex(board: Leaderboard) -> str:
    r"""One `table` per group; needs `\usepackage{booktabs}` and `\usepackage[T1]{fontenc}`."""
    parts = []
    for group in board.groups:
        header, body = _table(group)
        columns = "".join("l" if name in ("method", "notes") else "r" for name in header)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(group.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(_tex, header)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_tex, cells)) + r" \\" for cells in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def visible_columns(group: Group) -> list[str]:
    """Headings of a group's table without the columns that are empty throughout."""
    rows = [plain_cells(line) for line in group.lines]
    always = {"rank", "method", "seeds"}
    return [name for name in rows[0] if name in always or any(row[name] for row in rows)]


def _table(group: Group) -> tuple[list[str], list[list[str]]]:
    header = visible_columns(group)
    return header, [[plain_cells(line)[name] for name in header] for line in group.lines]


def _spread(line: Line, percent: bool) -> str:
    if line.mean is None:
        return ""
    if line.ci95_low is not None and line.ci95_high is not None:
        half = (line.ci95_high - line.ci95_low) / 2
        # One decimal, or as many as leave the interval a digit: 39.4 ± 0.6, 39.42 ± 0.03.
        scaled = half * 100 if percent else half
        first = 1 if percent else 3
        digits = next((d for d in range(first, 5) if round(scaled, d) > 0), first)
        mean = line.mean * 100 if percent else line.mean
        return f"{mean:.{digits}f} ± {scaled:.{digits}f}"
    text = _number(line.mean, percent)
    if line.n_seeds > 1:
        text += f" ({', '.join(_number(value, percent) for value in line.values)})"
    return text


def _number(value: float | None, percent: bool, *, signed: bool = False) -> str:
    if value is None:
        return ""
    sign = "+" if signed else ""
    return f"{value * 100:{sign}.1f}" if percent else f"{value:{sign}.3f}"


def _flat(record: dict[str, Any], *, join: bool = True) -> dict[str, Any]:
    flat = {key: value for key, value in record.items() if key != "published"}
    if join:
        for key in ("seeds", "values"):
            flat[key] = " ".join(map(str, flat[key]))
    cell = record["published"] or {}
    for name in _PUBLISHED:
        flat["published" if name == "value" else f"published_{name}"] = cell.get(name)
    return flat


_PUBLISHED = ("value", "spread", "spread_kind", "n_seeds", "source", "setting", "note")


def _empty_names() -> list[str]:
    return ["rank", "method", "variant", "config_id", "metric", "mean", "std", "n_seeds"]


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
