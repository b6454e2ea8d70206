"""Ranks that differ between two sets of rows, each with its cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.store.frame import frame_of
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

    Lines of a class that is new have no earlier rank.
    """
    before, after = (list(rows) for rows in (old, new))
    boards = [leaderboard(frame_of(rows), published=False).groups for rows in (before, after)]
    was, now = ({group.class_id: group for group in groups} for groups in boards)
    found = []
    for class_id in dict.fromkeys((*was, *now)):
        earlier, later = was.get(class_id), now.get(class_id)
        lines, current = (
            {} if group is None else {_key(line): line for line in group.entries}
            for group in (earlier, later)
        )
        title = (later or was[class_id]).title
        for key in dict.fromkeys((*current, *lines)):
            first, second = lines.get(key), current.get(key)
            line = second or first
            ranks = [None if each is None else each.rank for each in (first, second)]
            if line is not None and ranks[0] != ranks[1]:
                cause = _class_left(before, after)
                if current:
                    cause = _rows_changed(first, second) or _others(
                        _above(first, lines) ^ _above(second, current)
                    )
                found.append(Change(title, line.method, line.variant, ranks[0], ranks[1], cause))
    return tuple(found)


def _class_left(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Say why a class is there no more."""
    old, new = ({row.benchmark_version for row in rows} for rows in (before, after))
    if new and old != new:
        return f"benchmark version {', '.join(sorted(new))} in place of {', '.join(sorted(old))}"
    return "all rows of this board were removed"


def _key(entry: Any) -> tuple[str, str]:
    return entry.method, entry.config_id


def _above(line: Any, lines: Mapping[tuple[str, str], Any]) -> set[tuple[str, str]]:
    """Return the keys of better lines."""
    if line is None or line.rank is None:
        return set()
    return {k for k, o in lines.items() if o.rank is not None and o.rank < line.rank}


def _others(keys: Iterable[tuple[str, str]]) -> str:
    """Name the methods of lines that came before or fell behind a line."""
    methods = sorted({method for method, _ in keys})
    return f"others: {', '.join(methods)}" if methods else "how rows are ranked"


def _rows_changed(first: Any, second: Any) -> str:
    """Say what has changed about the rows of a line; empty if nothing has."""
    before, after = (set() if line is None else {*line.row_ids} for line in (first, second))
    if first is None or second is None:
        number = len(before | after)
        return f"{'new' if first is None else 'removed'}, {number} row{'s' * (number > 1)}"
    parts = [
        f"{len(rows)} row{'s' * (len(rows) > 1)} {how}"
        for rows, how in ((after - before, "added"), (before - after, "removed"))
        if rows
    ]
    if not parts and first.values != second.values:
        parts = ["its rows have other values"]
    return ", ".join(parts)


def changes_text(found: Sequence[Change], before: str, after: str) -> str:
    """Return a Markdown page of the changes.

    Args:
        found: the changes.
        before: name of the earlier release.
        after: name of the later one.
    """
    lines = [f"# Ranks of {markdown(after)} that {markdown(before)} did not have", ""]
    if not found:
        return "\n".join([*lines, "No rank has changed.", ""])
    for board in dict.fromkeys(change.board for change in found):
        header = ["| method | before | after | cause |", "|---|---|---|---|"]
        lines += [f"## {markdown(board)}", "", *header]
        for change in found:
            if change.board == board:
                name = f"{change.method} ({change.variant})" if change.variant else change.method
                ranks = [str(r) if r is not None else "–" for r in (change.before, change.after)]
                cells = (markdown(name), *ranks, markdown(change.cause))
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
