"""Angles between classes and maps of features, where `cells/<row_id>/geometry.json` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedbench.bench.results.row import Row
from fedbench.bench.results.store import Store

FILE = "geometry.json"
MAX_MAPS = 40
"""Maps on a page, of the first runs; each has a thousand points or so."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _Histogram(_Part):
    median: float | None
    edges: list[float]
    counts: list[int]


class _Map(_Part):
    points: list[tuple[float, float]]
    labels: list[int]
    class_names: list[str]


class _Geometry(_Part):
    run_id: str
    title: str
    setting: str
    angles: dict[str, _Histogram]
    map: _Map | None


def geometries(store: Store, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """What the rows' files hold, in their order, and a line for every file that cannot be read."""
    found: list[dict[str, Any]] = []
    problems = []
    for row in rows:
        path = store.cell_dir(row.row_id) / FILE
        try:
            record = _Geometry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            problems.append(f"{str(path)!r}: {str(error).splitlines()[0]}")
            continue
        if len(found) >= MAX_MAPS:
            record = record.model_copy(update={"map": None})
        found.append(record.model_dump())
    return found, problems
