"""Curves of accuracy over rounds and over bytes, from rows and records of rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import StoreError

if TYPE_CHECKING:
    from fedbench.bench.results.store.store import Store

_THREADS = 4
CURVE_METRICS = ("knn_acc", "linear_acc")
_COLUMNS = {
    "round_index": True,
    **dict.fromkeys(("bytes_up", "bytes_down", *(f"metrics.{m}" for m in CURVE_METRICS)), False),
}
"""Columns that are read from a record of a round, and True for those that it must have."""


@dataclass(frozen=True)
class Curve:
    """Evaluations of a run, from the untrained encoder to the end.

    Attributes:
        rounds: rounds done at each evaluation, ascending; 0 = untrained.
        num_bytes: sent until then, both directions.
        knn_acc, linear_acc: at each evaluation; None = not measured.
    """

    rounds: tuple[int, ...]
    num_bytes: tuple[int, ...]
    knn_acc: tuple[float | None, ...]
    linear_acc: tuple[float | None, ...]

    def at(self, rounds: Collection[int]) -> Curve:
        """Return the evaluations after some rounds; -1 is the last one."""
        last = len(self.rounds) - 1
        chosen = [i for i, r in enumerate(self.rounds) if (-1 if i == last else r) in rounds]
        return Curve(
            rounds=tuple(self.rounds[i] for i in chosen),
            num_bytes=tuple(self.num_bytes[i] for i in chosen),
            knn_acc=tuple(self.knn_acc[i] for i in chosen),
            linear_acc=tuple(self.linear_acc[i] for i in chosen),
        )


def common_rounds(curves: Sequence[Curve]) -> tuple[int, ...]:
    """Return the rounds after which all curves have a k-NN accuracy, ascending but for -1: the end.

    Methods with preparatory rounds end later than others; the end is therefore no number.
    """
    measured = [
        {
            -1 if place == len(curve.rounds) - 1 else done
            for place, (done, value) in enumerate(zip(curve.rounds, curve.knn_acc, strict=True))
            if value is not None
        }
        for curve in curves
    ]
    return tuple(sorted(set.intersection(*measured))) if measured else ()


def longest(curve: Curve) -> tuple[int, int]:
    """Return a key that is largest for the curve with the most evaluations, k-NN first."""
    knn = sum(value is not None for value in curve.knn_acc)
    return knn, sum(value is not None for value in curve.linear_acc)


def curve_of(row: Row, points: Sequence[Mapping[str, Any]]) -> Curve:
    """Collect the evaluations of a run.

    Args:
        row: holds the first and the last values.
        points: a record of every round, as `Store.curve` gives them; may be empty.

    Raises:
        StoreError: for records that are no rounds.
    """
    for point in points:
        for name, needed in _COLUMNS.items():
            _check(point, name, row, needed=needed)
    untrained = {name: getattr(row, f"untrained_{name}") for name in CURVE_METRICS}
    evaluations: list[tuple[int, int, Mapping[str, Any]]] = [(0, 0, untrained)]
    sent = 0
    for point in points:
        sent += int(point.get("bytes_up") or 0) + int(point.get("bytes_down") or 0)
        measured = {name: point.get(f"metrics.{name}") for name in CURVE_METRICS}
        evaluations.append((int(point["round_index"]) + 1, sent, measured))
    if row.bytes_up_down is not None:
        final = {name: getattr(row, name) for name in CURVE_METRICS}
        evaluations.append((row.rounds_done or 0, row.bytes_up_down, final))
    measured_at = [e for e in evaluations if any(e[2][name] is not None for name in CURVE_METRICS)]
    return Curve(
        rounds=tuple(done for done, _, _ in measured_at),
        num_bytes=tuple(num_bytes for _, num_bytes, _ in measured_at),
        knn_acc=tuple(values["knn_acc"] for _, _, values in measured_at),
        linear_acc=tuple(values["linear_acc"] for _, _, values in measured_at),
    )


def _check(point: Mapping[str, Any], name: str, row: Row, *, needed: bool) -> None:
    """Refuse a value that is no number from 0, or for an accuracy no number at all."""
    value = point.get(name)
    if value is None and needed:
        raise StoreError(f"the curve of run {row.row_id} has no column {name!r}")
    if value is not None and (
        not isinstance(value, int | float)
        or (not name.startswith("metrics.") and (value < 0 or not isinstance(value, int)))
    ):
        raise StoreError(f"the curve of run {row.row_id}: {name!r} holds {str(value)[:40]!r}")


def load_curves(store: Store, rows: Sequence[Row]) -> tuple[dict[str, Curve], list[str]]:
    """Return curves of finished rows by row id, and a line for every file that cannot be read."""

    def load(row: Row) -> Curve | str:
        try:
            return curve_of(row, store.curve(store.key(row)))
        except StoreError as error:
            return str(error)

    first: dict[str, Row] = {}  # of replicas
    for row in sorted(rows, key=lambda row: row.finished_at):
        if row.status == "ok":
            first.setdefault(row.row_id, row)
    done = [*first.values()]
    with ThreadPoolExecutor(_THREADS) as threads:
        loaded = list(zip((row.row_id for row in done), threads.map(load, done), strict=True))
    curves = {row_id: curve for row_id, curve in loaded if isinstance(curve, Curve)}
    return curves, sorted(problem for _, problem in loaded if isinstance(problem, str))


def over_rounds(
    of_entries: Sequence[Sequence[Curve]], reach: float | None
) -> list[tuple[float | None, float | None, float | None, int | None]]:
    """Return area, rounds and gigabytes to an accuracy, and seeds that reached it, by entry.

    Curves are compared at the evaluations that most entries have; entries that lack some of these
    have nothing. Entries without any evaluation between first and last count only if all are so.

    Args:
        of_entries: curves of the seeds of each entry of a class.
        reach: k-NN accuracy to look for; None = only the areas.
    """
    shared = [common_rounds(curves) for curves in of_entries]
    counts = Counter(rounds for rounds in shared if len(rounds) > 2) or Counter(shared)
    at = max(sorted(counts), key=lambda rounds: (counts[rounds], len(rounds)), default=())
    found: list[tuple[float | None, float | None, float | None, int | None]] = []
    for curves, rounds in zip(of_entries, shared, strict=True):
        if not curves or not {*at} <= {*rounds}:
            found.append((None, None, None, None))
            continue
        known = [curve.at(at) for curve in curves]
        there = [] if reach is None else [r for curve in known if (r := reached(curve, reach))]
        whole = there if len(there) == len(known) else []
        found.append(
            (
                mean([size for curve in known if (size := area(curve)) is not None]),
                mean([done for done, _ in whole]),
                mean([sent / 1e9 for _, sent in whole]),
                None if reach is None else len(there),
            )
        )
    return found


def area(curve: Curve) -> float | None:
    """Mean k-NN accuracy over the rounds, by trapezoids; None with fewer than two evaluations."""
    known = [(r, a) for r, a in zip(curve.rounds, curve.knn_acc, strict=True) if a is not None]
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return None
    total = sum((right - left) * (a + b) / 2 for (left, a), (right, b) in pairwise(known))
    return total / (known[-1][0] - known[0][0])


def reached(curve: Curve, accuracy: float) -> tuple[int, int] | None:
    """Round and bytes of the first evaluation with this k-NN accuracy; None if there is none."""
    for done, sent, value in zip(curve.rounds, curve.num_bytes, curve.knn_acc, strict=True):
        if value is not None and value >= accuracy:
            return done, sent
    return None
