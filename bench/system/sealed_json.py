"""JSON objects that carry a SHA-256 of themselves, so that a reader notices every altered value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_KEY = "sha256"
_PREFIX = "sha256:"
"""Before the hash: it tells where a checksum was if the name of its entry is altered."""


def seal(value: Mapping[str, Any], *, indent: int | None = None, allow_nan: bool = True) -> str:
    """Return a JSON object with its checksum, on one line unless `indent` is given.

    Raises:
        TypeError, ValueError: for what JSON cannot hold; with `allow_nan` false, for NaN and
            infinity too.
    """
    plain = json.loads(
        json.dumps(dict(value), allow_nan=allow_nan)
    )  # keys become text, as they are when read
    sealed = {**plain, _KEY: _checksum(plain)}
    return json.dumps(sealed, indent=indent, sort_keys=True, ensure_ascii=False)


def unseal(text: str | bytes, *, required: bool = False) -> dict[str, Any]:
    """Return the object without its checksum, which fits.

    Args:
        text: what `seal` returned, or an object without a checksum, as older versions wrote it.
        required: refuse the latter.

    Raises:
        ValueError: for a text that is not JSON, not an object, torn or altered.
    """
    value = _object(text)
    checksum = value.pop(_KEY, None)
    if checksum is None:
        if any(isinstance(other, str) and other.startswith(_PREFIX) for other in value.values()):
            raise ValueError("the name of its checksum is altered")
        if required:
            raise ValueError("it has no checksum")
    if checksum not in (None, _checksum(value)):
        raise ValueError("its checksum does not fit its content")
    return value


def is_sealed(text: str | bytes) -> bool:
    """Return True for a JSON object with a checksum, which need not fit."""
    return _KEY in _object(text)


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err
    except ValueError as err:
        raise ValueError(f"torn or altered: it is not JSON ({err})") from err
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _checksum(value: Mapping[str, Any]) -> str:
    return _PREFIX + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
