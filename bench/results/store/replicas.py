"""Comparison of rows of one run: their results to the last bit, and where they were computed.

Rows of one run are replicas if their results differ and so do the numeric platforms that computed
them. A store keeps them side by side.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import column_of
from fedbench.bench.system.identity import canonical_json, content_id
from fedbench.bench.training.platforms import parts_apart

CIRCUMSTANCES = frozenset(
    {
        "schema_version", "preset", "tuned", "study_id", "selection", "purpose", "grid",
        "scaled",
        "wall_seconds", "train_seconds", "peak_memory_bytes", "resumes",
        "started_at", "finished_at", "git_sha", "package_version", "environment", "argv",
        "hardware", "device", "platform", "platforms", "measured_from",
        "dataset",  # the name of its folder; the revision identifies the images
        "settings",  # have that name too; the ids cover the rest of it
    }
)  # fmt: skip
"""Fields of provenance and cost, in which rows of the same run may differ."""


@dataclass(frozen=True)
class Difference:
    """A column or metric in which two rows of one run are not equal."""

    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.name} {self.first} and {self.second}"


def results_of(row: Row) -> dict[str, Any]:
    """Return the results of a row by name, further metrics among them, traffic as JSON."""
    values = {name: value for name, value in dict(row).items() if name not in CIRCUMSTANCES}
    del values["further"]
    for name in ("traffic", "privacy"):
        value = values.pop(name)
        values[column_of(name)] = canonical_json(value) if value else None
    return {**values, **row.further}


def differences(first: Row, second: Row) -> list[Difference]:
    """Compare the results of two rows to the last bit.

    Of rows of two schema versions, a column that is null in the older one is not compared: the
    older schema may not have had it. Nor are the metrics of `measured_once`.
    """
    one, other = results_of(first), results_of(second)
    left_out = {*measured_once(first, second)}
    if left_out:  # what clients send for scores follows from which scores there are
        left_out |= {"objective_bytes", "untrained_objective_bytes"}
    if first.schema_version != second.schema_version:
        older = min(first, second, key=lambda row: row.schema_version)
        left_out |= {name for name, value in results_of(older).items() if value is None}
    return [found for found in unequal(one, other) if found.name not in left_out]


def unequal(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield a difference for each name with two values; what is missing is None."""
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield Difference(name, first.get(name), second.get(name))


def measured_once(first: Row, second: Row) -> list[str]:
    """Return the metrics that only one of two rows has, if they are of two versions of the code.

    One version may record more than another. Under one version such a metric is undefined in one
    of the rows, which is a difference.
    """
    if of_one_version(first, second):
        return []
    return sorted({*first.further} ^ {*second.further})


def of_one_version(first: Row, second: Row) -> bool:
    """Return True if two rows were made by one version of the code."""
    return (first.package_version, first.git_sha) == (second.package_version, second.git_sha)


def replica_hash(row: Row) -> str:
    """Return 8 hexadecimal digits of a hash of a row's results, the same for equal bits."""
    return content_id({k: v for k, v in results_of(row).items() if v is not None})[:8]


def replica_key(row: Row) -> str:
    """Return the name of a row's file and cell where the store has another row of its run."""
    return f"{row.row_id}@{replica_hash(row)}"


def platform_of(row: Row) -> str:
    """Return the numeric platform of a row for people."""
    return row.platform or "unknown platform"


def known_apart(first: Row, second: Row) -> bool:
    """Return True if the numeric platforms of two rows of one run are known to differ.

    By name, or in what this run computes on fixed images, if one version of the code computed both:
    an edit changes that on one processor, too.
    """
    if first.platform and second.platform and first.platform != second.platform:
        return True
    edited = (first.git_sha or "").endswith("-dirty") or not of_one_version(first, second)
    return not edited and bool(parts_apart(first.platforms, second.platforms))
