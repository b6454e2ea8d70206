"""Statements of leaderboards/README.md about files and how to read them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from fedbench.bench.config import ClientConfig, RunConfig
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.results.store.store import Store
from tests.bench.results.conftest import build_row

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
    store = Store(tmp_path / "leaderboards")
    for seed, rate, accuracy in ((0, 0.25, 0.25), (1, 0.25, 0.75), (0, 1.5, 0.125)):
        config = RunConfig(seed=seed, client=ClientConfig(lr=rate))
        store.write_row(build_row(config, linear_acc=accuracy))
    store.refresh()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block, {})
    for of, mean in (("0.25", "0.5"), ("1.5", "0.125")):
        assert len(re.findall(rf"\b{of}0*\b\D+{mean}0*\b", out.getvalue())) == 3
