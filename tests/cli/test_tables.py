"""Tables to search in, through the command: written from the shipped rows, and searched."""

from __future__ import annotations

import hashlib
import importlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlcroissant
import numpy as np
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
    assert f"{len(rows)} runs of" in again.out
    for one in folder.iterdir():
        assert (folder.parent / "b" / one.name).read_bytes() == one.read_bytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in mlcroissant
def test_croissant_reads_a_table(folder: Path) -> None:
    dataset = mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))
    assert dataset.metadata.issues.report() == ""
    first = next(iter(dataset.records("lines")))
    frame = pd.read_parquet(folder / f"{GRID}.parquet")
    assert {name.partition("/")[2] for name in first} == {*frame.columns}
    assert first["lines/client.lr"] == frame["client.lr"].iloc[0]


def test_replayed_searches_pick_what_the_study_picked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates by SEP and by the objective that docs/log.md reports."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "studies"))
    study = importlib.import_module("heterogeneity")
    chosen = study.chosen_rates(fedbench.open_store(RESULTS).rows())
    assert len(chosen) >= 7
    for method, by in chosen.items():
        for objective, name in (("sep", "sep"), ("align-unif", "objective")):
            (task,) = fedbench.replay(
                method,
                folder / f"{GRID}.parquet",
                sampler="random",
                trials=5,
                searches=2,
                objective=objective,
            ).tasks
            assert [pick["params"] for pick in task.picks] == [{"client.lr": by[name]}]


def test_replayed_searches_lose_what_the_study_of_selection_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Searches of all configurations, one by each seed's score, judged by the other seed."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "studies"))
    study = importlib.import_module("selection")
    store = fedbench.open_store(study.STORE)
    found = study.cells(store.rows())
    assert found
    for (method, alpha), cell in found.items():
        accuracy = study.accuracies(cell) / 100
        for objective, name in (("sep", "sep"), ("align-unif", "objective"), ("lidar", "lidar")):
            by = study.scores(store, cell, name, study.ROUNDS[-1])
            lost = [study.regret(by[:, s], accuracy[:, 1 - s], study.COUNT) for s in (0, 1)]
            (task,) = fedbench.replay(
                method,
                TABLE,
                set={"data.alpha": alpha},
                objective=objective,
                sampler="grid",
                trials=study.COUNT,
                searches=2,
            ).tasks
            assert task.regret == pytest.approx(np.mean(lost), abs=1e-12)


def test_the_shipped_table_is_that_of_the_shipped_rows(tmp_path: Path) -> None:
    version = json.loads((TABLE.parent / "croissant.json").read_text("utf-8"))["version"]
    fedbench.release(tmp_path / "new", SELECTION, version=version, table="selection")
    for file in TABLE.parent.iterdir():
        assert file.read_bytes() == (tmp_path / "new" / file.name).read_bytes()
    assert sum(file.stat().st_size for file in TABLE.parent.iterdir()) < 1_000_000


def test_the_page_on_tables(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Its commands and its Python blocks, on the table of this repository."""
    page = (ROOT / "docs" / "tables.md").read_text("utf-8")
    monkeypatch.chdir(ROOT)
    commands = [*blocks("sh", page)[0].splitlines()]
    assert len(commands) == 2
    for line in commands:
        answer = call(*shlex.split(line)[1:], "--searches", "3")
        assert answer.code == 0, answer.err
    names: dict[str, Any] = {}
    for block in blocks("python", page):
        exec(compile(block, "tables.md", "exec"), names)
    assert len(names["study"].trials) % COUNT == 0
    assert len(names["study"].best_trial.intermediate_values) == 4


def test_searches_are_printed_and_their_record_is_that_of_the_function(
    folder: Path, call: Call
) -> None:
    file = folder / f"{GRID}.parquet"
    options = "--trials 3 --searches 4 --sampler random --objective sep"
    words = ("tune", "simclr", "--table", file, *options.split())
    text = call(*words)
    assert text.code == 0
    assert "5 configurations, seeds 100" in text.out
    record = call(*words, "--json").json
    found = fedbench.replay(
        "simclr",
        folder / f"{GRID}.parquet",
        trials=3,
        searches=4,
        sampler="random",
        objective="sep",
    )
    assert record["tasks"][0]["regret"] == found.tasks[0].regret


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--searches", "2"), "--searches 2: needs --table FILE"),
        (("--table", "x", "--watch-labels"), "--watch-labels: has no meaning with --table"),
        (("--table", "x", "--store", "y"), "--store: has no meaning with --table"),
        (("--table", "x", "--dry-run"), "--dry-run: has no meaning with --table"),
    ],
)
def test_options_that_do_not_go_with_a_table_are_refused(
    refused: Callable[[tuple[str, ...], str], None], words: tuple[str, ...], message: str
) -> None:
    refused(("tune", "simclr", *words), message)


def test_a_table_has_no_ranks_to_compare(tmp_path: Path, call: Call) -> None:
    words = ("--table", GRID, "--version", "1", "--against", RESULTS, "--store", RESULTS)
    answer = call("release", tmp_path / "new", *words)
    assert answer.code == 2
    assert "a table has no ranks" in answer.err
    assert not (tmp_path / "new").exists()
