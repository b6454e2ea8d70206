"""A short version of `tests/torture/inputs.py`."""

import contextlib
from pathlib import Path

import pytest

from tests.torture import inputs

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
