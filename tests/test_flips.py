"""A short version of `tests/torture/flips.py`: damage to any kind of file is never used silently.

It costs more than a few seconds: files of 24 kinds are made, damaged 5 to 20 times each, and read.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.torture import flips

NUMBER = 20
SLOW = ("checkpoints", "clients", "rounds", "data cache", "leaderboard")
"""Kinds whose files are made again, or of which 70 are read, every time."""


@pytest.mark.slow
@pytest.mark.extended  # each kind of file has tests of its own beside the code that reads it
def test_no_damaged_byte_is_used_silently(tmp_path: Path) -> None:
    bad = []
    noticed = {}
    for name, kind in flips.kinds(tmp_path).items():
        number = NUMBER // 4 if name.startswith(SLOW) else NUMBER
        outcomes, lines = flips.attack(kind, number, random.Random(name), tmp_path)
        bad += [f"{name}: {line}" for line in lines]
        noticed[name] = outcomes["redone"] + outcomes["refused"]
    assert bad == []
    unnoticed = [name for name, number in noticed.items() if not number]
    assert unnoticed == ["leaderboard.parquet"]  # its rows come from their own files then


def test_a_reader_that_uses_damage_is_reported(tmp_path: Path) -> None:
    """The script can fail: plain reading is silent, and parsing without a check is a traceback."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a").write_bytes(b"7" * 600)
    for use, outcome in (
        (lambda f: (f / "a").read_bytes(), "silent"),
        (lambda f: [int(text) for text in ((f / "a").read_text()[:600:60])][9], "traceback"),
    ):
        kind = flips.Kind(folder, "a", use)
        outcomes, lines = flips.attack(kind, 30, random.Random(0), tmp_path)
        assert outcomes[outcome] > 0
        assert len(lines) == outcomes["silent"] + outcomes["traceback"]
