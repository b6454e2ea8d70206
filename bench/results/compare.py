"""What of a row is its result, and where two rows of one run disagree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fedbench.bench.results.row import Row

CIRCUMSTANCES = frozenset(
    {
        "schema_version",
        "preset",
        "tuned",
        "study_id",
        "selection",
        "wall_seconds",
        "train_seconds",
        "peak_memory_bytes",
        "resumes",
        "started_at",
        "finished_at",
        "git_sha",
        "package_version",
        "env_json",
        "hardware",
        "device",
        "argv",
        "grid",
        "dataset",  # the name of its folder; the revision says which images
        "config_json",  # likewise; the ids stand for all of it that matters
    }
)
"""Columns that say how a row came about; the same run may differ in them."""


@dataclass(frozen=True)
class Difference:
    """A column (or a key of `metrics_json`) in which two rows of one run are not equal."""

    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.name} {self.first} and {self.second}"


def results_of(row: Row) -> dict[str, Any]:
    """The results of a row by name, every metric by itself."""
    values = {name: value for name, value in dict(row).items() if name not in CIRCUMSTANCES}
    values.update(json.loads(values.pop("metrics_json") or "{}"))
    return values


def differences(first: Row, second: Row) -> list[Difference]:
    """Where the results of two rows are not the same to the last bit.

    Of rows of two schema versions, a column that is null in the older one is not compared: the
    older schema may not have had it.
    """
    one, other = results_of(first), results_of(second)
    if first.schema_version != second.schema_version:
        older = min(first, second, key=lambda row: row.schema_version)
        for name in [name for name in Row.model_fields if getattr(older, name) is None]:
            one.pop(name, None)
            other.pop(name, None)
    return [
        Difference(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]
