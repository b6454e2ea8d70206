"""One key of the configuration: meaning, range, default, and its value under every preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic.fields import FieldInfo

from fedbench.bench.config.kinds import kind_text
from fedbench.bench.config.presets import Preset
from fedbench.bench.method import registry
from fedbench.bench.runs.fields import check_key, field_infos
from fedbench.bench.runs.presets import load_preset, preset_names
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
        default: value without a preset.
        presets: values under each preset; of one preset, a later one wins where it holds.
        searched: method or add-on -> the range in its search space.
        variable: environment variable that sets it.
    """

    key: str
    methods: tuple[str, ...]
    meaning: str
    kind: str
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
    alike: dict[str, tuple[FieldInfo, list[str]]] = {}  # equal fields of several methods are one
    for owner, info in fields[key].items():
        facts = repr((info.description, kind_text(info), _default(info)))
        alike.setdefault(facts, (info, []))[1].append(owner)
    groups = alike.values()
    return Explanations(tuple(_explanation(key, info, owners, spec) for info, owners in groups))


def fields_by_key(spec: str | None = None) -> dict[str, dict[str, FieldInfo]]:
    """Map dotted names to their fields, by the method or add-on that has them; "" = every run.

    Args:
        spec: only the fields of this method spec; None = of every method and add-on.
    """
    fields: dict[str, dict[str, FieldInfo]] = {}
    for name in registry.specs() if spec is None else [registry.canonical_spec(spec)]:
        method, *addons = name.split("+")
        for key, info in field_infos(name).items():
            first, _, rest = key.partition(".")
            owner = next((addon for addon in addons if rest.startswith(f"{addon}.")), method)
            fields.setdefault(key, {}).setdefault(owner if first == "method" else "", info)
    return fields


def _specs() -> dict[str, str]:
    """Map every method to itself, and each add-on to the first spec that has it alone."""
    return {spec.rpartition("+")[2]: spec for spec in reversed(registry.specs())}


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True)


def _explanation(key: str, info: FieldInfo, owners: list[str], spec: str | None) -> Explanation:
    named = tuple(filter(None, owners))
    default, presets = _default(info), map(load_preset, preset_names())
    return Explanation(
        key,
        named,
        info.description or "",
        kind_text(info),
        default,
        tuple(v for preset in presets for v in _values(key, preset, default, named, spec)),
        dict(_searched(key, named, spec)),
        variable(key),
    )


def _values(
    key: str, preset: Preset, default: Any, owners: tuple[str, ...], spec: str | None
) -> list[PresetValue]:
    """Return a preset's values of a key: the one that always holds, then its rules' values.

    Values that a later rule replaces for every method in question are left out.
    """
    values = [PresetValue(preset.preset, default, "default", {}, "")]
    if entry := preset.values.get(key):
        values = [PresetValue(preset.preset, entry.value, entry.origin, {}, entry.note)]
    specs = [registry.canonical_spec(spec)] if spec else [_specs()[name] for name in owners]
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
    specs = _specs()
    for name in owners or (specs if spec is None else registry.canonical_spec(spec).split("+")):
        path = space_file(name)
        space = None if path is None else read_space(path, specs[name])
        if space is not None and key in space.space:
            yield name, space.space[key].model_dump(mode="json")
