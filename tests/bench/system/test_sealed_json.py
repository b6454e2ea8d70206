"""Sealed JSON: values come back, every altered byte is refused or means the same."""

from __future__ import annotations

import json
import math

import pytest

from fedbench.bench.system.sealed_json import is_sealed, seal, unseal

VALUE = {"loss": 0.1 + 0.2, "rounds": {"2": None, "10": [True, -1]}, "name": 'é"\n', "big": 2**60}


def test_values_come_back() -> None:
    assert unseal(seal(VALUE)) == unseal(seal(VALUE, indent=2)) == VALUE
    assert "\n" not in seal(VALUE)
    assert unseal(seal({"a": {2: "keys become text"}})) == {"a": {"2": "keys become text"}}
    assert math.isnan(unseal(seal({"a": math.nan}))["a"])


def test_any_altered_bit_is_refused_or_means_the_same() -> None:
    data = seal(VALUE).encode()
    accepted = 0
    for at in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[at] ^= 1 << bit
            try:
                value = unseal(bytes(altered))
            except ValueError:
                continue
            accepted += 1
            assert value == VALUE
    assert accepted < 0.01 * 8 * len(data)  # white space, or the case of an escape


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (json.dumps(VALUE), "it has no checksum"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Expecting value"),
        (b"\xff", "invalid start byte"),
        ('{"sha256": "0"}', "does not fit"),
    ],
)
def test_what_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        unseal(text, required=True)


def test_an_older_text_is_read_without_a_checksum() -> None:
    assert unseal(json.dumps(VALUE)) == VALUE
    assert not is_sealed(json.dumps(VALUE))
    assert is_sealed(seal(VALUE))
