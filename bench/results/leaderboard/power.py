"""Standing of each entry beside the first of its class, and the differences that seeds show.

A test that rejects nothing may lack the seeds to reject anything. An entry that it does not tell
from the first counts as unclear, and not as alike, if no entry of the class is told from the first,
or if it or a better placed entry differs but for the adjustment to the number of tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def tested(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the ranked entries of a class with the tests between them, and what these can show.

    Columns `ties`, `best`, `p_best`, `detectable` and `standing` are added.
    """
    import pandas as pd

    entries: list[Any] = [*frame.itertuples(index=False, name="Entry")]
    tests = Separation(
        {
            i: entry.values
            for i, entry in enumerate(entries)
            if entry.rank is not None and not entry.num_diverged
        }
    )
    letters, others = tests.groups(), tests.places[1:]
    p = tests.adjusted(0, others) if 0 in letters and others else {}
    detectable = {i: tests.detectable(0, i, len(others)) for i in p}
    best: list[bool | None] = [
        False if entry.num_diverged and p else p[i] > LEVEL if i in p else None
        for i, entry in enumerate(entries)
    ]
    if p:
        best[0] = True
    # Places before the first entry that differs but for the adjustment; none if no entry is told.
    told = any(p[i] <= LEVEL for i in p)
    alike = range(min(i for i in p if tests.p(0, i) <= LEVEL)) if told else range(0)
    standings = [
        _standing(entry.num_diverged, best[i], i, i in alike) for i, entry in enumerate(entries)
    ]
    columns: dict[str, list[Any]] = {
        "ties": [letters.get(i) for i in range(len(entries))],
        "best": best,
        "p_best": [p.get(i) for i in range(len(entries))],
        "detectable": [detectable.get(i) for i in range(len(entries))],
        "standing": [str(standing) for standing in standings],
    }
    frame = frame.astype(object).assign(
        **{k: pd.Series(v, index=frame.index, dtype=object) for k, v in columns.items()}
    )
    if not p:
        few = "Not tested: fewer than 3 seeds of the first or the others."
        return frame, "" if len(entries) < 2 else few
    counts = [entries[i].n_seeds for i in (0, *p)]
    number = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
    test = f"{'Welch' if tests.welch else 't'} test over {number} seeds"
    return frame, _note(entries[0], standings, p, test, [*detectable.values()])


def _standing(diverged: int, best: bool | None, index: int, alike: bool) -> Standing:
    if diverged:
        return Standing.WORSE
    if best is None:
        return Standing.UNTESTED
    if not best:
        return Standing.WORSE
    if not alike:
        return Standing.UNCLEAR
    return Standing.ALIKE if index else Standing.FIRST


def _note(
    first: Any,
    standings: Sequence[Standing],
    p: Mapping[int, float],
    test: str,
    detectable: Sequence[float],
) -> str:
    percent = is_accuracy(first.metric)
    ends = (min(detectable), max(detectable))
    sizes = dict.fromkeys(f"{d * 100:.1f}" if percent else f"{d:.3f}" for d in ends)
    size = f"{' to '.join(sizes)}{' points' * percent}"
    finest = f"it finds a difference of {size} with probability 0.8"
    num_told = sum(value <= LEVEL for value in p.values())
    if not num_told:
        others = "the other method" if len(p) == 1 else f"any of the other {len(p)}"
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
