"""One trial of a tuning study, and the way between it and the searcher's plain record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from fedbench.bench.config import canonical_json
from fedbench.bench.errors import StoreError
from fedbench.bench.results.row import (
    JSON,
    NUMBER,
    SCHEMA_VERSION,
    SCORE,
    SECONDS,
    Count,
    Record,
)


class Trial(Record):
    """One trial of a tuning study."""

    study_id: str = Field(description="the study it belongs to")
    number: Count = Field(description="position in the study, from 0", json_schema_extra=NUMBER)
    schema_version: int = Field(
        SCHEMA_VERSION, ge=1, description="version of these columns", json_schema_extra=NUMBER
    )
    status: str = Field(description="how the trial ended; ok, error, diverged or stopped")
    seeds: list[int] = Field(
        default_factory=list, description="seeds that were run", json_schema_extra=NUMBER
    )
    params_json: str = Field("{}", description="suggested values", json_schema_extra=JSON)
    objective: float | None = Field(
        None, description="mean label-free score over seeds", json_schema_extra=SCORE
    )
    watched_json: str = Field(
        "{}", description="metrics the search never saw", json_schema_extra=JSON
    )
    seconds: float | None = Field(None, ge=0, description="wall time", json_schema_extra=SECONDS)
    error: str | None = Field(None, description="what went wrong")
    extra_json: str = Field("{}", description="anything else", json_schema_extra=JSON)


_COLUMNS = frozenset(Trial.model_fields) - {"schema_version", "extra_json"}


def to_trial(study_id: str, number: int, record: Mapping[str, Any]) -> Trial:
    """The typed trial of a record; keys that are no columns go to `extra_json`.

    Raises:
        StoreError: a value that a column refuses, or that JSON cannot hold.
    """
    fields = {k: v for k, v in record.items() if k in _COLUMNS}
    fields |= {"study_id": study_id, "number": number}
    if "seeds" in fields:
        fields["seeds"] = list(fields["seeds"])
    rest = {k: v for k, v in record.items() if k not in _COLUMNS}
    try:
        for name in ("params", "watched"):
            if name in rest:
                fields[f"{name}_json"] = canonical_json(rest.pop(name))
        fields["extra_json"] = canonical_json(rest)
        return Trial(**fields)
    except ValidationError as cause:
        first = cause.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"trial {number} of {study_id!r}: {where}: {first['msg']}"
        raise StoreError(message) from cause
    except (TypeError, ValueError) as cause:
        raise StoreError(f"trial {number} of {study_id!r}: not JSON: {cause}") from cause


def from_trial(trial: Trial) -> dict[str, Any]:
    """The record: columns, further keys, and `params` and `watched` as dicts beside their JSON."""
    record = trial.model_dump(exclude={"extra_json"})
    record["params"] = json.loads(trial.params_json)
    record["watched"] = json.loads(trial.watched_json)
    return {**json.loads(trial.extra_json), **record}
