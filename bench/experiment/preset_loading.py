"""Presets, checked against the registry."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.bench.config.presets import FOLDER, Preset, Rule, Value, read_preset, with_base
from fedbench.bench.config.yaml_files import installed, load_yaml, no_such_file
from fedbench.bench.experiment.fields import GIVEN, Fields
from fedbench.bench.method import registry
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.system.files import user_path

_SHOWN = {
    "data": "data.name",
    "clients": "data.num_clients",
    "rounds": "federation.num_rounds",
    "encoder": "model.backbone",
}
"""Columns of a list of presets, and the values in them, which every preset has."""


def preset_names() -> list[str]:
    """Return the names of the presets that ship with fedbench or with plugins."""
    return list(installed(FOLDER))


def load_preset(name: str) -> Preset:
    """Read a preset by its name, or a YAML file of one's own, and check it against the registry.

    Raises:
        UnknownNameError: for an unknown name.
        ConfigError: for a file that is missing, that has unknown names or bad values, or whose
            `preset` is the name of another one.
    """
    if not name.endswith((".yaml", ".yml")):
        return read_preset(name)
    path = user_path(name).resolve()
    with suppress(OSError):  # read once, unless it changes
        status = path.stat()
        return _from_file(name, path, (status.st_mtime_ns, status.st_size, status.st_ino))
    raise no_such_file(name)


@cache
def _from_file(name: str, path: Path, version: tuple[int, ...]) -> Preset:
    preset = check_preset(load_yaml(path), name)
    if preset.preset in installed(FOLDER):
        raise ConfigError(
            f"{name}: preset: {preset.preset!r} is the name of another one; rows are labelled with"
            " it, so choose a name of your own"
        )
    return with_base(preset)


def check_preset(content: Mapping[str, Any], name: str) -> Preset:
    """Validate the content of a preset's file."""
    known = [*Preset.model_fields, *Rule.model_fields, "value", "from", "note"]
    with registry.of_file(name, known):
        preset = Preset.model_validate(content)
        for key in preset.values:
            if key.startswith("method."):
                raise ConfigError(f"{key!r} stands outside a rule with 'method' or 'addon'")
        # Any one method will do, as none of these values is a method's.
        _check_values(preset.values, registry.specs()[:1])
        for rule in preset.rules:
            _check_rule(rule)
        return preset


def _check_rule(rule: Rule) -> None:
    methods = [key for key, entry in registry.entries().items() if not entry.is_addon]
    addons = [key for key, entry in registry.entries().items() if entry.is_addon]
    for kind, known in (("method", methods), ("addon", addons)):
        for name in rule.allowed(kind):
            if name not in known:
                raise UnknownNameError(kind, str(name), known)
    specs = [spec for spec in registry.specs() if rule.fits(spec)]
    if not specs:
        raise ConfigError(f"no registered method meets the condition {rule.when}")
    for key in set(rule.when) - {"method", "addon"}:
        for value in rule.allowed(key):
            Fields.of(specs[0]).build({**GIVEN, key: value})
    for key in rule.values:
        part = key.split(".")[1] if key.startswith("method.") else ""
        needed = "addon" if part in addons else "method"
        if part and not rule.allowed(needed):
            raise ConfigError(f"{key!r} stands in a rule without the condition {needed!r}")
    _check_values(rule.values, specs)


def _check_values(values: Mapping[str, Value], specs: list[str]) -> None:
    for spec in specs:
        Fields.of(spec).build({key: entry.value for key, entry in values.items()})


def preset_records() -> list[dict[str, Any]]:
    """Return every preset with its values, their origins and its rules, for listings."""
    presets = [load_preset(name) for name in preset_names()]
    return [
        {
            "name": preset.preset,
            **{name: preset.values[key].value for name, key in _SHOWN.items()},
            "minutes": preset.minutes,
            **preset.model_dump(mode="json", by_alias=True, exclude={"preset", "extends"}),
        }
        for preset in presets
    ]
