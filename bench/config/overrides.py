"""Dotted names of a configuration: which exist for a spec, and what text and values they take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedbench.bench.system.errors import ConfigError

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}


def parse_override(text: str) -> tuple[str, Any]:
    """`KEY=VALUE` of a command line -> the name and the value.

    Unlike in YAML files, `1e-3` is a number and `off` is text.

    >>> parse_override("client.lr=1e-3"), parse_override("evaluation.protocols=[knn, linear]")
    (('client.lr', 0.001), ('evaluation.protocols', ['knn', 'linear']))

    Raises:
        ConfigError: without '=' or without a name.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r}: write KEY=VALUE, for example client.lr=0.01")
    return key.strip(), parse_scalar(value.strip())


def parse_scalar(text: str) -> Any:
    """The value that a word of the command line or of the environment stands for."""
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [parse_scalar(item.strip()) for item in inner.split(",")] if inner else []
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
