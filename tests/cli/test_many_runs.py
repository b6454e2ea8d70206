"""`fedbench tune` and `fedbench sweep`."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from fedbench.bench.experiment.common_options import Settings
from fedbench.bench.results.leaderboard.confirmed import Confirmed
from fedbench.bench.terminal.show_tuning import advice
from fedbench.bench.tuning.study import StudyResult
from tests.bench.tuning.conftest import InOneProcess

from .conftest import TINY, Call

GRID = """
grid: mine
description: two concentrations
axes: {data.alpha: [0.1, 1.0]}
methods: [simclr]
seeds: [0]
"""


def test_sweep_runs_what_is_missing_and_then_nothing(
    call: Call, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InOneProcess().in_place_of_ray(monkeypatch)
    grid = tmp_path / "mine.yaml"
    grid.write_text(GRID, encoding="utf-8")
    words = ("sweep", "--grid", grid, *TINY, "--store", copy)
    first = call(*words, "--device", "cpu")
    assert first.code == 0, first.err
    # Of two concentrations `run` has done the one of the preset, 0.1.
    assert "2 cells: 1 in the store already, 1 done, 0 failed" in first.out
    assert "2/2 · simclr alpha=" in first.err
    assert f"next: fedbench leaderboard --grid {shlex.quote(str(grid))} --store '" in first.err
    again = call(*words, "--json").json
    counts = {key: again[key] for key in ("planned", "skipped", "done", "failed")}
    assert counts == {"planned": 2, "skipped": 2, "done": 0, "failed": 0}
    assert {cell["status"] for cell in again["cells"]} == {"ok"}
    ranking = call("leaderboard", "--grid", grid, "--store", copy, "--json").json
    assert sorted(row["alpha"] for row in ranking["rows"]) == [0.1, 1.0]


def test_sweep_says_what_helps_cells_that_diverged(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InOneProcess().in_place_of_ray(monkeypatch)
    grid = tmp_path / "mine.yaml"
    grid.write_text(GRID.replace("simclr", "supervised"), encoding="utf-8")
    words = ("--set", "client.lr=1e30", "--device", "cpu", "--store", tmp_path)
    answer = call("sweep", "--grid", grid, *TINY, *words)
    assert answer.code == 0, answer.err
    assert "2 runs diverged" in answer.err
    assert answer.err.count("lower client.lr") == 1


def test_sweep_dry_run_counts_and_estimates(call: Call, tmp_path: Path) -> None:
    words = ("sweep", "--grid", "heterogeneity", "--seed", 4, *TINY, "--store", tmp_path / "none")
    document = call(*words, "--dry-run", "--json", "--methods", "simclr,supervised").json
    assert {cell["seed"] for cell in document["cells"]} == {4}
    text = call(*words, "--dry-run", "--methods", "supervised")
    for part in ("3 to run", "data.alpha=0.1", "supervised"):
        assert part in text.out


def test_tune_writes_a_file_that_run_takes(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InOneProcess().in_place_of_ray(monkeypatch)
    store = ("--store", tmp_path)
    words = ("tune", "supervised", "--trials", "2", *TINY, *store, "--device", "cpu")
    first = call(*words)
    assert first.code == 0, first.err
    assert "best.yaml" in first.out
    document = call(*words, "--json").json
    assert {"study_id", "best", "trials", "config_file"} <= set(document)
    assert {"trial", "objective", "params"} == set(document["best"])
    assert [trial["number"] for trial in document["trials"]] == [0, 1]
    lr = document["best"]["params"]["client.lr"]
    answer = call("config", "supervised", "--config", document["config_file"], "--json").json
    assert answer["client"]["lr"] == lr
    assert answer["study"] == document["study_id"]
    last = first.err.splitlines()[-1]
    advised = shlex.split(last[last.index("fedbench run ") :].partition(";")[0])[1:]
    planned = call(*advised, "--dry-run", "--json").json["config"]
    assert (planned["client"]["lr"], planned["federation"]["num_rounds"]) == (lr, 1)
    plan = ("sweep", "--grid", "heterogeneity", "--methods", "supervised", "--seeds", 0, *TINY)
    for tuned in ("auto", document["study_id"], document["config_file"]):
        planned = call(*plan, *store, "--tuned", tuned, "--dry-run", "--json").json
        assert {cell["study"] for cell in planned["cells"]} == {document["study_id"]}


def test_studies_show_the_confirmation_as_tune_did(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InOneProcess().in_place_of_ray(monkeypatch)
    place = ("--store", tmp_path)
    words = ("tune", "supervised", "--trials", 2, "--confirm", 3, *TINY, *place, "--device", "cpu")
    document = call(*words, "--json").json
    assert len(document["confirmed"]) > 1
    kept = call("studies", document["study_id"], *place, "--json").json["confirmed"]
    assert kept == document["confirmed"]
    shown = call(*words).out.splitlines()
    start = next(at for at, line in enumerate(shown) if line.startswith("confirmation"))
    block = "\n".join(shown[start : start + 2 + len(kept)])  # title, heading, a line for each
    assert block in call("studies", document["study_id"], *place).out


def test_a_study_ends_in_a_sentence_and_without_a_best_trial_in_exit_code_4(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = {
        "number": 0, "status": "diverged", "objective": None, "params": {"client.lr": 1.0},
        "watched": {}, "seconds": 1.0, "error": None,
    }  # fmt: skip
    result = StudyResult("s-1", "simclr", "demo", "finished", None, (trial,), 1, None)
    monkeypatch.setattr("fedbench.tune", lambda *_, **__: result)
    answer = call("tune", "simclr")
    assert answer.code == 4
    answer = call("tune", "simclr", "--json")
    assert (answer.code, answer.json["best"], answer.json["config_file"]) == (4, None, None)
    known = {"trial": 0, "objective": 0.1, "params": {"client.lr": 0.1}}
    settings = Settings(set={"data.alpha": 1.0}, config_files=("a b.yaml",))
    for best, preset, ends in (
        (None, {"client.lr": 1.0}, "so use that: {}"),
        (known, {"client.lr": 0.1}, "so use that: {}"),
        (known, {"client.lr": 1.0}, "with it: {} --config best.yaml; in a sweep: --tuned s-1"),
    ):
        ended = replace(result, best=best, preset_params=preset, config_file=Path("best.yaml"))
        command = "fedbench run simclr --preset demo --config 'a b.yaml' --set=data.alpha=1.0"
        assert advice(ended, settings, None).endswith(ends.format(command))
    for interval, ends in (
        ((0.01, 0.03), "it is ahead of the preset; to train with it: {} --config best.yaml; in a"),
        ((-0.05, 0.01), "it cannot be told from the preset; to train with it: {} --config best."),
        ((-0.05, -0.01), "it is behind the preset, so use that: {}"),
    ):
        first = Confirmed("best trial", {}, "linear_acc", {0: 0.5}, (0.4, 0.6), None, None)
        fresh = first, replace(first, name="preset", behind=interval)
        said = advice(replace(ended, confirmed=fresh), settings, None)
        assert ends.format(command) in said
    with_errors = replace(result, kept_errors=(0, 2))
    monkeypatch.setattr("fedbench.tune", lambda *_, **__: with_errors)
    assert "0, 2" in call("tune", "simclr").out
