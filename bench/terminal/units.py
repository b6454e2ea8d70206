"""Values of records as text for people: one format for each kind of number."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def text(name: str, value: Any) -> str:
    """Format a value of a record; a number by its name, which tells the unit.

    >>> text("linear_acc", 0.7972), text("bytes_up", 12_000), text("wall_seconds", 95)
    ('79.7 %', '12.0 kB', '1 min 35 s')
    >>> text("objective", -0.25), text("num_train", 1201), text("finish_hours", {1: 2.5})
    ('-0.25', '1,201', '1: 2 h 30 min')
    >>> text("cached", True), text("seeds", [0, 1]), text("error", None)
    ('yes', '0, 1', '')
    """
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {text(name, each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(text(name, each) for each in value)
    return str(value)


def _number(name: str, value: float) -> str:
    if "_acc" in name:
        return f"{value * 100:.1f} %"
    if "bytes" in name:
        return size(value)
    if name.endswith("hours"):
        return duration(value * 3600)
    if name.endswith("seconds"):
        return duration(value)
    if isinstance(value, int):
        return str(value) if name in ("seed", "year") else f"{value:,}"
    return f"{value:g}" if value.is_integer() else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a time span.

    >>> duration(0.0241), duration(7.4), duration(95), duration(7300), duration(3e5)
    ('24.1 ms', '7 s', '1 min 35 s', '2 h 1 min', '3 d 11 h')
    """
    if 0 < seconds < 0.5:
        return f"{seconds * 1000:.3g} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def size(num_bytes: float) -> str:
    """Format a number of bytes in decimal units.

    >>> size(812), size(6_532_096), size(2.5e9)
    ('812 B', '6.5 MB', '2.5 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def count(number: int, noun: str) -> str:
    """Format a number of things.

    >>> count(1, "run"), count(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parameters(values: Mapping[str, Any]) -> str:
    """Format settings on one line, as `--set` takes them.

    >>> parameters({"client.lr": 0.0312345678, "data.alpha": 100.0, "model.width": None})
    'client.lr=0.0312346 data.alpha=100 model.width=null'
    """
    from fedbench.bench.config.overrides import write_override  # loads pydantic

    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else write_override(name, value)
        for name, value in values.items()
    )
