"""Curves of accuracy over rounds and over bytes, from rows and records of rounds."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.store.files import THREADS
from fedbench.bench.results.store.frame import lines
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError

CURVE_METRICS = ("knn_acc", "linear_acc")
_THEORY = (
    *("cluster_delta", "cluster_c", "anew_delta", "anew_c", "views_apart", "centroid_agrees"),
    *("client_identified", "local_mi", "global_mi", "label_mi"),
)
MEASURED = {name: f"metrics.{name}" for name in (*CURVE_METRICS, "online_acc", *_THEORY)} | {
    f"{part}.{what}": f"drift.{part}.{what}"
    for part in ("encoder", "heads")
    for what in ("norm", "cosine", "diversity")
}
"""What curves have of rounds -> its name in the records of rounds."""


class Evaluated(NamedTuple):
    """A round of a run: rounds done until then, bytes sent in both directions, what it measured."""

    rounds: int
    num_bytes: int
    values: Mapping[str, float]  # by names of `MEASURED`
    asked: int | None = None  # its number in `evaluation.rounds`, if it is there
    hours: float | None = None  # simulated until then; None without devices

    @property
    def knn(self) -> float | None:
        """The k-NN accuracy, if it was measured."""
        return self.values.get("knn_acc")


Curve = tuple[Evaluated, ...]
"""Rounds of a run with any of these, from the start (round 0) to the end."""


def _by_round(curve: Curve) -> dict[int, Evaluated]:
    """Return the evaluations with a k-NN accuracy by their round; the last one of all is -1.

    Methods with preparatory rounds end later than others; the end is therefore no number. A round
    of `evaluation.rounds` goes by the number that it has there, which leaves these rounds out.
    """
    last = len(curve) - 1
    numbered = ((-1 if i == last else e.asked or e.rounds, e) for i, e in enumerate(curve))
    return {number: e for number, e in numbered if e.knn is not None}


def longest(curve: Curve) -> tuple[int, int]:
    """Return a key that is largest for the curve with the most evaluations, k-NN first."""
    knn, linear = (sum(name in e.values for e in curve) for name in CURVE_METRICS)
    return knn, linear


def curve_of(row: Any, points: Sequence[Mapping[str, Any]]) -> Curve:
    """Collect the evaluations of a run from its row and its records of rounds, if there are any."""
    hours = 0.0 if any("simulated.seconds" in point for point in points) else None
    start = _there({name: getattr(row, f"untrained_{name}") for name in CURVE_METRICS})
    found = [Evaluated(0, 0, start, hours=hours)]
    sent, before = 0, int(row.rounds_done or 0) - int(row.num_rounds)  # preparatory rounds
    named = json.loads(row.config_json)["evaluation"].get("rounds", ())
    for point in points:
        hours = None if hours is None else hours + point["simulated.seconds"] / 3600
        sent += (point.get("bytes_up") or 0) + (point.get("bytes_down") or 0)
        values = _there({name: point.get(key) for name, key in MEASURED.items()})
        done = point["round_index"] + 1
        asked = done - before if done - before in named else None
        found.append(Evaluated(done, sent, values, asked, hours))
    if row.bytes_up is not None and row.bytes_down is not None:
        sent = int(row.bytes_up + row.bytes_down)
        end = _there({name: getattr(row, name) for name in CURVE_METRICS})
        found.append(Evaluated(int(row.rounds_done or 0), sent, end, hours=hours))
    return tuple(each for each in found if each.values)


def _there(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


Losses = Sequence[tuple[int, float]]
"""Rounds of a run and its mean local loss in each."""


def load_curves(
    store: Store, frame: pd.DataFrame
) -> tuple[dict[str, Curve], dict[str, Losses], list[str]]:
    """Return curves and losses of finished rows by row id, and a line for every unreadable file."""

    def load(row: Any) -> tuple[Curve, Losses] | str:
        try:
            points = store.curve(row.file)
        except StoreError as error:
            return str(error)
        losses = ((point["round_index"] + 1, point.get("loss")) for point in points)
        return curve_of(row, points), [(done, loss) for done, loss in losses if loss is not None]

    asked = ["row_id", "file", "rounds_done", "num_rounds", "config_json", "bytes_up", "bytes_down"]
    asked += [name for metric in CURVE_METRICS for name in (metric, f"untrained_{metric}")]
    done = frame[frame.status == "ok"].sort_values("finished_at", kind="stable")
    done = done.drop_duplicates("row_id")[asked]  # of replicas the first
    curves, losses, problems = dict[str, Curve](), dict[str, Losses](), []
    with ThreadPoolExecutor(THREADS) as threads:
        for row_id, found in zip(done.row_id, threads.map(load, lines(done)), strict=True):
            if isinstance(found, str):
                problems.append(found)
            else:
                curves[row_id], losses[row_id] = found
    return curves, losses, sorted(problems)


class Reached(NamedTuple):
    """How fast the seeds of a line got to an accuracy; None where that is not known."""

    area: float | None = None
    rounds_to_reach: float | None = None
    gb_to_reach: float | None = None
    hours_to_reach: float | None = None
    num_reached: int | None = None


def over_rounds(of_entries: Sequence[Sequence[Curve]], reach: float | None) -> list[Reached]:
    """Return area, rounds, gigabytes and hours to an accuracy, and seeds that reached it, by entry.

    Curves are compared at the evaluations that most entries have; entries that lack some of these
    have nothing. Entries without any evaluation between first and last count only if all are so.
    """
    by_round = [[*map(_by_round, curves)] for curves in of_entries]
    shared = [tuple(sorted(set.intersection(*map(set, of)))) if of else () for of in by_round]
    counts = Counter(rounds for rounds in shared if len(rounds) > 2) or Counter(shared)
    at = max(sorted(counts), key=lambda rounds: (counts[rounds], len(rounds)), default=())

    def summed(curves: Sequence[Mapping[int, Evaluated]], rounds: tuple[int, ...]) -> Reached:
        if not curves or not {*at} <= {*rounds}:
            return Reached()
        known = [[e for i, e in curve.items() if i in at] for curve in curves]
        there = [] if reach is None else [r for curve in known if (r := reached(curve, reach))]
        whole = there if len(there) == len(known) else []
        return Reached(
            mean([size for curve in known if (size := area(curve)) is not None]),
            mean([e.rounds for e in whole]),
            mean([e.num_bytes / 1e9 for e in whole]),
            mean([e.hours for e in whole if e.hours is not None]),
            None if reach is None else len(there),
        )

    return [*map(summed, by_round, shared)]


def area(curve: Sequence[Evaluated]) -> float | None:
    """Mean k-NN accuracy over the rounds, by trapezoids; None with fewer than two evaluations."""
    known = [(e.rounds, e.knn) for e in curve if e.knn is not None]
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return None
    total = sum((right - left) * (a + b) / 2 for (left, a), (right, b) in pairwise(known))
    return total / (known[-1][0] - known[0][0])


def reached(curve: Sequence[Evaluated], accuracy: float) -> Evaluated | None:
    """Return the first evaluation with this k-NN accuracy; None if there is none."""
    return next((e for e in curve if e.knn is not None and e.knn >= accuracy), None)
