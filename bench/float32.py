"""Which numbers a configuration may hold: those that training, in float32, can compute with."""

from __future__ import annotations

from typing import Any

LARGEST = 1e37
"""float32 ends at 3.4e38; the rest is room for what optimizers multiply with, Adam's 1/(1 - 0.9)
above all, so that torch never refuses a factor in the middle of a run."""
SMALLEST = 1e-45
"""What is smaller becomes 0 in float32."""


def fitting(value: Any) -> Any:
    """The value itself, for the validators of pydantic models.

    Raises:
        ValueError: for a number that float32 cannot hold.
    """
    if isinstance(value, float) and abs(value) > LARGEST:
        raise ValueError(f"must be at most {LARGEST:g} in size, since training is in float32")
    if isinstance(value, float) and 0 < abs(value) < SMALLEST:
        raise ValueError(f"must be at least {SMALLEST:g} in size, since training is in float32")
    return value
