"""One key of the configuration: meaning, range, default, and its value under every preset."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pydantic.fields import FieldInfo

from fedbench.bench.config.kinds import kind_text
from fedbench.bench.config.presets import Preset, Value
from fedbench.bench.experiment.fields import Fields, check_key
from fedbench.bench.experiment.preset_loading import load_preset, preset_names
from fedbench.bench.experiment.resolve import variable
from fedbench.bench.method import registry
from fedbench.bench.tuning.spaces.space import for_list, read_space, space_file


def explain(key: str, spec: str | None = None) -> list[dict[str, Any]]:
    """Explain one key of the configuration, for one method spec or for every method.

    Records of `key methods meaning kind default presets searched variable`, several where methods
    have different fields of one name (no `methods`: every run has it). `presets` has records of
    `preset value origin when note`: a later one wins where its conditions `when` hold. `searched`
    has the range in each search space. ConfigError for an unknown method or key.

    >>> (about,) = explain("client.lr")
    >>> about["default"], about["kind"]
    (0.03, 'number > 0')
    """
    spec = None if spec is None else registry.canonical_spec(spec)
    fields = fields_by_key(spec)
    check_key(key, spec or "any method", fields)
    alike: dict[str, dict[str, Any]] = {}  # equal fields of several methods are one
    for owner, info in fields[key].items():
        facts = {"meaning": info.description or "", "kind": kind_text(info)}
        facts["default"] = info.get_default(call_default_factory=True)
        record = alike.setdefault(repr(facts), {"key": key, "methods": [], **facts})
        record["methods"] += [owner] if owner else []
    presets = [load_preset(name) for name in preset_names()]
    for record in alike.values():
        owners, default = record["methods"], record["default"]
        record["presets"] = [v for p in presets for v in _values(key, p, default, owners, spec)]
        record["searched"] = dict(_searched(key, owners, spec))
        record["variable"] = variable(key)
    return [*alike.values()]


def fields_by_key(spec: str | None = None) -> dict[str, dict[str, FieldInfo]]:
    """Map dotted names to their fields, by the method or add-on that has them; "" = every run.

    With a canonical spec, only its fields are there.
    """
    fields: dict[str, dict[str, FieldInfo]] = {}
    for name in registry.specs() if spec is None else [spec]:
        method, *addons = name.split("+")
        for key, info in Fields.of(name).infos.items():
            first, _, rest = key.partition(".")
            owner = next((addon for addon in addons if rest.startswith(f"{addon}.")), method)
            fields.setdefault(key, {}).setdefault(owner if first == "method" else "", info)
    return fields


def _specs() -> dict[str, str]:
    """Map every method to itself, and each add-on to the first spec that has it alone."""
    return {spec.rpartition("+")[2]: spec for spec in reversed(registry.specs())}


def _values(
    key: str, preset: Preset, default: Any, owners: Sequence[str], spec: str | None
) -> list[dict[str, Any]]:
    """Return a preset's values of a key: the one that always holds, then its rules' values.

    A value that a later rule replaces for every method in question is left out.
    """

    def record(entry: Value | None, **when: Any) -> dict[str, Any]:
        about = {"value": default, "origin": "default", "note": ""}
        return {"preset": preset.preset, **(entry.model_dump() if entry else about), "when": when}

    specs = [spec] if spec else [_specs()[name] for name in owners]
    values = [record(preset.values.get(key))]
    for rule in preset.rules:
        held = [rule.fits(name) for name in specs]
        if (entry := rule.values.get(key)) and (any(held) or not specs):
            if held and all(held) and rule.when.keys() <= {"method", "addon"}:
                values = []
            values.append(record(entry, **rule.when))
    return values


def _searched(
    key: str, owners: Sequence[str], spec: str | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the methods and add-ons whose search space has a key, with its range there."""
    specs = _specs()
    for name in owners or (specs if spec is None else spec.split("+")):
        if (path := space_file(name)) is not None:
            read = partial(read_space, path, Fields.of(specs[name]))
            file = read() if spec else for_list([name], read)
            if file is not None and key in file.space:
                yield name, file.space[key].model_dump(mode="json")
