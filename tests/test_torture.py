"""Short versions of `tests/torture/inputs.py` and `tests/torture/flips.py`."""

import contextlib
import random
from pathlib import Path

import pytest

from tests.torture import flips, inputs

KINDS = ("command_line", "stored", "yaml")
LEAST, MOST = 20, 300


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as in the command
def test_generated_inputs_end_in_order(tmp_path: Path) -> None:
    seen: dict[str, set[int | None]] = {kind: set() for kind in KINDS}
    with contextlib.closing(inputs.torture(tmp_path / "f", MOST, 0)) as outcomes:
        for number, outcome in enumerate(outcomes, start=1):
            assert not outcome.wrong, inputs.failure(outcome)
            seen[outcome.kind].add(outcome.code)
            if number >= LEAST and all(0 in codes and codes & {2, 5} for codes in seen.values()):
                return
    pytest.fail(f"after {MOST} inputs a kind has no result, or nothing that was refused: {seen}")


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
