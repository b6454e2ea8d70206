"""Checks of the JSON inside of records: a stranger's store may hold anything there.

Readers rely on these checks and on nothing else: objects of bounded depth, metrics that are finite
numbers, settings of the kinds that a configuration has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Self, get_args

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbench.bench.config import RunConfig


def _check(fits: Callable[[Any], bool], what: str) -> Callable[[str | None], str | None]:
    """Return a check of a column: its texts are null or hold JSON that fits.

    JSON is of bounded depth, without NaN and infinity; numbers are of 64 bits.
    """

    def check(text: str | None) -> str | None:
        if text is not None and not fits(_parsed(text)):
            raise ValueError(f"is no {what}")
        return text

    return check


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < 2.0**1023)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


check_object = _check(_is_object, "JSON object")
check_objects = _check(
    lambda value: isinstance(value, list) and all(map(_is_object, value)), "list of JSON objects"
)
check_numbers = _check(
    lambda value: _is_object(value) and all(map(_is_number, value.values())),
    "JSON object of numbers",
)


def check_settings(text: str) -> str:
    """Return a text that holds a configuration, perhaps of another version of fedbench.

    Fields that this version knows have values of their kind; there may be fewer, and others.

    Raises:
        ValueError: for any other text.
    """
    config = _parsed(text)
    if not _is_object(config):
        raise ValueError("is no JSON object")
    for section, kinds in _kinds().items():
        values = config.get(section, {})
        if not isinstance(values, dict):
            raise ValueError(f"{section!r} is no object")
        for field, kind in kinds.items():
            if not _is_of(values.get(field), kind):
                raise ValueError(f"'{section}.{field}' is no {_WORDS[kind]}")
    for section in ("client", "data", "evaluation"):
        if section not in config:
            raise ValueError(f"{section!r} is missing")
    if config["data"].get("partition") is None:
        raise ValueError("'data.partition' is missing")
    return text


class _Best(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    params: dict[str, bool | int | float | str | None] | None = None


class _Study(BaseModel):
    """Keys of `study.json` that readers use; it may have fewer until its study has finished."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    study_id: str = ""
    spec: str = ""
    preset: str = ""
    sampler: str = ""
    data: str = ""
    dataset: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    finished_at: str | None = None
    trials: int = 0
    seeds_per_trial: int = 1
    best: _Best | None = None
    untrained: list[dict[str, int | float]] = Field(default_factory=list)
    cautions: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not all(isinstance(figures.get("seed"), int) for figures in self.untrained):
            raise ValueError("an entry of 'untrained' has no 'seed'")
        if self.finished_at is not None:
            needed = {"study_id", "spec", "preset", "trials", "seeds_per_trial"}
            if missing := sorted(needed - self.model_fields_set):
                raise ValueError(f"it is finished, but {missing[0]!r} is missing")
        return self


def check_study(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a `study.json` whose values have their kinds.

    Raises:
        ValueError: for any other content, on one line.
    """
    try:
        _Study.model_validate(meta)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {reason}" if where else reason) from err
    return meta


_WORDS = {bool: "truth value", float: "number", str: "text", list: "list"}


def _parsed(text: str) -> Any:
    value = pydantic_core.from_json(text, allow_inf_nan=False)  # refuses deep nesting
    json.dumps(value, allow_nan=False)  # refuses 1e999, which is read as infinity
    return value


def _is_of(value: Any, kind: type) -> bool:
    if value is None:
        return True
    return _is_number(value) if kind is float else isinstance(value, kind)


@cache
def _kinds() -> Mapping[str, Mapping[str, type]]:
    """Return the kind of every field by section; null stands for text where a field may be text."""
    config = RunConfig()

    def kind(section: BaseModel, field: str, value: object) -> type:
        if value is None and str in get_args(type(section).model_fields[field].annotation):
            return str
        return type(value) if isinstance(value, bool | str | list) else float

    return {
        name: {field: kind(getattr(config, name), field, value) for field, value in values.items()}
        for name, values in config.model_dump(mode="json").items()
        if isinstance(getattr(config, name), BaseModel)
    }
