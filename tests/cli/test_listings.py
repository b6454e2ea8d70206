"""Commands that only show: rankings, lists, explanations; and what a terminal must not show."""

import json
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedbench
from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.experiment.fields import Fields, get
from fedbench.bench.experiment.preset_loading import preset_names
from fedbench.bench.method import registry
from fedbench.bench.terminal.console import note
from fedbench.bench.terminal.tables import show_record, show_table

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


READERS = ["leaderboard", "leaderboard --json", "report p.html", "verify", "studies", "show 0123"]


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


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("presets", "one-gpu", "client.precision bf16 ours"),
        ("presets", "laptop", "method: fedsc"),
        ("grids", "scaling", "linear; of: data.num_clients"),
        ("spaces", "byol", "client.lr float 0.001 0.3 yes"),
        ("objectives", "lidar", "Thilak et al. 2024"),
    ],
)
def test_one_of_a_list(call: Call, kind: str, name: str, shown: str) -> None:
    assert shown in " ".join(call(kind, name).out.split())
    known = {record["name"]: record for record in call(kind, "--json").json}
    assert call(kind, name, "--json").json == known[name]


def test_config_says_where_values_come_from(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits").mkdir()  # a name goes before a folder of that name
    monkeypatch.chdir(tmp_path)
    words = ("config", "fed-simclr", "--set", "data.alpha=1e-3", "--dataset", "digits")
    document = call(*words, "--json").json
    assert document["spec"] == "simclr+uv"
    for key, value, source in (("alpha", 0.001, "--set"), ("name", "digits", "--dataset")):
        assert (document["data"][key], document["sources"][f"data.{key}"]) == (value, source)
    assert "data.alpha" in call(*words).out


@pytest.mark.parametrize(
    ("given", "meant"),
    [("FEDBENCH_CLIENT__LR", "FEDBENCH__CLIENT__LR"), ("FEDBENCH_DATADIR", "FEDBENCH_DATA_DIR")],
)
def test_a_misspelt_variable_is_refused_with_the_right_name(
    given: str, meant: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(given, "0.5")
    answer = call("config", "simclr")
    assert (answer.code, answer.out) == (2, "")
    assert meant in answer.err


def test_config_yaml_is_a_file_for_config(call: Call, tmp_path: Path) -> None:
    words = ("simclr+uv", "--preset", "laptop", "--set", "client.weight_decay=1e-7")
    file = tmp_path / "mine.yaml"
    file.write_text(call("config", *words, "--yaml").out, encoding="utf-8")
    again = call("config", "simclr+uv", "--config", file, "--json").json
    first = call("config", *words, "--json").json
    del first["sources"], again["sources"]
    assert again == first


def test_partition_needs_no_images(call: Call, tmp_path: Path) -> None:
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
    assert call(*words, "--out", tmp_path / "clients.parquet").out.splitlines() == lines
    column = pd.read_parquet(tmp_path / "clients.parquet").client
    assert column.value_counts().sort_index().tolist() == [10] * 100


def test_export(call: Call, store: Path, finished: Any, tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "encoder.safetensors"
    run_id = finished.json["run_id"]
    document = call("export", run_id, file, "--store", store, "--json").json
    assert document["file"] == str(file)
    assert document["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert json.loads(file.with_suffix(".json").read_text())["run_id"] == run_id


def test_every_key_has_a_meaning() -> None:
    for entry in registry.entries().values():
        spec = f"{min(entry.bases or ('simclr',))}+{entry.name}" if entry.is_addon else entry.name
        for key, info in Fields.of(spec).infos.items():
            assert info.description, f"{spec}: {key}"


@pytest.mark.parametrize("preset", preset_names())
def test_values_are_those_of_a_run(preset: str) -> None:
    """The last value that holds whatever the data are is the one that a run gets."""
    spec = "simclr+uv"
    config = fedbench.resolve(spec, preset=preset, environ={}).config
    for key in ("client.lr", "method.temperature", "method.uv.rows", "data.label_fraction"):
        (record,) = fedbench.explain(key, spec)
        values = [v for v in record["presets"] if v["preset"] == preset]
        certain = [v["value"] for v in values if v["when"].keys() <= {"method", "addon"}]
        assert certain[-1] == get(config, key), key


def test_a_preset_shows_the_value_that_holds_and_not_the_one_it_extends(call: Call) -> None:
    lines = [line.split() for line in call("presets", "fashion-small").out.splitlines()]
    rounds = [line[1] for line in lines if line[:1] == ["federation.num_rounds"]]
    assert rounds == ["12", "12"]  # of all methods, and of orchestra, for which `demo` has 24


def test_explain_says_range_unit_and_ways_to_set(call: Call) -> None:
    out = call("explain", "client.compile").out
    assert "FEDBENCH__CLIENT__COMPILE=true" in out
    assert out.splitlines()[-1].split() == ["all", "false", "default"]
    assert "privacy.clip=VALUE" in call("explain", "privacy.clip").out  # no preset has one
    (way,) = [
        line for line in call("explain", "evaluation.protocols").out.splitlines() if "--" in line
    ]
    assert shlex.split(way)[-1].startswith("evaluation.protocols=[knn, linear, ")
    entry = call("explain", "client.lr", "orchestra", "--json").json["explanations"][0]
    assert entry["searched"]["orchestra"]["low"] == 0.001
    paper = [v for v in entry["presets"] if v["preset"] == "cross-device"]
    assert [(v["value"], v["origin"]) for v in paper] == [(0.003, "paper")]  # its rule replaces


def test_methods_shows_one_spec(call: Call) -> None:
    assert "method.uv.rows" in call("methods", "fed-simclr").out
    records = call("methods", "fed-simclr", "--json").json
    assert [record["name"] for record in records] == ["simclr", "uv"]
    assert records[0]["fields"]["temperature"]["kind"] == "number > 0"
    assert "cbafed, semifed, simclr" in call("methods", "uv").out
    assert call("methods", "simcrl").code == 2


def test_yaml_that_a_terminal_must_not_show(call: Call, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text('data.name: "folder:/tmp/a\\u202eb\\x1b\\tc"\n')
    second.write_text(call("config", "simclr", "--yaml", "--config", first).out)
    assert second.read_text().isascii()
    assert load_yaml(second)["data"]["name"] == "folder:/tmp/a\u202eb\x1b\tc"


def test_sentences_of_a_record_stand_under_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "42")
    cautions = ["the encoder is narrower than before its training", "no weight moved"]
    show_record("study x", {"caution": cautions, "file": "s/best.yaml"}, sentences=True)
    assert capsys.readouterr().out.splitlines() == [
        "study x",
        "  caution  - the encoder is narrower than",
        "             before its training",
        "           - no weight moved",
        "  file     s/best.yaml",
    ]


def test_no_control_character_reaches_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich adds its own colours, but shows `[red]` and the cells' characters as text."""
    cells = [["[red]x[/red]", "\x1b[2J\x07\u202ea\nb"]]
    show_table(["method", "notes"], cells, title="\x1b]0;t\x07")
    plain = capsys.readouterr().out
    assert r"\x1b[2J\x07\u202ea\nb" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    show_table(["method", "notes"], cells, title="t")
    drawn = capsys.readouterr().out
    assert "[red]x[/red]" in drawn
    assert r"\x1b[2J\x07\u202ea\nb" in drawn
    assert "\x07" not in drawn
    assert "\x1b[2J" not in drawn
    note("error: \x1b[31m")
    assert "\x1b" not in capsys.readouterr().err
