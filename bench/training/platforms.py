"""Comparison of records of numeric platforms, as rows and checkpoints keep them."""

from collections.abc import Mapping, Sequence
from typing import Any

ARITHMETIC = "arithmetic"
"""Key under which a run adds to its record the hashes of what it computes on fixed images."""


def parts_apart(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the parts of one run that its records, of two processes, are known to compute apart.

    Rows and checkpoints of an older version have no such hashes, and tell nothing.
    """
    pairs = [
        (one.get(ARITHMETIC, {}), other.get(ARITHMETIC, {}))
        for one, other in zip(first, second, strict=False)
    ]
    return sorted({p for one, other in pairs for p in one.keys() & other if one[p] != other[p]})
