"""Published outcomes of studies are those of the committed rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_log_has_what_the_rows_give() -> None:
    spec = importlib.util.spec_from_file_location("after", DOCS / "studies" / "after.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.outcome()
    assert len(lines) == len(module.PAIRS)
    log = (DOCS / "log.md").read_text(encoding="utf-8")
    missing = [line for line in lines if f"| {' | '.join(line)} |" not in log]
    assert not missing
