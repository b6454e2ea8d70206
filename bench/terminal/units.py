"""Durations, sizes, counts, fractions and settings as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def duration(seconds: float) -> str:
    """Format a time span.

    >>> duration(7.4), duration(95), duration(7300)
    ('7 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(num_bytes: float) -> str:
    """Format a number of bytes in decimal units.

    >>> size(812), size(6_532_096), size(2.5e9)
    ('812 B', '6.5 MB', '2.5 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def count(number: int, noun: str, plural: str = "", *, comma: bool = True) -> str:
    """Format a number of things, with commas between thousands unless `comma` is false.

    >>> count(1, "run"), count(1200, "run"), count(0, "study", "studies")
    ('1 run', '1,200 runs', '0 studies')
    """
    return f"{number:{',' if comma else ''}} {noun if number == 1 else plural or f'{noun}s'}"


def percent(value: float) -> str:
    """Format a fraction as a percentage with one decimal.

    >>> percent(0.7972)
    '79.7 %'
    """
    return f"{value * 100:.1f} %"


def spread(least: float, median: float, most: float) -> str:
    """Format the range of some numbers.

    >>> spread(0, 7, 1200), spread(19, 19, 19)
    ('0 to 1,200 (median 7)', '19')
    """
    return f"{most:,}" if least == most else f"{least:,} to {most:,} (median {median:,g})"


def parameters(values: Mapping[str, Any]) -> str:
    """Format settings on one line.

    >>> parameters({"client.lr": 0.0312345, "client.batch_size": 16})
    'client.lr=0.03123 client.batch_size=16'
    """
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    )
