"""What a line of the leaderboard cost its clients, and what it kept from the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedbench.bench.results.row import Row, per_gigabyte
from fedbench.bench.results.statistics import mean


def costs(rows: Sequence[Row], value: float | None) -> dict[str, Any]:
    """Fields of a line, from the finished runs of one configuration.

    Args:
        rows: one for each seed; of privacy the weakest counts.
        value: the line's metric.
    """
    epsilons = [row.epsilon for row in rows if row.epsilon is not None]
    everywhere = bool(rows) and len(epsilons) == len(rows)
    return {
        "mb_up": _megabytes(row.bytes_up for row in rows),
        "mb_down": _megabytes(row.bytes_down for row in rows),
        "per_gb": mean([each for row in rows if (each := per_gigabyte(row, value)) is not None]),
        "epsilon": max(epsilons) if everywhere else None,
        "epsilon_of": rows[0].epsilon_of if everywhere else None,
        "revealing_messages": max((row.revealing_messages or 0 for row in rows), default=None),
    }


def _megabytes(sizes: Iterable[int | None]) -> float | None:
    return mean([size / 1e6 for size in sizes if size is not None])
