"""Standing of each line beside the first of its class, and the differences that its seeds show.

A test that rejects nothing may lack the seeds to reject anything. A line that it does not tell from
the first counts as unclear, and not as alike, if no line of the class is told from the first, or if
it or a better placed line differs but for the adjustment to the number of tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.results.leaderboard.lines import Line, separation
from fedbench.bench.results.leaderboard.statistics import LEVEL


class Standing(StrEnum):
    """Place of a line beside the first of its class."""

    FIRST = "first"  # and the test tells some other line from it
    ALIKE = "alike"  # no sign of a difference from the first, here or better placed
    UNCLEAR = "unclear"  # not told from the first, for want of seeds
    WORSE = "worse"  # told from the first, or diverged
    UNTESTED = "untested"  # fewer than three seeds


@dataclass(frozen=True)
class Power:
    """Reach of the test of a class.

    Attributes:
        standings: one per line.
        num_tested: lines that were tested against the first.
        num_told: lines that the test tells from it.
        num_seeds: of the tested lines, the fewest and the most.
        detectable: smallest difference to the first that the test finds with probability 0.8,
            least and most of the tested lines.
        note: the same as a sentence.
    """

    standings: tuple[Standing, ...]
    num_tested: int
    num_told: int
    num_seeds: tuple[int, int] | None
    detectable: tuple[float, float] | None
    note: str


def power(lines: Sequence[Line]) -> Power:
    """Return the standings of the lines of a class, which are in the order of their ranks."""
    tested = {i: line for i, line in enumerate(lines) if line.p_best is not None}
    if not tested:
        note = (
            "" if len(lines) < 2 else "Not tested: fewer than 3 seeds of the first or the others."
        )
        return Power(tuple(_untested(line) for line in lines), 0, 0, None, None, note)
    tests = separation(lines)
    differ = [i for i in tested if tests.p(0, i) <= LEVEL]
    num_told = sum(not line.best for line in tested.values())
    limit = min(differ) if num_told else 0  # of the lines that are alike
    standings = tuple(_standing(line, index, limit) for index, line in enumerate(lines))
    sizes = [line.detectable or 0.0 for line in tested.values()]
    detectable = (min(sizes), max(sizes))
    counts = [lines[i].n_seeds for i in (0, *tested)]
    seeds = (min(counts), max(counts))
    number = " to ".join(map(str, dict.fromkeys(seeds)))
    test = f"{'Welch' if tests.welch else 't'} test over {number} seeds"
    note = _note(lines[0], standings, len(tested), num_told, test, detectable)
    return Power(standings, len(tested), num_told, seeds, detectable, note)


def _untested(line: Line) -> Standing:
    return Standing.WORSE if line.num_diverged else Standing.UNTESTED


def _standing(line: Line, index: int, limit: int) -> Standing:
    if line.num_diverged:
        return Standing.WORSE
    if index and line.p_best is None:
        return Standing.UNTESTED
    if index and not line.best:
        return Standing.WORSE
    if index >= limit:
        return Standing.UNCLEAR
    return Standing.ALIKE if index else Standing.FIRST


def _note(
    first: Line,
    standings: Sequence[Standing],
    num_tested: int,
    num_told: int,
    test: str,
    detectable: tuple[float, float],
) -> str:
    percent = is_accuracy(first.metric)
    least, most = (f"{d * 100:.1f}" if percent else f"{d:.3f}" for d in detectable)
    size = least if least == most else f"{least} to {most}"
    finest = f"it finds a difference of {size}{' points' * percent} with probability 0.8"
    if not num_told:
        others = "the other method" if num_tested == 1 else f"any of the other {num_tested}"
        return f"No best is marked: a {test} does not tell {others} from the first; {finest}."
    alike, unclear = standings.count(Standing.ALIKE), standings.count(Standing.UNCLEAR)
    note = f"Best: {first.method}"
    if alike:
        note += f", and {alike} that a {test} does not tell from it"
    else:
        note += f", told from {num_told} by a {test}"
    if unclear:
        note += f"; {unclear} unclear for want of seeds"
    return f"{note}; {finest}."
