"""The checksum that files of fedbench carry: a SHA-256 over all of their bytes.

Its 64 hexadecimal digits follow the words `fedbench.sha256` in the place that a format has for such
values: an entry of JSON, a comment of YAML, the metadata of Parquet and safetensors files. It is
made, and tested, with zeros in its place.
"""

import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from typing import Any

KEY = "fedbench.sha256"
ZEROS = "0" * 64

_DIGITS = re.compile(rb"fedbench\.sha256[^0-9a-z]{1,8}(?:sha256:)?(.{64})", re.DOTALL)
_YAML_HEAD = "# fedbench wrote this file; "


def add_checksum(data: bytes) -> bytes:
    """Return the bytes of a file with its checksum in place of `ZEROS` after the last `KEY`."""
    place = _place(data)
    assert place is not None, "nothing was left for it"
    return data[:place] + _checksum(data, place) + data[place + 64 :]


def has_checksum(data: bytes | mmap.mmap) -> bool:
    """Return whether the bytes of a file have a checksum, and it matches."""
    place = _place(data)
    if place is not None and data[place : place + 64] != _checksum(data, place):
        raise ValueError("its checksum does not fit its content")
    return place is not None


def _place(data: bytes | mmap.mmap) -> int | None:
    start = data.rfind(KEY.encode())
    if start < 0:
        return None
    found = _DIGITS.match(data, start)
    if found is None:
        raise ValueError("its checksum cannot be read")
    return found.start(1)


def _checksum(data: bytes | mmap.mmap, place: int) -> bytes:
    with memoryview(data) as view:
        content = hashlib.sha256(view[:place])
        content.update(ZEROS.encode())
        content.update(view[place + 64 :])
    return content.hexdigest().encode()


def json_with_checksum(
    value: Mapping[str, Any], *, indent: int | None = None, allow_nan: bool = True
) -> str:
    """Return a JSON object with its checksum, on one line unless `indent` is given.

    Raises `TypeError` or `ValueError` for what JSON cannot hold, NaN too without `allow_nan`.
    """
    plain = json.loads(json.dumps(dict(value), sort_keys=True, allow_nan=allow_nan))
    # The last entry, since the value may hold checksums of other files.
    text = json.dumps({**plain, KEY: f"sha256:{ZEROS}"}, indent=indent, ensure_ascii=False)
    return add_checksum(text.encode()).decode()


def parse_json(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object without its checksum; `ValueError` if it is torn or altered."""
    data = (text.encode() if isinstance(text, str) else text).rstrip(b"\n")
    try:
        value = json.loads(data)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err
    except ValueError as err:
        raise ValueError(f"torn or altered: it is not JSON ({err})") from err
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    if value.pop(KEY, None) is None or not has_checksum(data):
        raise ValueError("it has no checksum")
    return value


def yaml_with_checksum(text: str) -> str:
    """Return a YAML text under a first line with its checksum."""
    return add_checksum(f"{_YAML_HEAD}{KEY}: {ZEROS}\n{text}".encode()).decode()


def check_yaml(text: str) -> None:
    """Compare a YAML text with the checksum in its first line, if it has one."""
    head = text.partition("\n")[0]
    if (KEY in head or head.startswith(_YAML_HEAD[:16])) and not has_checksum(text.encode()):
        raise ValueError("its checksum does not fit its content")
