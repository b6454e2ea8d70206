"""Accuracy over rounds and over bytes: the curve of a run from its row and its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import StoreError

if TYPE_CHECKING:
    from fedbench.bench.results.store.store import Store


_THREADS = 4
METRICS = ("knn_acc", "linear_acc")


@dataclass(frozen=True)
class Curve:
    """What was measured while a run went on, from the untrained encoder to the end.

    Attributes:
        rounds: rounds done at each evaluation, ascending; 0 = untrained.
        num_bytes: sent until then, both directions.
        knn_acc, linear_acc: at each evaluation; None = not measured.
    """

    rounds: tuple[int, ...]
    num_bytes: tuple[int, ...]
    knn_acc: tuple[float | None, ...]
    linear_acc: tuple[float | None, ...]


def curve_of(row: Row, points: Sequence[Mapping[str, Any]]) -> Curve:
    """The evaluations of a run.

    Args:
        row: its first and last values stand here.
        points: a record of every round, as `Store.curve` gives them; may be empty.

    Raises:
        StoreError: for records that are no rounds.
    """
    if any("round_index" not in point for point in points):
        raise StoreError(f"the curve of run {row.row_id} has no column 'round_index'")
    found: list[tuple[int, int, Mapping[str, Any]]] = []
    sent = 0
    untrained = {name: getattr(row, f"untrained_{name}") for name in METRICS}
    found.append((0, 0, untrained))
    for point in points:
        sent += int(point.get("bytes_up") or 0) + int(point.get("bytes_down") or 0)
        measured = {name: point.get(f"metrics.{name}") for name in METRICS}
        found.append((int(point["round_index"]) + 1, sent, measured))
    if row.bytes_up is not None and row.bytes_down is not None:
        final = {name: getattr(row, name) for name in METRICS}
        found.append((row.rounds_done or 0, row.bytes_up + row.bytes_down, final))
    kept = [each for each in found if any(each[2][name] is not None for name in METRICS)]
    return Curve(
        rounds=tuple(each[0] for each in kept),
        num_bytes=tuple(each[1] for each in kept),
        knn_acc=tuple(each[2]["knn_acc"] for each in kept),
        linear_acc=tuple(each[2]["linear_acc"] for each in kept),
    )


def load_curves(store: Store, rows: Sequence[Row]) -> tuple[dict[str, Curve], list[str]]:
    """The curves of finished rows by row id, and a line for every file that cannot be read."""

    def load(row: Row) -> Curve | str:
        try:
            return curve_of(row, store.curve(row.row_id))
        except StoreError as error:
            return str(error)

    done = [row for row in rows if row.status == "ok"]
    with ThreadPoolExecutor(_THREADS) as threads:
        found = dict(zip((row.row_id for row in done), threads.map(load, done), strict=True))
    curves = {row_id: each for row_id, each in found.items() if isinstance(each, Curve)}
    return curves, sorted(each for each in found.values() if isinstance(each, str))


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
