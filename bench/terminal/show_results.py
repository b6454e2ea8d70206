"""Leaderboards, repeated runs and checked stores as text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.terminal.console import emit, emit_json, emit_notes
from fedbench.bench.terminal.tables import head, show_record, show_records, show_table
from fedbench.bench.terminal.units import count, text

if TYPE_CHECKING:
    from fedbench.bench.board.compare import Comparison
    from fedbench.bench.board.verify import Verification
    from fedbench.bench.execution.compare import Reproduction
    from fedbench.bench.results.leaderboard.formats import Ranking

_SHOWN, _WIDTH = 20, 60  # differences or problems, and characters of a value


def show_leaderboard(ranking: Ranking, form: str, *, quiet: bool = False) -> None:
    """Print a ranking as `table` (if `quiet` unexplained), `json`, `csv`, `markdown` or `latex`."""
    from fedbench.bench.results.leaderboard import formats

    board = ranking.board
    if form == "json":
        emit_json(ranking.as_dict())
    elif form == "csv":
        emit(formats.to_csv(board))
    elif form != "table":
        emit((formats.to_markdown if form == "markdown" else formats.to_latex)(board))
    else:
        shown = formats.tables(board)
        for index, table in enumerate(shown):
            if index:
                emit("\n")
            # Where no method is tested to be the best, the first rank is in bold.
            tested = any(table.best) or "best" in table.header
            bold = table.best if tested else [row[0] == "1" for row in table.rows]
            show_table(table.header, table.rows, title=table.title, bold=bold, narrow=table.narrow)
            if not quiet:
                emit_notes(*table.below())
        if board.groups and not quiet and (explained := formats.legend(shown, board.reach)):
            emit_notes("", *explained)


def show_comparison(result: Comparison) -> None:
    """Print a line for each setting or metric, what differs, and the conclusion."""
    first, second = (name[:8] if result.values else name for name in result.names)
    if result.values:
        values = [
            {"value": head(name), first: text(name, a), second: text(name, b)}
            for name, (a, b) in result.values.items()
        ]
        show_records(values, ("value", first, second))
    if result.settings:
        from fedbench.bench.results.leaderboard.columns import number as figure

        percent = is_accuracy(result.metric)
        signed = partial(figure, percent=percent, signed=True)
        rows = [
            {
                "no.": number if len(result.settings) > 1 else None,
                **dict(zip((first, second), (figure(m, percent) for m in each.means), strict=True)),
                "difference": signed(each.difference),
                "95 % interval": " to ".join(filter(None, map(signed, (each.low, each.high)))),
                "p": "" if each.p is None else f"{each.p:.2g}",
                "would see": figure(each.detectable, percent),
                "seeds": each.seeds if each.seeds[0] != each.seeds[1] else each.seeds[0],
            }
            for number, each in enumerate(result.settings, 1)
        ]
        show_records(rows, [*rows[0]], title=f"{result.shared} · {heading(result.metric)}")
    if any(each.p is not None for each in result.settings[1:]):
        emit_notes(
            "p is adjusted for the number of settings (Holm); an interval is for its own alone"
        )
    if len(result.settings) > 1:
        numbered = enumerate((each.setting for each in result.settings), 1)
        emit("\n".join(["", *(f"{number:>3}  {setting}" for number, setting in numbered)]))
    if differing := _differences(result, first, second):
        emit("\n")
        show_records(differing, ("differs", first, second, "where"))
    emit_notes("", *result.sentence.replace("; ", ";\n").split("\n"))


def _differences(result: Comparison, first: str, second: str) -> list[dict[str, Any]]:
    """Return a line for each pair of values that differ, with the settings where they do so."""
    where: dict[tuple[str, str, str], list[int]] = {}
    of = [each.differs for each in result.settings] or [result.differs]
    for number, differs in enumerate(of, 1):
        for name, pair in differs.items():
            a, b = ("none" if value is None else text("", value) for value in pair)
            where.setdefault((name, a, b), []).append(number)
    return [
        {"differs": name, first: a, second: b, "where": found if len(found) < len(of) else None}
        for (name, a, b), found in where.items()
    ]


def _points(limit: float | None) -> str:
    return "" if limit is None else f"{limit * 100:.1f} points at most"


def show_reproduction(result: Reproduction) -> None:
    """Print the verdict, the differences, the spread, and the environments if they differ."""
    row, differences = result.claimed, result.differences
    show_record(
        f"{row.row_id} · {row.method} · seed {row.seed}: {result.verdict}",
        {
            "reason": result.reason,
            "compared": [f"{result.num_results} values", count(result.num_rounds, "round")],
            "differences": len(differences) or "none: every bit is the same",
            "limit": _points(result.limit),
            "computed otherwise here": list(result.parts_apart),
            "not compared": list(result.not_compared),
            **{name: f"{a} then, {b} now" for name, (a, b) in result.environment.items()},
        },
    )
    spread = list(map(vars, result.spread))
    show_records(spread, ("metric", "stored", "now", "limit", "source"), title="spread")
    values = [
        {"value": each.name, "stored": _short(each.first), "now": _short(each.second)}
        for each in differences[:_SHOWN]
    ]
    show_records(values, ("value", "stored", "now"), title=f"differences: {len(values)} shown")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def show_verification(result: Verification) -> None:
    """Print counts by kind of file, the damaged files with what to do, and how much was read."""
    kinds = list(map(vars, result.kinds))
    show_records(kinds, ("kind", "files", "damaged"), title=f"store {result.store}")
    for damage in result.damaged:
        emit(f"{damage.file}: {damage.problem}; {damage.remedy}")
    if lost := result.without_curve:
        some = ", ".join(lost[:3]) + (", …" if len(lost) > 3 else "")
        emit(
            f"{count(len(lost), 'run')} without the curve of their rounds: {some}; `fedbench"
            " reproduce ID --keep DIR` trains one again"
        )
    reruns = [{**each.as_dict(), "limit": _points(each.limit)} for each in result.reruns]
    show_records(
        reruns, ("run_id", "method", "seed", "verdict", "limit", "reason"), title="run again"
    )
    well = "no file is damaged" if result.without_curve else "all is well"
    differ = f"{len(result.differ)} of {count(len(reruns), 'row')} run again gave other results"
    verdict = f"{len(result.damaged)} damaged" if result.damaged else differ
    verdict = well if result.ok else verdict
    show_record(verdict, result.as_dict(), ("bytes", "seconds"))
