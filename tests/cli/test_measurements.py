"""A sweep that is measured with other protocols, through the real command."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
TINY = (
    *("--set", "federation.num_rounds=1", "--set", "data.train_subset=100"),
    *("--set", "data.test_subset=50", "--set", "model.width=4"),
)
GRID = """\
grid: two
description: two concentrations
axes:
  data.alpha: [0.1, 1.0]
methods: [simclr, supervised]
seeds: [0]
"""
MORE = ("--set", "evaluation.protocols=[knn,linear,mlp]", "--set", "evaluation.mlp_epochs=2")
LESS = ("--set", "evaluation.protocols=[knn]", "--set", "evaluation.knn_neighbours=5")


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)  # three sweeps, each a process that starts Ray
def test_a_sweep_measured_in_three_ways_ranks_as_one_method(
    call: Call, shell: Call, tmp_path: Path
) -> None:
    """Two concentrations, two methods: 4 cells, trained once."""
    store, grid = tmp_path / "store", tmp_path / "two.yaml"
    grid.write_text(GRID)
    sweep = ("sweep", "--grid", grid)
    place = ("--store", store, "--device", "cpu")
    first = shell(*sweep, *TINY, *place, "--json")
    assert first.code == 0, first.err
    before = call("leaderboard", "--store", store, "--json").json
    plan = call(*sweep, *TINY, *MORE, *place, "--dry-run").out
    assert "4 cells: 0 in the store already, 4 to run" in plan
    assert "measured 4 from the weights of runs with the same training" in plan
    further = shell(*sweep, *TINY, *MORE, *place, "--json")
    assert further.code == 0, further.err
    measured = json.loads(further.out)
    assert measured["measured"] == 4
    ids = {cell["row_id"] for cell in json.loads(first.out)["cells"]}
    assert {cell["measured_from"] for cell in measured["cells"]} == ids
    assert shell(*sweep, *TINY, *LESS, *place, "--json").code == 0

    after = call("leaderboard", "--store", store, "--json").json
    assert len(after["rows"]) == 4  # two methods at two concentrations
    assert [(row["method"], row["variant"], row["n_seeds"]) for row in after["rows"]] == [
        (row["method"], "", 1) for row in before["rows"]
    ]
    for name in ("mean", "rank", "best", "values", "knn_acc_mean", "row_ids", "class_id"):
        assert [row[name] for row in after["rows"]] == [row[name] for row in before["rows"]], name
    assert after["across"] == before["across"]
    assert all(row["num_replicas"] == 0 for row in after["rows"])
    assert before["rows"][0].keys() == after["rows"][0].keys()

    in_grid = ("leaderboard", "--store", store, "--grid", grid)
    assert call(*in_grid, "--json").json == after
    mlp = call("leaderboard", "--store", store, "--metric", "mlp", "--json").json
    assert [row["n_seeds"] for row in mlp["rows"]] == [1] * 4
    knn = call("leaderboard", "--store", store, "--metric", "knn", "--json").json
    assert len({row["class_id"] for row in knn["rows"]}) == 4  # two meanings of k-NN, apart

    table = call(*in_grid).out
    assert "evaluation" not in table
    lines = [*csv.DictReader(io.StringIO(call(*in_grid, "--format", "csv").out))]
    assert [line["method"] for line in lines] == [row["method"] for row in after["rows"]]
    for form in ("markdown", "latex"):
        text = call(*in_grid, "--format", form).out
        assert len(re.findall(r"(?m)^[|\d].*\bsimclr\b", text)) >= 2
        assert "evaluation" not in text
    page = tmp_path / "page.html"
    assert call("report", page, "--store", store).code == 0
    embedded = re.search(
        r'<script[^>]*id="data"[^>]*>(.*?)</script>', page.read_text("utf-8"), re.S
    )
    assert embedded is not None
    data = json.loads(embedded[1])
    groups = data["boards"]["linear_acc"]["groups"]
    assert [[row[1] for row in group["rows"]] for group in groups] == [
        [row["method"] for row in after["rows"] if row["class_id"] == class_id]
        for class_id in dict.fromkeys(row["class_id"] for row in after["rows"])
    ]
