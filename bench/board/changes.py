"""Ranks that differ between two sets of rows, each with its cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.store.frame import frame_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import markdown


@dataclass(frozen=True)
class Change:
    """An entry of a leaderboard whose rank is another one.

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
    """Return every entry whose rank differs, class by class, in the order of the new ranks."""
    before, after = _entries(old), _entries(new)
    found = []
    for key in dict.fromkeys((*after, *before)):
        title, entry = after.get(key) or before[key]
        pair = [entries[key][1] if key in entries else None for entries in (before, after)]
        first, second = (None if each is None else each.rank for each in pair)
        if first != second:
            cause = _cause(*(set() if each is None else {*each.run_ids} for each in pair))
            found.append(Change(title, entry.method, entry.variant, first, second, cause))
    return tuple(found)


def _entries(rows: Iterable[Row]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """Return titles and entries of all boards, by class, method and configuration."""
    groups = leaderboard(frame_of(list(rows)), published=False).groups
    return {
        (group.class_id, entry.method, entry.config_id): (group.title, entry)
        for group in groups
        for entry in group.entries
    }


def _cause(before: set[str], after: set[str]) -> str:
    """Say how the rows of an entry have changed, else that those of others have."""
    numbers = {"added": len(after - before), "removed": len(before - after)}
    parts = [f"{n} row{'s' * (n > 1)} {how}" for how, n in numbers.items() if n]
    return ", ".join(parts) or "rows of others"


def changes_text(found: Sequence[Change], before: str, after: str) -> str:
    """Return a Markdown page of the changes."""
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
