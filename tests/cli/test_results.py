"""Commands on stores: report, studies, merge, verify, reproduce, runs, show."""

import re
import shlex
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from fedbench import describe, open_store, resolve
from fedbench.bench.config.overrides import parse_override
from fedbench.bench.config.yaml_files import installed
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from fedbench.bench.terminal import tables
from tests.specs import flip, rewrite

from .conftest import Call


def put(store: Path, row: Row) -> None:
    """Overwrite a stored row, which no command does."""
    rewrite(store / "rows" / f"{row.row_id}.parquet", encode([row], Row))


def test_report(call: Call, copy: Path, tmp_path: Path) -> None:
    file = tmp_path / "out put" / "page.html"
    answer = call("report", file, "--store", copy)
    assert answer.code == 0, answer.err
    assert str(file) in answer.out
    assert file.read_text().startswith("<!doctype html>")
    assert call("report", file, "--store", copy, "--json").json["num_rows"] == 1
    assert call("report", tmp_path / "page.pdf", "--store", copy).code == 2


def test_a_report_has_a_name_by_default_and_replaces_reports_alone(
    call: Call, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("report", "--store", copy, "--no-images", "--quiet")
    for _ in range(2):
        answer = call(*words)
        assert (answer.code, "report.html" in answer.out) == (0, True), answer.err
    (tmp_path / "report.html").write_text("<p>mine</p>")
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert (
        answer.err == "error: report.html exists and is no report; give the report another name\n"
    )
    assert (tmp_path / "report.html").read_text() == "<p>mine</p>"


def test_merge(call: Call, copy: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    planned = call("merge", copy, "--store", target, "--dry-run")
    assert planned.out.split()[:2] == ["rows_added", "1"]
    assert not target.exists()
    assert call("merge", copy, "--store", target, "--json").json["rows_added"] == 1
    assert call("merge", copy, "--store", target, "--json").json["rows_same"] == 1
    (row,) = Store(target).rows()
    put(copy, row.model_copy(update={"knn_acc": 0.123}))
    refused = call("merge", copy, "--store", target)
    assert (refused.code, refused.out) == (5, "")
    assert row.row_id in refused.err
    assert "knn_acc" in refused.err
    assert len(refused.err.splitlines()) <= 2


def test_verify(call: Call, copy: Path) -> None:
    fine = call("verify", "--store", copy)
    assert fine.code == 0
    path = next((copy / "rows").glob("*.parquet"))
    flip(path, path.stat().st_size // 2)
    damaged = call("verify", "--store", copy)
    assert damaged.code == 5
    assert str(path) in damaged.out.replace("\n", "")
    answer = call("verify", "--store", copy, "--json")
    assert answer.code == 5
    assert answer.json["damaged"][0]["file"] == str(path)


def test_studies(call: Call, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for number in range(6):
        trial = {
            "status": "ok",
            "seeds": [0],
            "params": {"client.lr": 0.1 * number},
            "objective": number / 10,
            "watched": {"knn_acc": (50 + number + number % 2) / 100},
            "seconds": 30.0,
            "bytes": 1_000_000,
        }
        store.write_trial("simclr-1", number, trial)
    meta: dict[str, Any] = {"spec": "simclr", "preset": "demo", "sampler": "tpe"}
    meta["space"] = {"client.lr": {"type": "float", "low": 0.0, "high": 1.0}}
    store.write_study("simclr-1", meta)
    place = ("--store", store.root)
    listed = call("studies", *place)
    assert listed.code == 0
    assert "simclr-1 simclr demo 6 0.5 0.97 [0.73, 1.00]" in " ".join(listed.out.split())
    one = call("studies", "simclr-1", *place)
    # x = 0…5, y = 0, 2, 2, 4, 4, 6: r = 19 / sqrt(17.5 * 22) = 0.968; ranks with ties: 0.971.
    said = " ".join(one.out.split())
    assert "against knn_acc: Pearson 0.97 [0.73, 1.00], Spearman 0.97 [0.63, 1.00]" in said
    assert {"3 min 0 s", "6.0 MB"} <= {*re.split(r"\s{2,}|\n", one.out)}
    record = call("studies", "simclr-1", *place, "--json").json
    assert (record["best"], len(record["trials"])) == (5, 6)
    unknown = call("studies", "simclr-2", *place)
    assert unknown.code == 2
    assert "did you mean 'simclr-1'" in unknown.err


def test_reproduce(call: Call, copy: Path, finished: Any) -> None:
    run_id = finished.json["run_id"]
    place = ("--store", copy, "--workers", "1", "--device", "cpu", "-q")
    same = call("reproduce", run_id[:6], *place, "--json")
    assert same.code == 0, same.err
    assert (same.json["same"], same.json["verdict"]) == (True, "same bits")
    assert len(set(same.json["platform"].values())) == 1
    assert same.json["num_rounds"] == 1
    assert same.json["num_results"] > 30
    (row,) = Store(copy).rows()
    put(copy, row.model_copy(update={"linear_acc": (row.linear_acc or 0) / 2}))
    keep = copy.parent / "kept"
    other = call("reproduce", run_id, *place, "--keep", keep)
    assert (other.code, other.err) == (4, "")
    assert f"linear_acc  {(row.linear_acc or 0) / 2}  {row.linear_acc}" in other.out
    assert Store(keep).rows()[0].linear_acc == row.linear_acc
    assert len(Store(copy).rows()) == 1


STORE = Path(__file__).resolve().parents[2] / "leaderboards" / "results"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return open_store(STORE).rows()


def listed(call: Call, *words: str) -> dict[str, Any]:
    answer = call("runs", "--store", str(STORE), "--limit", "0", "--json", *words)
    assert answer.code == 0, answer.err
    record: dict[str, Any] = answer.json
    return record


def test_all_runs_newest_first(call: Call, rows: list[Row]) -> None:
    record = listed(call)
    assert record["total"] == len(record["runs"]) == len(rows)
    times = [run["finished_at"] for run in record["runs"]]
    assert times == sorted(times, reverse=True)


def test_filters_agree_with_the_rows(call: Call, rows: list[Row]) -> None:
    words = ("--method", "spectral", "--where", "data.partition=rotation", "--where", "seed=2")
    ids = {run["run_id"] for run in listed(call, *words)["runs"]}
    expected = {
        row.row_id
        for row in rows
        if (row.method, row.partition, row.seed) == ("spectral", "rotation", 2)
    }
    assert ids == expected
    assert expected
    assert listed(call, "--status", "ok", "--preset", "laptop", "--dataset", "cifar10")["total"]
    assert listed(call, "--where", "seed=99999")["runs"] == []


def test_a_folder_of_images_goes_by_its_name(call: Call, copy: Path) -> None:
    (row,) = Store(copy).rows()
    put(copy, row.model_copy(update={"dataset": "folder:photos", "dataset_revision": "0" * 16}))
    words = ("--dataset", "photos", "--store", copy, "--json")
    assert call("runs", *words).json["total"] == 1
    assert len(call("leaderboard", *words).json["rows"]) == 1
    assert call("runs", "--dataset", "photo", "--store", copy).code == 2


def test_a_table_with_short_ids_that_other_commands_take(call: Call, rows: list[Row]) -> None:
    answer = call("runs", "--store", str(STORE), "--limit", "2")
    shared, header, *lines = answer.out.splitlines()
    assert shared.startswith("preset cross-device-cpu · dataset cifar10 ·")  # of both
    assert header.split()[:2] == ["run", "method"]
    assert answer.err.strip() == f"2 of {len(rows)} runs; --limit shows more"
    short = lines[0].split()[0]
    assert open_store(STORE).find(short).row_id.startswith(short)


def test_a_terminal_of_80_columns_holds_the_table(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    board = ("leaderboard", "--store", STORE, "--dataset", "fashion-mnist")
    for words in (("runs", "--store", STORE), ("grids",), ("methods",), ("presets",), board):
        rules = [line for line in call(*words).out.splitlines() if {*line} == {"─"}]
        assert 0 < max(map(len, rules)) <= 80  # as wide as the table below
    runs = call("runs", "--store", STORE, "--limit", 30).out.splitlines()
    first = runs.index(next(line for line in runs if {*line} == {"─"})) + 1
    ids = [line.split()[0] for line in runs[first:] if line[:1].strip()][:30]
    assert {len(each) for each in ids} == {8}
    monkeypatch.setenv("COLUMNS", "100")
    assert any(
        line.startswith("method.num_global_clusters ")
        for line in call("presets", "demo").out.splitlines()
    )


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("", 100)])
def test_sentences_below_a_table_break_at_blanks(
    call: Call, monkeypatch: pytest.MonkeyPatch, columns: str, widest: int
) -> None:
    """At the width that is told, and in a pipe at 100 columns; lines of a table stay whole."""
    monkeypatch.setenv("COLUMNS", columns)
    board = ("leaderboard", "--store", STORE, "--preset", "laptop", "--dataset", "cifar10")
    lines = call(*board).out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("means over"))
    assert max(map(len, lines[first:])) <= widest
    assert max(map(len, lines[:first])) > 100
    said = " ".join(" ".join(lines[first:]).split())
    assert "a test needs 3 methods and 6 common cells; in a column, lines that share" in said


def test_runs_show_what_tells_them_apart(call: Call, rows: list[Row]) -> None:
    out = call("runs", "--store", STORE, "--method", "simclr", "--dataset", "fashion-mnist").out
    shared, header, *lines = out.splitlines()
    assert "preset laptop · dataset fashion-mnist" in shared
    assert "preset" not in header
    rates = {f"lr={row.config.client.lr:g}" for row in rows if row.row_id[:8] in out}
    assert len(rates) > 1
    assert {line.split()[2] for line in lines} == rates


def test_a_run_in_full(call: Call, rows: list[Row]) -> None:
    row = next(row for row in rows if "objective_bytes" in row.further)
    answer = call("show", row.row_id[:8], "--store", str(STORE))
    assert answer.code == 0
    assert ["collapsed", "no", "no"] in [line.split() for line in answer.out.splitlines()]
    for text in (
        f"{row.linear_acc * 100:.1f} %" if row.linear_acc else "",
        "loss",
        "client.lr",
        "preset laptop (ours)",
        "encoder up",
        "objective_bytes",
        f"fedbench reproduce {row.row_id} --store {shlex.quote(str(STORE))}",
    ):
        assert text in answer.out
    record = call("show", row.row_id, "--store", STORE, "--json").json
    assert record["run_id"] == record["row"]["row_id"] == row.row_id
    assert record["config"]["seed"] == {"value": row.seed, "source": "seed"}
    assert len(record["curve"]) == row.num_rounds


def test_the_printed_command_gives_the_configuration_of_the_run(rows: list[Row]) -> None:
    """Of a row of every installed preset and method: the command is what a reader would type."""
    known = [row for row in rows if row.preset in installed("presets")]
    for row in {(row.preset, row.method): row for row in known}.values():
        description = describe(row.row_id, STORE)
        words = shlex.split(description.commands[1])
        assert words[:5] == ["fedbench", "run", row.method, "--preset", row.preset]
        assert words[-2:] == ["--seed", str(row.seed)]
        given = resolve(
            row.method,
            preset=row.preset,
            seed=row.seed,
            set=dict(parse_override(text.removeprefix("--set=")) for text in words[5:-2]),
            environ={},
            content=lambda _, name=row.dataset: name,  # type: ignore[misc]
        )
        assert given.config == row.config


def test_the_printed_command_takes_letters_beyond_ascii(tmp_path: Path, rows: list[Row]) -> None:
    body = deepcopy(rows[0].settings)
    body["data"]["name"] = "folder:é"
    row = rows[0].model_copy(update={"settings": body, "dataset": "folder:é"})
    Store(tmp_path).write_row(row)
    words = shlex.split(describe(row.row_id, tmp_path).commands[1])
    assert "--set=data.name=folder:é" in words


def test_a_row_of_other_code_is_only_reproduced(
    tmp_path: Path, call: Call, rows: list[Row]
) -> None:
    """A command line with its settings would make another run."""
    body = {**rows[0].settings, "code": {"edited": "0" * 16}}
    row = rows[0].model_copy(update={"settings": body})
    Store(tmp_path).write_row(row)
    record = call("show", row.row_id, "--store", tmp_path, "--json").json
    (command,) = map(shlex.split, record["commands"])
    assert command == ["fedbench", "reproduce", row.row_id, "--store", str(tmp_path)]
    assert record["other_code"] == ["edited"]
