"""One key of a configuration: meaning, range, default, and its value in every preset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from fedbench.bench.method import registry
from fedbench.bench.runs.fields import field_infos
from fedbench.bench.runs.presets import load_preset, preset_names
from fedbench.bench.system.errors import ConfigError, nearest


@dataclass(frozen=True)
class PresetValue:
    """Value of a key in a preset.

    Attributes:
        preset: its name.
        where: conditions of the rule that gives it, as `method=simclr`; empty = always.
        value: the value.
        origin: `paper`, `code` or `ours`.
        note: remark of the preset file.
    """

    preset: str
    where: str
    value: Any
    origin: str
    note: str


@dataclass(frozen=True)
class Meaning:
    """One field that a key names; a key of a method may be a field of several.

    Attributes:
        owner: the method or add-on, or empty for a field of every run.
        description: its meaning, with its unit.
        kind: type and range.
        default: value without a preset, as YAML.
    """

    owner: str
    description: str
    kind: str
    default: str


@dataclass(frozen=True)
class Explanation:
    """A key, the fields that it names, and its values in presets."""

    key: str
    meanings: tuple[Meaning, ...]
    presets: tuple[PresetValue, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return asdict(self)


def explain(key: str) -> Explanation:
    """Explain a dotted name, such as `client.lr` or `method.temperature`.

    Raises:
        ConfigError: for a name that no method has; names those that end alike, or the nearest.
    """
    fields: dict[str, list[tuple[str, FieldInfo]]] = {}
    for owner, name, info in _fields():
        fields.setdefault(name, []).append((owner, info))
    if key not in fields:
        last = key.rpartition(".")[2]
        alike = [name for name in fields if name.rpartition(".")[2] == last]
        close = alike or [name for name in [nearest(key, fields)] if name is not None]
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ConfigError(
            f"no configuration has {key!r}{hint} (docs/configuration.md has all keys)"
        )
    meanings = tuple(
        Meaning(owner, info.description or "", kind(info), default(info))
        for owner, info in fields[key]
    )
    return Explanation(key, meanings, tuple(_preset_values(key)))


def _fields() -> Iterable[tuple[str, str, FieldInfo]]:
    """Yield owner, dotted name and field of all that can be set."""
    entries = registry.entries()
    methods = [entry.name for entry in entries.values() if not entry.is_addon]
    yield from (
        ("", name, info)
        for name, info in field_infos(methods[0]).items()
        if not name.startswith("method.")
    )
    for entry in entries.values():
        prefix = f"method.{entry.name}" if entry.is_addon else "method"
        for name, info in entry.cls.model_fields.items():
            if name != "base":
                yield entry.name, f"{prefix}.{name}", info


def _preset_values(key: str) -> Iterable[PresetValue]:
    for name in preset_names():
        preset = load_preset(name)
        blocks: list[tuple[str, Mapping[str, Any]]] = [("", preset.values)]
        for rule in preset.rules:
            where = ", ".join(f"{k}={'|'.join(map(str, rule.allowed(k)))}" for k in rule.when)
            blocks.append((where, rule.values))
        for where, values in blocks:
            if key in values:
                entry = values[key]
                yield PresetValue(name, where, entry.value, entry.origin, entry.note)


def kind(info: FieldInfo) -> str:
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


def default(info: FieldInfo) -> str:
    """Default of a field, as YAML has it."""
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
