"""Values as text: single words, as YAML reads them too, and KEY=VALUE."""

import json
import re
from typing import Any

from fedbench.bench.system.errors import ConfigError

_CONSTANTS = {
    **dict.fromkeys(("null", "Null", "NULL", "~"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INT = re.compile(r"[-+]?[0-9]{1,999}|0o[0-7]{1,999}|0x[0-9a-fA-F]{1,999}")  # as Python can print
_BASES = {"0o": 8, "0x": 16}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def parse_word(text: str) -> bool | int | float | str | None:
    """The value of an unquoted word under the core schema of YAML 1.2.

    Source: https://yaml.org/spec/1.2.2/#1032-tag-resolution.

    >>> [parse_word(text) for text in ("1e-3", "010", "0o17", "TRUE", "off", "1:30")]
    [0.001, 10, 15, True, 'off', '1:30']
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, _BASES.get(text[:2], 10))
    return float(text) if _FLOAT.fullmatch(text) else text


def parse_value(text: str) -> Any:
    """The value of an option or environment variable: a word, quoted text, or a list of these."""
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_parse_item(item.strip()) for item in inner.split(",")] if inner else []
    return _parse_item(text)


def _parse_item(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return parse_word(text)


def parse_override(text: str) -> tuple[str, Any]:
    """`KEY=VALUE` of a command line -> the name and the value.

    >>> parse_override("client.lr=1e-3"), parse_override("evaluation.protocols=[knn, linear]")
    (('client.lr', 0.001), ('evaluation.protocols', ['knn', 'linear']))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r}: write KEY=VALUE, for example client.lr=0.01")
    return key.strip(), parse_value(value.strip())


def write_override(key: str, value: Any) -> str:
    """Return KEY=VALUE that `parse_override` reads as this value; no text in a list has a comma.

    >>> write_override("evaluation.protocols", ["knn", "7"]), write_override("model.width", None)
    ('evaluation.protocols=[knn, "7"]', 'model.width=null')
    """
    if isinstance(value, list | tuple):
        return f"{key}=[{', '.join(map(_write_item, value))}]"
    return f"{key}={_write_item(value)}"


def _write_item(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value if value.strip() and parse_value(value.strip()) == value else f'"{value}"'
