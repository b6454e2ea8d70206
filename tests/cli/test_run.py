"""`fedbench run` and its errors."""

import re
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.terminal.progress import RunProgress

from .conftest import QUICK, Call


def test_run_keeps_the_contract_of_its_json(finished: Any, store: Path) -> None:
    assert finished.code == 0, finished.err
    document = finished.json
    names = {"run_id", "status", "method", "preset", "seed", "config", "metrics", "cost", "paths"}
    assert names <= set(document)
    assert (document["status"], document["method"], document["preset"]) == ("ok", "simclr", "demo")
    assert document["config"]["federation"]["num_rounds"] == 1
    assert 0 < document["metrics"]["linear_acc"] <= 1
    assert document["metrics"]["untrained_knn_acc"] is not None
    assert document["cost"]["bytes_up"] > 0
    assert Path(document["paths"]["run"]).parent.parent == store
    assert Path(document["paths"]["row"]).is_file()


def test_run_again_reads_the_store(call: Call, store: Path, finished: Any) -> None:
    again = call("run", "simclr", *QUICK, "--store", store)
    assert again.code == 0
    assert "was in the store already" in again.err
    assert finished.json["run_id"] in again.out
    assert "gain" in again.out
    assert "next: fedbench leaderboard --store '" in again.err


def test_quiet_run_says_nothing_on_stderr(call: Call, tmp_path: Path) -> None:
    steady = ("--set", "model.norm=group")  # without statistics that one round does not fill
    asked = ("--set", "evaluation.objectives=[rankme]")
    share = ("--set", "evaluation.probe_fractions=[0.1]")
    words = (*QUICK, *steady, *asked, *share)
    answer = call("run", "simclr", *words, "--store", tmp_path, "-q", "--seed", 1)
    assert (answer.code, answer.err) == (0, "")
    assert "seed 1 · ok" in answer.out
    assert {"rankme", "linear_10pct_acc"} <= {*answer.out.split()}


def test_dry_run_executes_nothing(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings = ("--set", "federation.participation=0.5", "--set", "client.batch_size=10")
    words = ("run", "supervised", *QUICK, *settings, "--store", store)
    text = call(*words, "--dry-run")
    assert text.code == 0
    assert "2 clients" in text.out
    document = call(*words, "--dry-run", "--json").json
    assert document["status"] == "planned"
    # 200 images on 4 clients: 50 each, in batches of 10 -> 5 steps, in 2 epochs, for each of 2
    assert document["estimate"]["num_steps"] == 20
    steps = {"least": 10, "median": 10.0, "most": 10, "num_clients": 4, "idle_clients": 0}
    assert document["local_steps"] == steps
    assert not store.exists()


def test_diverged_run_is_a_row_like_any_other(call: Call, tmp_path: Path) -> None:
    words = ("run", "supervised", *QUICK, "--set", "client.lr=1e30", "--store", tmp_path)
    for _ in range(2):  # executed, and read back
        answer = call(*words, "--json")
        assert answer.code == 0
        assert answer.json["status"] == "diverged"
        assert "0 of 1 rounds" in answer.err
    exported = call(
        "export", answer.json["run_id"], tmp_path / "e.safetensors", "--store", tmp_path
    )
    assert (exported.code, exported.out) == (5, "")
    assert "diverged" in exported.err


def test_a_seed_that_has_no_effect_is_named(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    assert call("config", "simclr", "--set", "seed=11", "--seed", 12, "--json").json["seed"] == 12
    assert {"seed=11", "--seed"} <= {*caplog.text.split()}


def test_store_that_cannot_be_written_is_exit_code_5(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for words in (("run", "simclr", *QUICK), ("leaderboard",)):
        answer = call(*words, "--store", file)
        assert answer.code == 5
        assert answer.out == ""
        assert str(file) in answer.err
        assert len(answer.err.splitlines()) == 1


def test_a_full_disk_is_no_bug(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file takes more than two kilobytes."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut off, and kept
    load_dataset("digits", tmp_path / "d", train_subset=80, test_subset=40)
    words = ("run", "supervised", *QUICK, "--set", "data.train_subset=80", "--set", "model.width=4")
    places = ("--store", tmp_path / "s", "--data-dir", tmp_path / "d")
    settings = ("--set", "data.test_subset=40")
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, most))
    try:
        answer = call(*words, *settings, *places)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert answer.code == 5, answer.err
    assert "the disk is full" in answer.err


def test_bug_is_exit_code_1_and_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("fedbench.bench.terminal.show_lists.records", broken)
    answer = call("datasets")
    assert answer.code == 1
    assert answer.err == (
        "error: ValueError: two lines\nthis is a bug; --debug shows the traceback\n"
    )
    assert "Traceback (most recent call last)" in call("datasets", "--debug").err


def test_interrupt_is_exit_code_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbench.bench.terminal.show_lists.records", interrupted)
    answer = call("datasets")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "interrupted\n"  # a listing has nothing to continue
    monkeypatch.setattr("fedbench.cli.fedbench.run", interrupted)
    assert call("run", "simclr").err.endswith("interrupted; the same command continues\n")


def test_an_interrupted_run_says_what_is_saved(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunProgress, "__call__", interrupted)  # after the first round
    answer = call("run", "orchestra", *QUICK, "--store", tmp_path, "--quiet")
    assert answer.code == 130
    assert answer.err == "1 of 2 rounds are saved\ninterrupted; the same command continues\n"


def test_lanes_change_no_metric(call: Call, finished: Any, tmp_path: Path) -> None:
    lanes = call("run", "simclr", *QUICK, "--lanes", 3, "--store", tmp_path, "--json")
    assert lanes.code == 0
    assert lanes.json["metrics"] == finished.json["metrics"]
    (file,) = (tmp_path / "rows").glob("*.parquet")
    (record,) = pq.read_table(file).to_pylist()
    env = {name.removeprefix("platform."): value for name, value in record.items()}
    assert re.fullmatch(r"3, [1-9]\d* of \d+ steps replayed", env["lanes"])
