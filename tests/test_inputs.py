"""A short version of `tests/torture/inputs.py`: no generated input ends in a traceback.

It costs more than a few seconds: 60 commands, some of them processes, after one small run.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

KINDS = ("command_line", "images", "stored", "yaml")
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
    outcomes = list(module.torture(tmp_path / "fuzz", 36, 8))
    assert [module.failure(outcome) for outcome in outcomes if outcome.wrong] == []
    codes = {kind: {each.code for each in outcomes if each.kind == kind} for kind in KINDS}
    for kind, seen in codes.items():
        assert 0 in seen, f"no input of kind {kind} got as far as a result"
        assert seen & {2, 5}, f"no input of kind {kind} was refused"
