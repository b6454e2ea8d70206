"""Presets: complete settings in YAML, every value with its origin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.config.yaml_files import installed, load_named, load_yaml, no_such_file
from fedbench.bench.method import registry
from fedbench.bench.runs.fields import build_config, flat_config
from fedbench.bench.system.errors import ConfigError, UnknownNameError

FOLDER = "presets"
_DATA = "data.name"
Condition = dict[str, JsonValue]


class Value(Strict):
    """One value and its origin: a paper, its released code, or our decision."""

    value: JsonValue
    origin: Literal["paper", "code", "ours"] = Field(alias="from")
    note: str = ""


class Rule(Strict):
    """Values that hold only when all conditions do.

    A condition names a dotted field, `method` (the spec without add-ons) or `addon` (any add-on of
    the spec) and one allowed value or a list of them. `data.name` stands for the content of the
    data set, wherever it lies.
    """

    when: Condition = Field(min_length=1)
    values: dict[str, Value]

    def allowed(self, condition: str) -> list[JsonValue]:
        """Return the values that a condition allows; none if the rule does not have it."""
        value = self.when.get(condition, [])
        return value if isinstance(value, list) else [value]

    def specs(self) -> list[str]:
        """Return the registered specs that meet the conditions `method` and `addon`."""
        return [spec for spec in registry.specs() if self.fits(spec)]

    def fits(self, spec: str) -> bool:
        """Return True for a canonical spec that meets the conditions `method` and `addon`."""
        method, *given = spec.split("+")
        methods, addons = self.allowed("method"), self.allowed("addon")
        return (not methods or method in methods) and (not addons or bool({*addons} & {*given}))


class Equality(Strict):
    """What a board's methods have alike under a preset, so that it compares nothing but methods.

    Their crops cover one range, and they train on as many images in as many client steps. Tests
    hold every registered method to it.

    Attributes:
        crops: share of an image that a random crop covers, lowest and highest.
        other_crops: method -> which crops it has instead, and why.
        other_budget: method -> why it has other steps or images.
    """

    crops: tuple[float, float]
    other_crops: dict[str, str] = Field(default_factory=dict)
    other_budget: dict[str, str] = Field(default_factory=dict)


class Preset(Strict):
    """A preset file.

    Attributes:
        preset: its name.
        description: one line for listings.
        source: paper or code of the setting.
        extends: another preset; its values hold where this one has none, its rules come first.
        equal: what all methods have alike; None = the papers' settings, which differ by method.
        values: dotted name -> value.
        rules: values under conditions.
    """

    preset: str
    description: str
    source: str
    extends: str | None = None
    equal: Equality | None = None
    values: dict[str, Value]
    rules: tuple[Rule, ...] = ()

    def values_for(
        self, spec: str, user: Mapping[str, Any], content: Callable[[str], str] = str
    ) -> dict[str, Value]:
        """Return the preset's values for a spec.

        Rules are tried in order. Their conditions see the user's values, else what the preset
        and earlier rules give, else defaults.

        Args:
            spec: method spec.
            user: values by dotted name.
            content: gives the name of the content of a data set at a path; called only for a rule
                that depends on it and whose other conditions hold.
        """
        values = dict(self.values)
        for rule in self.rules:
            preset = {key: entry.value for key, entry in values.items()}
            current = {**_defaults(), **preset, **user}
            keys = sorted(rule.when, key=_DATA.__eq__)  # what has to be looked up comes last
            if all(_holds(key, rule.allowed(key), spec, current, content) for key in keys):
                values.update(rule.values)
        return values


@cache
def _defaults() -> dict[str, Any]:
    return flat_config(RunConfig.model_validate({}))


def _holds(
    key: str,
    allowed: list[JsonValue],
    spec: str,
    current: Mapping[str, Any],
    content: Callable[[str], str],
) -> bool:
    method, *addons = spec.split("+")
    if key == "method":
        return method in allowed
    if key == "addon":
        return bool(set(addons) & set(allowed))
    value = current.get(key)
    if key == _DATA and isinstance(value, str) and ":" in value:
        value = content(value)
    return value in allowed


def preset_names() -> list[str]:
    """Return the names of the presets that ship with fedbench or with plugins."""
    return list(installed(FOLDER))


def load_preset(name: str) -> Preset:
    """Read a preset and check it against the registry.

    Args:
        name: its name, or a YAML file, whose `preset` must be a name that no other one has.

    Raises:
        UnknownNameError: for an unknown name.
        ConfigError: for a file that is missing, or that has unknown names or bad values.
    """
    if not name.endswith((".yaml", ".yml")):
        return _named(name)
    path = Path(name).expanduser().resolve()
    with suppress(OSError):  # read once, unless it changes
        status = path.stat()
        return _from_file(name, path, (status.st_mtime_ns, status.st_size, status.st_ino))
    raise no_such_file(name)


@cache
def _named(name: str) -> Preset:
    preset = check_preset(load_named(FOLDER, name), f"presets/{name}.yaml")
    if preset.preset != name:
        raise ConfigError(f"presets/{name}.yaml: preset: must be {name!r} (got {preset.preset!r})")
    return _extended(preset)


@cache
def _from_file(name: str, path: Path, version: tuple[int, ...]) -> Preset:
    preset = check_preset(load_yaml(path), name)
    if preset.preset in installed(FOLDER):
        raise ConfigError(
            f"{name}: preset: {preset.preset!r} is the name of another one; rows are labelled with"
            " it, so choose a name of your own"
        )
    return _extended(preset)


def _extended(preset: Preset) -> Preset:
    if preset.extends is None:
        return preset
    base = _named(preset.extends)
    values, rules = {**base.values, **preset.values}, (*base.rules, *preset.rules)
    return preset.model_copy(update={"values": values, "rules": rules})


def check_preset(content: Mapping[str, Any], name: str) -> Preset:
    """Validate the content of a preset's file.

    Args:
        content: of the file.
        name: of the file, for error messages.

    Raises:
        ConfigError: as `name: reason`.
    """
    try:
        preset = Preset.model_validate(content)
    except ValidationError as err:
        known = [*Preset.model_fields, *Rule.model_fields, "value", "from", "note"]
        raise ConfigError(f"{name}: {registry.describe_validation(err, known)}") from err
    try:
        for key in preset.values:
            if key.startswith("method."):
                raise ConfigError(f"{key!r} stands outside a rule with 'method' or 'addon'")
        _check_values(preset.values, registry.specs()[:1])
        for rule in preset.rules:
            _check_rule(rule)
    except ConfigError as err:
        raise ConfigError(f"{name}: {err}") from err
    return preset


def _check_rule(rule: Rule) -> None:
    methods = [key for key, entry in registry.entries().items() if not entry.is_addon]
    addons = [key for key, entry in registry.entries().items() if entry.is_addon]
    for kind, known in (("method", methods), ("addon", addons)):
        for name in rule.allowed(kind):
            if name not in known:
                raise UnknownNameError(kind, str(name), known)
    specs = rule.specs()
    if not specs:
        raise ConfigError(f"no registered method meets the condition {rule.when}")
    for key in set(rule.when) - {"method", "addon"}:
        for value in rule.allowed(key):
            build_config(specs[0], {key: value})
    for key in rule.values:
        part = key.split(".")[1] if key.startswith("method.") else ""
        needed = "addon" if part in addons else "method"
        if part and not rule.allowed(needed):
            raise ConfigError(f"{key!r} stands in a rule without the condition {needed!r}")
    _check_values(rule.values, specs)


def _check_values(values: Mapping[str, Value], specs: list[str]) -> None:
    for spec in specs:
        build_config(spec, {key: entry.value for key, entry in values.items()})


def preset_records() -> list[dict[str, Any]]:
    """Return every preset with its values, their origins and its rules, for listings."""

    def record(values: Mapping[str, Value]) -> dict[str, Any]:
        return {key: entry.model_dump(by_alias=True) for key, entry in values.items()}

    return [
        {
            "name": preset.preset,
            "description": preset.description,
            "source": preset.source,
            "equal": None if preset.equal is None else preset.equal.model_dump(mode="json"),
            "values": record(preset.values),
            "rules": [{"when": rule.when, "values": record(rule.values)} for rule in preset.rules],
        }
        for preset in map(load_preset, preset_names())
    ]
