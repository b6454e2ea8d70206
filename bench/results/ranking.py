"""Order, ranks and the best set of the lines of one comparability class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedbench.bench.results.statistics import LEVEL, holm, paired_p

if TYPE_CHECKING:
    from fedbench.bench.results.lines import Line

LOWER_IS_BETTER = frozenset({"final_loss", "collapsed", "idle_clients"})


def score(metric: str, value: float) -> float:
    """The value, turned so that higher is better."""
    return -value if metric in LOWER_IS_BETTER else value


def ranked(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Best first, lines with diverged runs after all others, unranked lines at the end."""

    def place(line: Line) -> tuple[bool, bool, float]:
        if line.mean is None:
            return bool(line.num_diverged), True, 0.0
        return bool(line.num_diverged), False, -score(line.metric, line.mean)

    def counts(line: Line) -> bool:
        return line.selection != "oracle" and (line.mean is not None or line.num_diverged > 0)

    ordered = sorted(
        lines,
        key=lambda line: (not counts(line), place(line), line.method, line.variant, line.config_id),
    )
    ranks: list[Line] = []
    for position, line in enumerate(ordered, start=1):
        rank: int | None = None
        if counts(line):
            tied = bool(ranks) and place(ranks[-1]) == place(line)
            rank = ranks[-1].rank if tied else position
        ranks.append(replace(line, rank=rank))
    return _with_best_set(ranks)


def _with_best_set(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Mark the first line and all that a paired test over seeds cannot tell from it.

    The tests are adjusted by Holm's rule for their number. Nothing is marked where no line shares
    three seeds with the first.
    """
    if not lines or lines[0].rank is None or lines[0].mean is None or lines[0].num_diverged:
        return tuple(lines)
    first = dict(zip(lines[0].seeds, lines[0].values, strict=True))
    found: dict[str, float] = {}
    for line in lines[1:]:
        if line.rank is None or line.num_diverged:
            continue
        pairs = [
            (first[seed], value)
            for seed, value in zip(line.seeds, line.values, strict=True)
            if seed in first
        ]
        p = paired_p([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        if p is not None:
            found[line.config_id] = p
    if not found:
        return tuple(lines)
    adjusted = dict(zip(found, holm(list(found.values())), strict=True))
    marked = [replace(lines[0], best=True)]
    for line in lines[1:]:
        p = adjusted.get(line.config_id)
        best = False if line.num_diverged else None if p is None else p > LEVEL
        marked.append(replace(line, best=best, p_best=p))
    return tuple(marked)
