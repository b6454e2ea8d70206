"""Text about a store: leaderboards, reports, figures, merged stores and reproduced runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedbench.bench.terminal.console import emit, emit_json, emit_wrapped
from fedbench.bench.terminal.tables import show_records, show_table
from fedbench.bench.terminal.units import count, size

if TYPE_CHECKING:
    from fedbench.bench.results.leaderboard.formats import Ranking
    from fedbench.bench.results.report.page import Report
    from fedbench.bench.results.store.merge import Merged
    from fedbench.bench.runs.compare import Reproduction
    from fedbench.bench.runs.figures import Figures
    from fedbench.bench.runs.verify import Verification

_DIFFERENCES, _WIDTH = 20, 60  # differences shown, and characters of each value


_LEGEND = {
    "±": "± half of the 95 % interval over seeds",
    "descriptive": "descriptive: fewer than 3 seeds, no interval",
    "gain": "gain: over the same encoder before training",
    "local": "local: on each client's own test images, mean and sd over clients",
    "*": "*: the best, or not significantly different from it (t test over seeds, Holm, 5 %)",
    "ties": "ties: lines with one letter are not told from the best of them (same test)",
    "?": "?: the seeds cannot tell whether it is below the first; on the first, whether any is",
    "chance": "at chance: a loss ended within 10 % of a net's without information",
    "minimises": "minimises the objective: its loss is nearly the score of tuning",
    "area": "area: mean k-NN accuracy over rounds; rounds to, GB to: k-NN accuracy {reach:g} %",
}
"""Explanations of words in the headings and cells of tables."""


def show_leaderboard(
    ranking: Ranking, form: str, *, quiet: bool = False, ids: bool = False
) -> None:
    """Print a ranking.

    Args:
        ranking: what to print.
        form: `table`, `json`, `csv`, `markdown` or `latex`.
        quiet: leave out the explanations below tables.
        ids: add a column of short run ids to tables; `json` and `csv` have whole ones anyway.
    """
    from fedbench.bench.results.leaderboard.formats import tables, to_csv, to_latex, to_markdown

    board, short = ranking.board, ranking.short_ids if ids else None
    if form == "json":
        emit_json(ranking.as_dict())
    elif form == "csv":
        emit(to_csv(board))
    elif form != "table":
        emit((to_markdown if form == "markdown" else to_latex)(board, short))
    else:
        shown = tables(board, short)
        for index, table in enumerate(shown):
            if index:
                emit("\n")
            # Where no method is tested to be the best, the first rank is in bold.
            tested = any(table.best) or "best" in table.header
            bold = table.best if tested else [row[0] == "1" for row in table.rows]
            show_table(table.header, table.rows, title=table.title, bold=bold)
            if table.footer and not quiet:
                emit_wrapped(table.footer)
        if board.groups and not quiet:
            groups = shown[: len(board.groups)]
            texts = [text for t in groups for row in (t.header, *t.rows) for text in row]
            words = {word.strip(",()") for text in texts for word in text.split()}
            reach = (board.reach or 0) * 100
            legend = [text.format(reach=reach) for word, text in _LEGEND.items() if word in words]
            if lines := [*legend, *_reproductions(ranking)]:
                emit("\n" + "\n".join(lines))


def _reproductions(ranking: Ranking) -> list[str]:
    """Name who reproduced which run, on what platform, and why a record does not count."""
    if not ranking.reproductions:
        return []
    lines = ["reproduced by: people other than who submitted the run; the fewest of a line's runs"]
    for row in ranking.reproductions:
        run = ranking.short_ids.get(row["run_id"], row["run_id"][:8])
        for record in row["records"]:
            by, limit = _name(record["by"]), record["limit"]
            most = "" if limit is None else f", {limit * 100:.1f} points at most"
            if record["reason"]:
                lines.append(f"run {run}: a record by {by} does not count, {record['reason']}")
            else:
                where = f"{record['platform']} ({record['verdict']}{most})"
                lines.append(f"run {run} reproduced by {by} on {where}")
    return lines


def _name(person: Mapping[str, Any] | None) -> str:
    if person is None:
        return "nobody named"
    return f"{person['name']} ({person['orcid']})" if person["orcid"] else str(person["name"])


def show_report(report: Report) -> None:
    """Print the file of a report, and what is in it."""
    runs, studies = count(report.num_rows, "run"), count(report.num_studies, "study", "studies")
    emit(f"{report.file} · {runs}, {studies}, {size(report.num_bytes)}")


def show_figures(figures: Figures) -> None:
    """Print the files of figures, one per line."""
    emit("\n".join(str(file) for file in figures.files))


def show_merged(merged: Merged, *, dry_run: bool) -> None:
    """Print on one line what a merge copied, or with `dry_run` what it would copy."""
    would = "would be " if dry_run else ""
    replaced = f", {count(merged.rows_replaced, 'failed one')} replaced"
    beside = f", {count(merged.replicas_added, 'replica')} from another platform"
    emit(
        f"{count(merged.rows_added, 'row')} {would}added{replaced if merged.rows_replaced else ''}"
        f"{beside if merged.replicas_added else ''},"
        f" {merged.rows_same} there already;"
        f" {count(merged.trials_added, 'trial')} {would}added, {merged.trials_same} there already"
    )


def show_reproduction(result: Reproduction) -> None:
    """Print the verdict, the differences, the spread, and the environments if they differ."""
    row = result.claimed
    head = f"{row.row_id} · {row.method} · seed {row.seed}"
    compared = f"{result.num_results} values of the row, {count(result.num_rounds, 'round')}"
    differences = count(len(result.differences), "difference")
    if result.verdict == "same bits":
        emit(f"{head}: reproduced, every bit the same ({compared})")
    elif result.verdict == "within seed spread":
        seeds = any("seed" in part.source for part in result.spread)
        within = "the spread of seeds" if seeds else "what the number of test images allows"
        emit(
            f"{head}: reproduced on another numeric platform, within {within}{limit_of(result)};"
            f" {differences} ({compared})"
        )
    elif result.verdict == "cannot tell":
        emit(
            f"{head}: cannot tell on another platform, {result.reason}; {differences} ({compared})"
        )
    else:
        emit(f"{head}: not reproduced, {differences} ({compared}): {result.reason}")
    if result.not_compared:
        some = count(len(result.not_compared), "metric")
        emit(f"not compared: {some} that only one of the two versions of fedbench recorded")
    if result.spread and result.differences:
        rows = [
            [s.metric, *(f"{v:.4g}" for v in (s.stored, s.now, s.now - s.stored, s.limit))]
            for s in result.spread
        ]
        header = ["metric", "stored", "now", "difference", "allowed"]
        show_table(header, rows, title="spread of seeds")
        emit(f"allowed: from {', '.join(dict.fromkeys(s.source for s in result.spread))}")
    if result.differences:
        shown = result.differences[:_DIFFERENCES]
        rows = [[d.name, _short(d.first), _short(d.second)] for d in shown]
        show_table(["name", "stored", "now"], rows)
        if more := len(result.differences) - len(shown):
            emit(f"and {more} more; --json lists all")
    for name, (then, now) in result.environment.items():  # whole: a platform's name is long
        emit(f"{name}: {then or 'unknown'} then, {now or 'unknown'} now")


def limit_of(result: Reproduction) -> str:
    """State the largest difference that is within the spread of seeds; empty without a spread."""
    if result.limit is not None:
        return f", {result.limit * 100:.1f} points at most"
    parts = [
        f"{part.metric} {part.limit:.3g}" for part in result.spread
    ]  # no accuracy was measured
    return f", {' and '.join(parts)} at most" if parts else ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def show_verification(result: Verification) -> None:
    """Print counts by kind of file, the damaged files with what to do, and how much was read."""
    kinds = [vars(kind) for kind in result.kinds]
    show_records(kinds, ("kind", "files", "damaged"), title=f"store {result.store}")
    for damage in result.damaged:
        emit(f"{damage.file}: {damage.problem}; {damage.remedy}")
    files = count(sum(kind.files for kind in result.kinds), "file")
    verdict = "all is well" if result.ok else f"{len(result.damaged)} damaged"
    emit(f"{files}, {size(result.bytes)} read in {result.seconds:.1f} s: {verdict}")
