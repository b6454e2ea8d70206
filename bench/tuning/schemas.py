"""JSON schemas of the YAML files that users write, from which editors complete and check them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from fedbench.bench.config.aliases import ALIASES
from fedbench.bench.config.kinds import default_text, kind_text
from fedbench.bench.method import registry
from fedbench.bench.runs.presets import Preset, preset_names
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.tuning.explain import fields_by_key
from fedbench.bench.tuning.grid import METHOD, Grid
from fedbench.bench.tuning.space import SpaceFile

Schema = dict[str, Any]

KINDS = ("grid", "space", "preset")
_NULL: Schema = {"type": "null"}


def schema(kind: str) -> Schema:
    """Return the JSON schema (draft 2020-12) of a kind of YAML file.

    It knows every key of the configuration and of all methods that are installed, with ranges.
    fedbench checks more when it reads a file: which methods a key belongs to, among other things.

    Args:
        kind: `grid`, `space` or `preset`.

    Raises:
        UnknownNameError: for another kind.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS)
    keys = {
        key: {"description": _described([info for _, info in fields]), **_value(fields)}
        for key, fields in fields_by_key().items()
    }
    build = {"grid": _grid, "space": _space, "preset": _preset}[kind]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **build(keys)}


def _described(infos: list[FieldInfo]) -> str:
    """Return meanings, ranges and defaults of the fields that a key names."""
    texts = (f"{i.description}; {kind_text(i)}; default {default_text(i)}" for i in infos)
    return " / ".join(dict.fromkeys(texts))


def _value(fields: list[tuple[str, FieldInfo]]) -> Schema:
    """Return the schema of a key's value, which may be that of any of several methods."""
    schemas: list[Schema] = []
    for _, info in fields:
        kind: Any = info.annotation
        for rule in info.metadata:
            kind = Annotated[kind, rule]
        found = TypeAdapter(kind).json_schema()
        if found not in schemas:
            schemas.append(found)
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _object(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _grid(keys: Mapping[str, Schema]) -> Schema:
    result = Grid.model_json_schema()
    definitions = result["$defs"]
    definitions["Axes"] = _object(
        {
            key: {
                "type": "array",
                "minItems": 1,
                "description": value["description"],
                "items": value,
            }
            for key, value in keys.items()
        }
    )
    definitions["Point"] = _object({**keys, METHOD: _spec()})
    axes, points = _reference("Axes"), {"type": "array", "items": _reference("Point")}
    methods = {"type": "array", "items": _spec(), "minItems": 1}
    result["properties"] |= {
        "axes": axes,
        "points": {**points, "minItems": 1},
        "exclude": points,
        "methods": methods,
        "scaling": _object(dict.fromkeys(keys, _reference("Scale"))),
        "presets": _object(dict.fromkeys(preset_names(), _reference("_Lists"))),
        "under": {"type": "array", "items": {"enum": preset_names()}},
    }
    definitions["_Lists"]["properties"] |= {
        "axes": {"anyOf": [axes, _NULL]},
        "points": {"anyOf": [points, _NULL]},
        "methods": {"anyOf": [methods, _NULL]},
    }
    definitions["Scale"]["properties"]["of"] = {"enum": [*keys]}
    return result


def _space(keys: Mapping[str, Schema]) -> Schema:
    result = SpaceFile.model_json_schema()
    dimension = result["properties"]["space"]["additionalProperties"]
    dimensions = {
        key: {**dimension, "description": value["description"]} for key, value in keys.items()
    }
    result["properties"] |= {
        "method": _spec(),
        "space": {**_object(dimensions), "minProperties": 1},
        "points": {"type": "array", "items": _object(keys)},
    }
    return result


def _preset(keys: Mapping[str, Schema]) -> Schema:
    result = Preset.model_json_schema(by_alias=True)
    values = {
        key: {
            "description": value["description"],
            "allOf": [_reference("Value"), {"properties": {"value": value}}],
        }
        for key, value in keys.items()
    }
    known = registry.entries()
    condition = {**keys, "method": {"enum": []}, "addon": {"enum": []}}
    for name, entry in known.items():
        condition["addon" if entry.is_addon else "method"]["enum"].append(name)
    either = {
        key: {"anyOf": [value, {"type": "array", "items": value}]}
        for key, value in condition.items()
    }
    rule = result["$defs"]["Rule"]["properties"]
    rule |= {"when": {**_object(either), "minProperties": 1}, "values": _object(values)}
    result["properties"] |= {
        "values": _object({k: v for k, v in values.items() if not k.startswith("method.")}),
        "extends": {"anyOf": [{"enum": preset_names()}, _NULL]},
    }
    return result


def _spec() -> Schema:
    """Return the schema of a method spec: any text, with the installed ones to complete."""
    names = [*registry.entries(), *registry.specs(), *ALIASES]
    return {"anyOf": [{"enum": list(dict.fromkeys(names))}, {"type": "string"}]}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
