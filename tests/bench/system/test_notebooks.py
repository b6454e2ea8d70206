"""Records in notebooks: short in text, a table in HTML."""

from __future__ import annotations

from pathlib import Path

import fedbench

RESULTS = Path(__file__).resolve().parents[3] / "leaderboards" / "results"


def test_runs_of_a_store() -> None:
    found = fedbench.runs(store=RESULTS, limit=3)
    assert repr(found) == f"<3 of {found.total} runs>"
    shown = found._repr_html_()
    assert shown.count("<tr>") == 4
    assert f"<td>{found.rows[0].row_id[:8]}</td><td>{found.rows[0].method}</td>" in shown
    assert "&lt;3 of" in shown  # the caption, escaped
