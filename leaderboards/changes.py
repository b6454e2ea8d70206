"""Print which ranks of one store differ in another, with the cause, as Markdown.

Usage: `python -m fedbench.leaderboards.changes BEFORE AFTER`, two folders of results.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbench import open_store
from fedbench.bench.results.leaderboard.comparability import class_of
from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.store.frame import frame_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import markdown


@dataclass(frozen=True)
class Change:
    """An entry of a leaderboard whose rank is another one."""

    board: str  # title of its comparability class
    method: str
    variant: str  # the hyperparameters that tell it from others of its method; else empty
    before: int | None  # its rank; None if it was not ranked or not there
    after: int | None  # its rank now; None if it is not ranked or not there any more
    cause: str


def changes(old: Sequence[Row], new: Sequence[Row]) -> tuple[Change, ...]:
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


def _entries(rows: Sequence[Row]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """Return title and entry of each line, by class, method and configuration.

    The class is that of the line's own runs: which classes a board joins depends on its other rows.
    """
    of_run, found = {row.row_id: row for row in rows}, dict[tuple[str, ...], tuple[str, Any]]()
    board = leaderboard(frame_of(rows), published=False)
    for group in board.groups:
        for entry in group.entries:
            own = [class_of(of_run[i], board.metric) for i in entry.run_ids[:1]]
            key = (*(own or [group.class_id]), entry.method, entry.config_id)
            found[key] = group.title, entry
    return found


def _cause(before: set[str], after: set[str]) -> str:
    """Count the rows that an entry gained or lost; if none, the rows of others changed."""
    numbers = {"added": len(after - before), "removed": len(before - after)}
    parts = [f"{n} row{'s' * (n > 1)} {how}" for how, n in numbers.items() if n]
    return ", ".join(parts) or "rows of others"


def changes_text(found: Sequence[Change]) -> str:
    """Return the changes as Markdown."""
    lines = ["# Ranks that change", ""]
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


if __name__ == "__main__":
    old, new = (open_store(place).require() for place in sys.argv[1:])
    print(changes_text(changes(old.rows(), new.rows())), end="")
