"""Tables of runs, through the command: written from the shipped rows, and searched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedbench
from tests.test_readme import blocks

from .conftest import Answer

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "leaderboards" / "results"
SELECTION = ROOT / "leaderboards" / "selection" / "fedbench-results.parquet"
TABLE = ROOT / "leaderboards" / "tables" / "selection" / "selection.parquet"
COUNT = 24  # configurations of a method
GRID = "heterogeneity-rates"
Call = Callable[..., Answer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of five rates of several methods, one seed."""
    folder = tmp_path_factory.mktemp("table") / "rätes"
    fedbench.release(folder, RESULTS, version="1", table=GRID)
    return folder


def test_a_table_is_described_and_has_the_rows_of_its_grid(folder: Path, call: Call) -> None:
    file = folder / f"{GRID}.parquet"
    lines = pd.read_parquet(file)
    rows = [row for row in fedbench.open_store(RESULTS).rows() if row.grid == GRID]
    assert {*lines["row_id"]} == {row.row_id for row in rows}
    final = lines[lines["round"] == 12].set_index("row_id")["linear_acc"]
    assert final.to_dict() == {r.row_id: r.linear_acc for r in rows if r.status == "ok"}
    digest, name = (folder / "SHA256SUMS").read_text("utf-8").splitlines()[-1].split("  ")
    assert (digest, name) == (hashlib.sha256(file.read_bytes()).hexdigest(), file.name)
    again = call(
        "release", folder.parent / "b", "--table", GRID, "--version", "1", "--store", RESULTS
    )
    assert f"{len(rows)} runs" in again.out
    for one in folder.iterdir():
        assert (folder.parent / "b" / one.name).read_bytes() == one.read_bytes()


def test_the_shipped_table_is_that_of_the_shipped_rows(tmp_path: Path) -> None:
    version = json.loads((TABLE.parent / "croissant.json").read_text("utf-8"))["version"]
    fedbench.release(tmp_path / "new", SELECTION, version=version, table="selection")
    for file in TABLE.parent.iterdir():
        assert file.read_bytes() == (tmp_path / "new" / file.name).read_bytes()
    assert sum(file.stat().st_size for file in TABLE.parent.iterdir()) < 1_000_000


def test_the_page_on_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its search picks the best of twelve different configurations by the score."""
    (block,) = blocks("python", (ROOT / "docs" / "tables.md").read_text("utf-8"))
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(compile(block, "tables.md", "exec"), names)
    study, table = names["study"], names["table"]
    assert table.shape == (COUNT, 3 * 2 * 4)  # scores, seeds, rounds
    scored = [trial for trial in study.trials if trial.value is not None]
    assert len({tuple(trial.params.items()) for trial in scored}) == 12
    picked = max(scored, key=lambda trial: trial.value)
    accuracy = table["linear_acc", 1, 12]
    expected = accuracy.max() - accuracy[tuple(picked.params.values())]
    assert names["lost"] == pytest.approx(expected)


def test_a_table_has_no_ranks_to_compare(tmp_path: Path, call: Call) -> None:
    words = ("--table", GRID, "--version", "1", "--against", RESULTS, "--store", RESULTS)
    answer = call("release", tmp_path / "new", *words)
    assert answer.code == 2
    assert "--against" in answer.err
    assert not (tmp_path / "new").exists()
