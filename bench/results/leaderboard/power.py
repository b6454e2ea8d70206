"""Standing of each entry beside the first of its class, and the differences that seeds show.

A test that rejects nothing may lack the seeds to reject anything. An entry that it does not tell
from the first counts as unclear, and not as alike, if no entry of the class is told from the first,
or if it or a better placed entry differs but for the adjustment to the number of tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.results.leaderboard.separation import Separation
from fedbench.bench.results.leaderboard.statistics import LEVEL

if TYPE_CHECKING:
    import pandas as pd


class Standing(StrEnum):
    """Place of an entry beside the first of its class."""

    FIRST = "first"  # and the test tells some other entry from it
    ALIKE = "alike"  # no sign of a difference from the first, here or better placed
    UNCLEAR = "unclear"  # not told from the first, for want of seeds
    WORSE = "worse"  # told from the first, or diverged
    UNTESTED = "untested"  # fewer than three seeds


@dataclass(frozen=True)
class Power:
    """Reach of the test of a class.

    Attributes:
        num_tested: entries that were tested against the first.
        num_told: entries that the test tells from it.
        num_seeds: of the tested entries, the fewest and the most.
        detectable: smallest difference to the first that the test finds with probability 0.8,
            least and most of the tested entries.
        note: the same as a sentence.
    """

    num_tested: int
    num_told: int
    num_seeds: tuple[int, int] | None
    detectable: tuple[float, float] | None
    note: str


def tested(frame: pd.DataFrame) -> tuple[pd.DataFrame, Power]:
    """Return the ranked entries of a class with the tests between them, and what these can show.

    Columns `ties`, `best`, `p_best`, `detectable` and `standing` are added.
    """
    entries: list[Any] = [*frame.itertuples(index=False, name="Entry")]
    tests = Separation(
        {
            i: entry.values
            for i, entry in enumerate(entries)
            if entry.rank is not None and not entry.num_diverged
        }
    )
    letters, others = tests.groups(), tests.places[1:]
    p: dict[int, float] = {}
    if 0 in letters and others:
        p = tests.adjusted(0, others)
    found = {i: tests.detectable(0, i, len(others)) for i in p}
    best: list[bool | None] = [
        False if entry.num_diverged and p else p[i] > LEVEL if i in p else None
        for i, entry in enumerate(entries)
    ]
    num_told = sum(p[i] <= LEVEL for i in p)
    limit = 0  # of the entries that are alike
    if num_told:
        limit = min(i for i in p if tests.p(0, i) <= LEVEL)
    if p:
        best[0] = True
    standings = [
        _standing(entry.num_diverged, best[i], i, limit) for i, entry in enumerate(entries)
    ]
    columns: dict[str, list[Any]] = {
        "ties": [letters.get(i) for i in range(len(entries))],
        "best": best,
        "p_best": [p.get(i) for i in range(len(entries))],
        "detectable": [found.get(i) for i in range(len(entries))],
        "standing": [str(standing) for standing in standings],
    }
    frame = frame.astype(object).assign(
        **{name: _objects(frame, values) for name, values in columns.items()}
    )
    if not p:
        few = "Not tested: fewer than 3 seeds of the first or the others."
        note = "" if len(entries) < 2 else few
        return frame, Power(0, 0, None, None, note)
    counts = [entries[i].n_seeds for i in (0, *p)]
    seeds, detectable = (min(counts), max(counts)), (min(found.values()), max(found.values()))
    number = " to ".join(map(str, dict.fromkeys(seeds)))
    test = f"{'Welch' if tests.welch else 't'} test over {number} seeds"
    note = _note(entries[0], standings, len(p), num_told, test, detectable)
    return frame, Power(len(p), num_told, seeds, detectable, note)


def _objects(frame: pd.DataFrame, values: Sequence[Any]) -> pd.Series[Any]:
    import pandas as pd

    return pd.Series(values, index=frame.index, dtype=object)


def _standing(diverged: int, best: bool | None, index: int, limit: int) -> Standing:
    if diverged:
        return Standing.WORSE
    if best is None:
        return Standing.UNTESTED
    if not best:
        return Standing.WORSE
    if index >= limit:
        return Standing.UNCLEAR
    return Standing.ALIKE if index else Standing.FIRST


def _note(
    first: Any,
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
