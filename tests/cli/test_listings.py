"""Commands that only show: rankings, lists, configurations, partitions."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import TINY, Call


def test_leaderboard_formats_agree(call: Call, store: Path, finished: Any) -> None:
    document = call("leaderboard", "--store", store, "--json").json
    row = document["rows"][0]
    assert {"rank", "method", "mean", "std", "n_seeds", "published"} <= set(row)
    assert document == call("leaderboard", "--store", store, "--format", "json").json
    text = call("leaderboard", "--store", store, "--format", "csv").out
    assert f"{row['mean']!r}" in text
    assert "| rank | method |" in call("leaderboard", "--store", store, "--format", "markdown").out


def test_leaderboard_of_a_grid_finds_cells_that_run_executed(call: Call, tmp_path: Path) -> None:
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "grid: mine\ndescription: one cell\naxes: {federation.num_rounds: [0]}\n"
        "methods: [supervised]\nseeds: [0]\n",
        encoding="utf-8",
    )
    words = ("--workers", 1, "--store", tmp_path / "store")
    assert call("run", "supervised", *TINY, *words).code == 0
    ranking = ("leaderboard", "--store", tmp_path / "store", "--grid", grid, "--json")
    assert call(*ranking).json["rows"] == []
    assert call("run", "supervised", "--set", "federation.num_rounds=0", *words).code == 0
    assert [row["num_rounds"] for row in call(*ranking).json["rows"]] == [0]


READERS = [
    "leaderboard",
    "leaderboard --json",
    "report page.html",
    "verify",
    "studies",
    "show 0123",
]


@pytest.mark.parametrize("words", READERS)
def test_absent_store_is_exit_code_5(call: Call, tmp_path: Path, words: str) -> None:
    answer = call(*words.split(), "--store", tmp_path / "no ne")
    assert (answer.code, answer.out) == (5, "")
    assert f"fedbench run simclr --store '{tmp_path}/no ne'" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_filters_that_find_nothing_say_so(call: Call, store: Path, finished: Any) -> None:
    words = ("leaderboard", "--store", store)
    typo = call(*words, "--dataset", "Digit")
    assert (typo.code, typo.out) == (2, "")
    assert "'digits'" in typo.err
    other = call(*words, "--dataset", "cifar10", "--json")
    assert (other.code, other.json["rows"]) == (0, [])
    assert "'cifar10'" in other.err
    assert "digits" in other.err
    grid = call(*words, "--grid", "scaling")
    assert (grid.code, grid.out) == (0, "")
    assert "fedbench sweep --grid scaling" in grid.err
    for more in ((), ("--dataset", "digits")):
        page = call("report", store / "page.html", "--store", store, "--grid", "scaling", *more)
        assert page.code == 5
        assert "'scaling'" in page.err


def test_unreadable_rows_are_warnings(call: Call, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / ("0" * 20 + ".parquet")).write_bytes(b"PAR1")
    answer = call("leaderboard", "--store", tmp_path)
    assert answer.code == 0
    assert answer.err.startswith("warning: ")
    assert "0" * 20 in answer.err


@pytest.mark.parametrize("kind", ["methods", "presets", "grids", "spaces", "datasets"])
def test_lists(call: Call, kind: str) -> None:
    records = call(kind, "--json").json
    text = call(kind).out
    assert isinstance(records, list)
    assert all(record["name"] in text for record in records)


def test_config_says_where_values_come_from(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH__CLIENT__LR", "0.5")
    file = tmp_path / "mine.yaml"
    file.write_text("client.batch_size: 8\n", encoding="utf-8")
    (tmp_path / "digits").mkdir()  # a name goes before a folder of that name
    monkeypatch.chdir(tmp_path)
    given = ("--config", file, "--set", "data.alpha=1e-3", "--dataset", "digits")
    words = ("config", "fed-simclr", *given)
    document = call(*words, "--json").json
    assert document["spec"] == "simclr+uv"
    assert document["client"]["lr"] == 0.5
    assert document["client"]["batch_size"] == 8
    assert document["data"]["alpha"] == 0.001
    sources = document["sources"]
    assert sources["client.lr"] == "environment FEDBENCH__CLIENT__LR"
    assert sources["client.batch_size"] == f"file {file}"
    assert sources["data.alpha"] == "--set"
    assert (document["data"]["name"], sources["data.name"]) == ("digits", "--dataset")
    text = call(*words).out
    assert "data.alpha" in text
    monkeypatch.setenv("FEDBENCH_CLIENT__LR", "0.5")
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "FEDBENCH_CLIENT__LR: write FEDBENCH__CLIENT__LR" in answer.err
    monkeypatch.delenv("FEDBENCH_CLIENT__LR")
    monkeypatch.setenv("FEDBENCH_DATADIR", "/x")
    answer = call("config", "simclr", "--preset", "demo")
    assert (answer.code, "FEDBENCH_DATA_DIR" in answer.err) == (2, True)


def test_config_yaml_is_a_file_for_config(call: Call, tmp_path: Path) -> None:
    words = ("simclr+uv", "--preset", "laptop", "--set", "client.weight_decay=1e-7")
    file = tmp_path / "mine.yaml"
    file.write_text(call("config", *words, "--yaml").out, encoding="utf-8")
    again = call("config", "simclr+uv", "--config", file, "--json").json
    first = call("config", *words, "--json").json
    del first["sources"], again["sources"]
    assert again == first


def test_partition_needs_no_images(call: Call) -> None:
    words = ("partition", "--preset", "cross-device", "--labels", "balanced:1000:10")
    document = call(*words, "--set", "data.partition=rotation", "--json").json
    names = "dataset partitioner alpha num_clients num_classes num_examples num_unused sizes"
    assert set(names.split()) <= set(document)
    assert document["dataset"] == "cifar10"
    assert sum(document["sizes"]) == 1000
    assert len(document["class_counts"]) == len(document["rotation_bins"]) == 100
    assert set(document["classes_per_client"]) == {"ge_1_mean", "ge_1pct_mean"}
    lines = call(*words).out.splitlines()
    assert lines[-1].split()[0] == "99"  # the last client


def test_export(call: Call, store: Path, finished: Any, tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "encoder.safetensors"
    run_id = finished.json["run_id"]
    document = call("export", run_id, file, "--store", store, "--json").json
    assert document["file"] == str(file)
    assert document["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert json.loads(file.with_suffix(".json").read_text())["run_id"] == run_id
