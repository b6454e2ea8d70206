"""One key of the configuration: meaning, range, default, and its value under every preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic.fields import FieldInfo

from fedbench.bench.config.kinds import kind_text, unit
from fedbench.bench.method import registry
from fedbench.bench.runs.fields import check_key, field_infos
from fedbench.bench.runs.presets import Preset, load_preset, preset_names
from fedbench.bench.runs.resolve import variable
from fedbench.bench.tuning.space import read_space, space_file


@dataclass(frozen=True)
class PresetValue:
    """A value that a preset gives.

    Attributes:
        preset: name of the preset.
        value: the value.
        origin: `paper`, `code` (released with it) or `ours`; `default` where the preset has none.
        when: conditions of the preset's rule; empty = always.
        note: remark of the preset's file.
    """

    preset: str
    value: Any
    origin: str
    when: Mapping[str, Any]
    note: str


@dataclass(frozen=True)
class Explanation:
    """What is known of one key.

    Attributes:
        key: dotted name.
        methods: the methods, or the add-on, whose field it is; empty = every run has it.
        meaning: one line.
        kind: type and range.
        unit: unit of a number; empty = none.
        default: value without a preset.
        presets: values under each preset; of one preset, a later one wins where it holds.
        searched: method or add-on -> the range in its search space.
        variable: environment variable that sets it.
    """

    key: str
    methods: tuple[str, ...]
    meaning: str
    kind: str
    unit: str
    default: Any
    presets: tuple[PresetValue, ...]
    searched: Mapping[str, Mapping[str, Any]]
    variable: str

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class Explanations:
    """Explanations of one key: several where methods have different fields of one name."""

    entries: tuple[Explanation, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {"explanations": [entry.as_dict() for entry in self.entries]}


def explain(key: str, spec: str | None = None) -> Explanations:
    """Explain one key of the configuration.

    Args:
        key: dotted name, such as `client.lr` or `method.temperature`.
        spec: only for this method spec; None = for every method.

    Raises:
        UnknownNameError: for an unknown method.
        ConfigError: for an unknown key; names the nearest one.
    """
    fields = fields_by_key(spec)
    check_key(key, spec or "any method", fields)
    groups: list[tuple[FieldInfo, list[str]]] = []  # equal fields of several methods are one
    for owner, info in fields[key]:
        same = next((names for other, names in groups if _same(other, info)), None)
        if same is None:
            groups.append((info, [owner]))
        else:
            same.append(owner)
    return Explanations(tuple(_explanation(key, info, owners, spec) for info, owners in groups))


def fields_by_key(spec: str | None = None) -> dict[str, list[tuple[str, FieldInfo]]]:
    """Map dotted names to their fields, each after the method or add-on that has it.

    Args:
        spec: only those of this method spec; None = of every method and add-on.
    """
    fields: dict[str, list[tuple[str, FieldInfo]]] = {}
    for name in _specs() if spec is None else [registry.canonical_spec(spec)]:
        for key, info in field_infos(name).items():
            entry = (_owner(key, name), info)
            if entry[0] not in [owner for owner, _ in fields.setdefault(key, [])]:
                fields[key].append(entry)
    return fields


def _specs() -> list[str]:
    """Return every method alone, and each add-on on the first method that it fits."""
    known = registry.entries()
    methods = [name for name, entry in known.items() if not entry.is_addon]
    addons = [
        f"{bases[0]}+{name}"
        for name, entry in known.items()
        if entry.is_addon and (bases := entry.fits(methods))
    ]
    return [*methods, *addons]


def _spec(name: str) -> str:
    """Return the spec of `_specs` that ends in a method or add-on."""
    return next(spec for spec in _specs() if spec.rpartition("+")[2] == name)


def _owner(key: str, spec: str) -> str:
    """Return the method or add-on of a spec whose field a key is; "" for fields of every run."""
    method, *addons = spec.split("+")
    first, _, rest = key.partition(".")
    if first != "method":
        return ""
    return next((name for name in addons if rest.startswith(f"{name}.")), method)


def _same(one: FieldInfo, other: FieldInfo) -> bool:
    def facts(info: FieldInfo) -> tuple[Any, ...]:
        return info.description, kind_text(info), repr(_default(info))

    return facts(one) == facts(other)


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True)


def _explanation(key: str, info: FieldInfo, owners: list[str], spec: str | None) -> Explanation:
    named = tuple(filter(None, owners))
    values = [
        value
        for name in preset_names()
        for value in _values(key, load_preset(name), _default(info), named, spec)
    ]
    kind = kind_text(info)
    return Explanation(
        key,
        named,
        info.description or "",
        kind,
        unit(key) if "number" in kind else "",
        _default(info),
        tuple(values),
        dict(_searched(key, named, spec)),
        variable(key),
    )


def _values(
    key: str, preset: Preset, default: Any, owners: tuple[str, ...], spec: str | None
) -> list[PresetValue]:
    """Return a preset's values of a key: the one that always holds, then those of its rules.

    Values that a later rule replaces for every method in question are left out.
    """
    values = [PresetValue(preset.preset, default, "default", {}, "")]
    if entry := preset.values.get(key):
        values = [PresetValue(preset.preset, entry.value, entry.origin, {}, entry.note)]
    specs = [registry.canonical_spec(spec)] if spec else [_spec(name) for name in owners]
    for rule in preset.rules:
        held = [rule.fits(name) for name in specs]
        if (entry := rule.values.get(key)) and (any(held) or not specs):
            if held and all(held) and rule.when.keys() <= {"method", "addon"}:
                values = []
            values.append(
                PresetValue(preset.preset, entry.value, entry.origin, rule.when, entry.note)
            )
    return values


def _searched(
    key: str, owners: tuple[str, ...], spec: str | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the methods and add-ons whose search space has a key, with its range there."""
    names = [each.rpartition("+")[2] for each in _specs()]
    for name in owners or (names if spec is None else registry.canonical_spec(spec).split("+")):
        path = space_file(name)
        space = None if path is None else read_space(path, _spec(name))
        if space is not None and key in space.space:
            yield name, space.space[key].model_dump(mode="json")
