"""Write docs/configuration.md from the fields of the configuration and of every method.

Usage: `python docs/reference.py`; a test compares the page with the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedbench.bench.config import RunConfig
from fedbench.bench.method import registry

PAGE = Path(__file__).with_name("configuration.md")
_INTRODUCTION = """# Configuration

<!-- Written by docs/reference.py from the fields themselves; do not edit. -->

One vocabulary serves everywhere: `client.lr` in a YAML file (`--config FILE`),
`--set client.lr=0.01` on the command line, `FEDBENCH__CLIENT__LR=0.01` in the environment,
`set={"client.lr": 0.01}` in Python, and the columns of a leaderboard. Later sources win: field
defaults, preset, tuned values, YAML files in order, environment, `--set`, `--seed`.
`fedbench config SPEC` prints the resolved configuration and the source of every value.

YAML files follow the core schema of YAML 1.2: `1e-3` is a number, `off` and `1:30` are text.
"""


def reference() -> str:
    """Text of the page: one table for each section of the configuration and for each method."""
    parts = [_INTRODUCTION]
    plain = {}
    for name, info in RunConfig.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            summary = (info.annotation.__doc__ or "").splitlines()[0]
            parts.append(_section(f"`{name}`", summary, name, info.annotation.model_fields.items()))
        elif name not in ("spec", "method"):
            plain[name] = info
    parts.insert(1, _section("Run", "Fields of the whole run.", "", plain.items()))
    parts.append(
        "## `method`\n\nFields of a method are set as `method.FIELD`, those of an add-on as"
        " `method.ADDON.FIELD`.\n"
    )
    for entry in registry.entries().values():
        prefix = f"method.{entry.name}" if entry.is_addon else "method"
        fields = [item for item in entry.cls.model_fields.items() if item[0] != "base"]
        kind = "Add-on" if entry.is_addon else "Method"
        parts.append(_section(f"{kind} `{entry.name}`", entry.summary, prefix, fields, level=3))
    return "\n".join(parts)


def _section(
    title: str,
    summary: str,
    prefix: str,
    fields: Iterable[tuple[str, FieldInfo]],
    *,
    level: int = 2,
) -> str:
    rows = [
        f"| `{f'{prefix}.{name}' if prefix else name}` | {_kind(info)} | {_default(info)} |"
        f" {_escaped(info.description or '')} |"
        for name, info in fields
    ]
    head = f"{'#' * level} {title}\n\n{_escaped(summary)}\n"
    if not rows:
        return head
    return (
        f"{head}\n| name | value | default | meaning |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _kind(info: FieldInfo) -> str:
    """Type and range of a field, as `number in [0, 1)` or the words that it takes."""
    text, null, rest = _words(info.annotation).partition(" or null")
    return f"{_ranged(text, info.metadata)}{null}{rest}"


def _ranged(text: str, metadata: Iterable[Any]) -> str:
    bounds = dict(_bounds(metadata))
    low, high = bounds.get("low"), bounds.get("high")
    if low and high:
        text = f"{text} in {low}, {high}"
    elif low:
        text = f"{text} {'>' if low[0] == '(' else '≥'} {low[1:]}"
    return text


def _bounds(metadata: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for rule in metadata:
        if isinstance(rule, annotated_types.Ge):
            yield "low", f"[{rule.ge}"
        if isinstance(rule, annotated_types.Gt):
            yield "low", f"({rule.gt}"
        if isinstance(rule, annotated_types.Le):
            yield "high", f"{rule.le}]"
        if isinstance(rule, annotated_types.Lt):
            yield "high", f"{rule.lt})"


_NAMES: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def _words(annotation: Any) -> str:
    if annotation in _NAMES:
        return _NAMES[annotation]
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        rules = [rule for info in metadata for rule in getattr(info, "metadata", [info])]
        return _ranged(_words(inner), rules)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{option}`" for option in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        return f"list of {_words(get_args(annotation)[0])}"
    parts = [_words(part) for part in get_args(annotation) if part is not Ellipsis]
    if get_origin(annotation) is None or not parts:
        return str(getattr(annotation, "__name__", annotation))
    return " or ".join(dict.fromkeys(part for part in parts if part))


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
