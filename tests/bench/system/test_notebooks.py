"""Records in notebooks: short in text, a table in HTML."""

from __future__ import annotations

from pathlib import Path

import fedbench
from fedbench.bench.tuning.study import StudyResult
from fedbench.bench.tuning.sweep import SweepResult

RESULTS = Path(__file__).resolve().parents[3] / "leaderboards" / "results"


def test_runs_of_a_store() -> None:
    found = fedbench.runs(store=RESULTS, limit=3)
    assert repr(found) == f"<3 of {found.total} runs>"
    shown = found._repr_html_()
    assert shown.count("<tr>") == 4
    assert f"<td>{found.short_ids[0]}</td><td>{found.rows[0].method}</td>" in shown
    assert "&lt;3 of" in shown  # the caption, escaped


def test_a_study_and_a_sweep() -> None:
    trial = {
        "number": 0, "objective": 0.25, "params": {"client.lr": 0.1}, "watched": {},
        "status": "ok", "seconds": 3.0, "error": "<torn>",
    }  # fmt: skip
    best = {"trial": 0, "objective": 0.25, "params": {"client.lr": 0.1}}
    study = StudyResult("s-1", "simclr", "demo", "finished", best, (trial,), 0, None)
    assert repr(study) == "<study s-1: 1 trials, finished, best trial 0: {'client.lr': 0.1}>"
    assert "<td>client.lr=0.1</td>" in study._repr_html_()
    assert "&lt;torn&gt;" in study._repr_html_()
    cell = {
        "run_id": "0123456789", "method": "simclr", "seed": 1, "axes": {"data.alpha": 0.1},
        "status": "ok", "metrics": {"linear_acc": 0.5},
    }  # fmt: skip
    sweep = SweepResult("g", "demo", 1, 0, 1, 0, 0, 1, 0, (cell,))
    assert repr(sweep) == "<sweep g: 1 cells, 0 in the store already, 1 done, 0 failed>"
    assert (
        "<td>01234567</td><td>simclr</td><td>1</td><td>data.alpha=0.1</td>" in sweep._repr_html_()
    )
