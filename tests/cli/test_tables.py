"""The shipped table of runs: it is that of the shipped rows, and can be searched."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.test_readme import blocks

ROOT = Path(__file__).resolve().parents[2]
SELECTION = ROOT / "leaderboards" / "selection" / "fedbench-results.parquet"
TABLE = ROOT / "leaderboards" / "tables" / "selection" / "selection.parquet"
COUNT = 24  # configurations of a method


def test_the_shipped_table_has_the_results_of_the_shipped_rows() -> None:
    lines, rows = pd.read_parquet(TABLE), pd.read_parquet(SELECTION).set_index("row_id")
    final = lines[lines["round"] == 12].set_index("row_id")["linear_acc"]
    assert len(final) > 300
    assert final.to_dict() == rows["metric.linear_acc"].loc[final.index].to_dict()


def test_the_page_on_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its search picks the best of twelve different configurations by the score."""
    (block,) = blocks("python", (ROOT / "leaderboards" / "tables" / "README.md").read_text("utf-8"))
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    study, table = names["study"], names["table"]
    assert table.shape == (COUNT, 3 * 2 * 4)  # scores, seeds, rounds
    scored = [trial for trial in study.trials if trial.value is not None]
    assert len({tuple(trial.params.items()) for trial in scored}) == 12
    picked = max(scored, key=lambda trial: trial.value)
    accuracy = table["linear_acc", 1, 12]
    expected = accuracy.max() - accuracy[tuple(picked.params.values())]
    assert names["lost"] == pytest.approx(expected)
