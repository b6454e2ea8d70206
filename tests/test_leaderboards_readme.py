"""Statements of leaderboards/README.md about files and how to read them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from fedbench.bench.results.leaderboard.published import paper_cells

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "leaderboards" / "README.md").read_text(encoding="utf-8")


def test_counts() -> None:
    cells = paper_cells()
    counts = {
        p: sum(cell.paper == p for cell in cells) for p in dict.fromkeys(c.paper for c in cells)
    }
    assert f"({len(cells)} of them)" in TEXT
    shown = [int(number) for number in re.findall(r"\| (\d+) \|", TEXT)]
    papers = ("orchestra", "mi", "pfedae", "ssd", "l-dawa", "fedmar", "fedx")
    assert shown == [counts[paper] for paper in papers]


def test_any_tool_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("duckdb", "polars"):
        pytest.importorskip(name, reason="the dev extra has it")
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaderboards").mkdir()
    import pandas

    rows = {"method": ["a", "a", "b"], "alpha": [0.1, 0.1, 1.0], "linear_acc": [0.25, 0.75, 0.125]}
    pandas.DataFrame(rows).to_parquet(tmp_path / "leaderboards" / "leaderboard.parquet")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block, {})
    assert len(re.findall(r"\b0\.5(?:0*)\b", out.getvalue())) == 3
    assert len(re.findall(r"\b0\.125(?:0*)\b", out.getvalue())) == 3
