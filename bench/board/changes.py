"""Ranks that differ between two sets of rows, each with its cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.leaderboard.lines import Line
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import markdown


@dataclass(frozen=True)
class Change:
    """A line of a leaderboard whose rank is another one.

    Attributes:
        board: title of its comparability class.
        method: method spec.
        variant: the hyperparameters that tell it from others of its method; else empty.
        before: its rank; None if it was not ranked or not there.
        after: its rank now; None if it is not ranked or not there any more.
        cause: one line.
    """

    board: str
    method: str
    variant: str
    before: int | None
    after: int | None
    cause: str


def changes(old: Iterable[Row], new: Iterable[Row]) -> tuple[Change, ...]:
    """Return every line whose rank differs, class by class, in the order of the new ranks.

    Classes that are new have no earlier ranks and are left out.
    """
    before, after = (list(rows) for rows in (old, new))
    boards = [leaderboard(rows, published=False).groups for rows in (before, after)]
    now = {group.class_id: group for group in boards[1]}
    found = []
    for group in boards[0]:
        later = now.get(group.class_id)
        lines = {_key(line): line for line in group.lines}
        current = {} if later is None else {_key(line): line for line in later.lines}
        title = group.title if later is None else later.title
        whole = "" if current else _class_left(before, after)
        for key in dict.fromkeys((*current, *lines)):
            first, second = lines.get(key), current.get(key)
            line = second or first
            rank = None if first is None else first.rank
            rank_now = None if second is None else second.rank
            if line is not None and rank != rank_now:
                cause = whole or _cause(first, second, lines, current)
                found.append(Change(title, line.method, line.variant, rank, rank_now, cause))
    return tuple(found)


def _class_left(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Say why a class is there no more."""
    old, new = ({row.benchmark_version for row in rows} for rows in (before, after))
    if new and old != new:
        return f"benchmark version {', '.join(sorted(new))} in place of {', '.join(sorted(old))}"
    return "all rows of this board were removed"


def _key(line: Line) -> tuple[str, str]:
    return line.method, line.config_id


def _cause(
    first: Line | None,
    second: Line | None,
    lines: dict[tuple[str, str], Line],
    current: dict[tuple[str, str], Line],
) -> str:
    """Say why a line has another rank: its own rows, or those of lines around it."""
    if first is None:
        assert second is not None
        return f"new, {_rows(len(second.row_ids))}"
    if second is None:
        return f"removed, {_rows(len(first.row_ids))}"
    own = _rows_changed(first, second)
    if own:
        return own
    others = Counter[tuple[str, str]]()
    for key, line in current.items():
        known = lines.get(key)
        if _above(line, second) != (known is not None and _above(known, first)):
            why = "new" if known is None else _rows_changed(known, line) or "moved"
            others[line.method, why] += 1
    for key, line in lines.items():
        if key not in current and _above(line, first):
            others[line.method, "removed"] += 1
    named = [f"{f'{n} of ' * (n > 1)}{method} ({why})" for (method, why), n in others.items()]
    return f"others: {', '.join(named)}" if named else "how rows are ranked"


def _above(line: Line, other: Line) -> bool:
    return line.rank is not None and other.rank is not None and line.rank < other.rank


def _rows_changed(first: Line, second: Line) -> str:
    added, removed = (
        len({*a.row_ids} - {*b.row_ids}) for a, b in ((second, first), (first, second))
    )
    parts = [f"{_rows(added)} added"] * bool(added) + [f"{_rows(removed)} removed"] * bool(removed)
    if not parts and first.values != second.values:
        parts = ["its rows have other values"]
    return ", ".join(parts)


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def changes_text(found: Sequence[Change], before: str, after: str) -> str:
    """Return a Markdown page of the changes.

    Args:
        found: the changes.
        before: name of the earlier release.
        after: that of the later one.
    """
    lines = [f"# Ranks of {markdown(after)} that {markdown(before)} did not have", ""]
    if not found:
        return "\n".join([*lines, "No rank has changed.", ""])
    for board in dict.fromkeys(change.board for change in found):
        lines += [
            f"## {markdown(board)}",
            "",
            "| method | before | after | cause |",
            "|---|---|---|---|",
        ]
        for change in found:
            if change.board == board:
                name = f"{change.method} ({change.variant})" if change.variant else change.method
                ranks = [str(r) if r is not None else "–" for r in (change.before, change.after)]
                cells = (markdown(name), *ranks, markdown(change.cause))
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
