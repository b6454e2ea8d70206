"""Types, ranges, defaults and units of fields as text, for the reference page and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

_NAMES: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def kind_text(info: FieldInfo, quote: str = "") -> str:
    """Return type and range of a field: `number in [0, 1)`, or the words that it takes.

    Args:
        info: the field.
        quote: stands around each word that the field takes.
    """
    text, null, rest = _words(info.annotation, quote).partition(" or null")
    return f"{_ranged(text, info.metadata)}{null}{rest}"


def default_text(info: FieldInfo) -> str:
    """Return a field's default as YAML writes it."""
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _ranged(text: str, metadata: Iterable[Any]) -> str:
    bounds = dict(_bounds(metadata))
    low, high = bounds.get("low"), bounds.get("high")
    if low and high:
        text = f"{text} in {low}, {high}"
    elif low:
        text = f"{text} {'>' if low[0] == '(' else '≥'} {low[1:]}"
    return text


def _bounds(metadata: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for rule in metadata:
        if isinstance(rule, annotated_types.Ge):
            yield "low", f"[{rule.ge}"
        if isinstance(rule, annotated_types.Gt):
            yield "low", f"({rule.gt}"
        if isinstance(rule, annotated_types.Le):
            yield "high", f"{rule.le}]"
        if isinstance(rule, annotated_types.Lt):
            yield "high", f"{rule.lt})"


def _words(annotation: Any, quote: str) -> str:
    if annotation in _NAMES:
        return _NAMES[annotation]
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        rules = [rule for info in metadata for rule in getattr(info, "metadata", [info])]
        return _ranged(_words(inner, quote), rules)
    if get_origin(annotation) is Literal:
        return ", ".join(f"{quote}{option}{quote}" for option in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        return f"list of {_words(get_args(annotation)[0], quote)}"
    parts = [_words(part, quote) for part in get_args(annotation) if part is not Ellipsis]
    if get_origin(annotation) is None or not parts:
        return str(getattr(annotation, "__name__", annotation))
    return " or ".join(dict.fromkeys(part for part in parts if part))


_UNITS: Mapping[str, str] = {
    "every": "rounds",
    "rounds": "rounds",
    "epochs": "passes over the images",
    "passes": "passes over the images",
    "clients": "clients",
    "subset": "images",
    "examples": "images",
    "client_size": "images",
    "batch_size": "images",
    "knn_neighbours": "images",
    "width": "channels",
    "image_size": "pixels",
    "dim": "values of a vector",
    "participation": "share of the clients",
    "label_fraction": "share of the labels",
    "held_out": "share of the images",
    "probe_fractions": "share of the labels",
}
"""Ends of names and the units of their fields; all other numbers have none."""


def unit(name: str) -> str:
    """Return the unit of a number by the end of its name, in the project's vocabulary, or "".

    >>> unit("federation.num_rounds"), unit("method.hidden_dim"), unit("client.lr")
    ('rounds', 'values of a vector', '')
    """
    last = name.rpartition(".")[2]
    return next((text for end, text in _UNITS.items() if f"_{last}".endswith(f"_{end}")), "")
