"""Types, ranges and defaults of fields as text, for the reference page and `explain`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

_NAMES: Mapping[Any, str] = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "object": "mapping",
}


def kind_text(info: FieldInfo, quote: str = "") -> str:
    """Return type and range of a field: `number in [0, 1)`, or its words, each in `quote`s."""
    kind: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    return _text(TypeAdapter(kind).json_schema(), quote)


def _text(schema: Mapping[str, Any], quote: str) -> str:
    """Return a JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(_text(part, quote) for part in schema["anyOf"])
    if options := schema.get("enum") or [schema[key] for key in ("const",) if key in schema]:
        return ", ".join(f"{quote}{option}{quote}" for option in options)
    if schema.get("type") == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]  # of a tuple, or of a list
        return f"list of {', '.join(_text(item, quote) for item in items)}"
    text = _NAMES.get(schema.get("type"), "value")
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        return text
    closed = "minimum" in schema
    if high is None:
        return f"{text} {'≥' if closed else '>'} {low:.12g}"
    ends = "[" if closed else "(", "]" if "maximum" in schema else ")"
    return f"{text} in {ends[0]}{low:.12g}, {high:.12g}{ends[1]}"
