"""A short version of `tests/torture/inputs.py`: no generated input ends in a traceback.

It costs more than a few seconds: commands, some of them processes, after one small run. Other
commands and options draw other inputs, so that it goes on until each kind has come to both ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path

import pytest

KINDS = ("command_line", "images", "stored", "strangers", "yaml")
LEAST, MOST = 20, 300
SCRIPT = Path(__file__).parent / "torture" / "inputs.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as in the command
def test_generated_inputs_end_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("inputs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "inputs", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    seen: dict[str, set[int | None]] = {kind: set() for kind in KINDS}
    with contextlib.closing(module.torture(tmp_path / "fuzz", MOST, 4)) as outcomes:
        for number, outcome in enumerate(outcomes, start=1):
            assert not outcome.wrong, module.failure(outcome)
            seen.setdefault(outcome.kind, set()).add(outcome.code)
            if number >= LEAST and all(complete(seen[kind]) for kind in KINDS):
                return
    pytest.fail(f"after {MOST} inputs a kind has no result, or nothing that was refused: {seen}")


def complete(codes: set[int | None]) -> bool:
    """Whether some inputs came to a result and others were refused."""
    return 0 in codes and bool(codes & {2, 5})
