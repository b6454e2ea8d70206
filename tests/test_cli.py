"""The command as people and scripts see it: exit codes, what goes to which stream, messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedbench.cli import main

TINY = ("--set", "federation.num_rounds=1", "--set", "data.train_subset=200")
QUICK = (*TINY, "--workers", "1", "--device", "cpu")


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in this process, through its real entry point."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*words: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Answer(stop.value.code, out, err)

    return run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, in a folder with a blank and a letter beyond ASCII, in which `finished` lies."""
    return tmp_path_factory.mktemp("my störe")


@pytest.fixture(scope="module")
def finished(store: Path) -> Answer:
    """`fedbench run` as its own process, from another directory, with its output in pipes."""
    return shell("run", "simclr", *QUICK, "--store", store, "--json", cwd=store.parent)


def shell(*words: object, cwd: Path | None = None, **env: str) -> Answer:
    done = subprocess.run(
        [sys.executable, "-m", "fedbench", *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": _root(), **env},
        timeout=120,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def _root() -> str:
    return str(Path(__file__).resolve().parent.parent)


# Running


def test_run_keeps_the_contract_of_its_json(finished: Answer, store: Path) -> None:
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


def test_run_reports_rounds_on_stderr_without_escape_codes(finished: Answer) -> None:
    assert "round 1/1 · loss " in finished.err
    assert "\x1b" not in finished.out + finished.err


def test_run_again_reads_the_store(call: Call, store: Path, finished: Answer) -> None:
    again = call("run", "simclr", *QUICK, "--store", store)
    assert again.code == 0
    assert "was in the store already" in again.err
    assert finished.json["run_id"] in again.out
    assert "untrained encoder" in again.out
    assert "next: fedbench leaderboard --store '" in again.err


def test_quiet_run_says_nothing_on_stderr(call: Call, store: Path, finished: Answer) -> None:
    answer = call("run", "simclr", *QUICK, "--store", store, "-q", "--seed", 1)
    assert (answer.code, answer.err) == (0, "")
    assert "seed 1 · ok" in answer.out


def test_dry_run_executes_nothing(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "store"
    text = call("run", "supervised", *QUICK, "--store", store, "--dry-run")
    assert text.code == 0
    assert "1 rounds with 8 clients each" in text.out
    document = call("run", "supervised", *QUICK, "--store", store, "--dry-run", "--json").json
    assert document["status"] == "planned"
    # 200 images on 8 clients: 25 each, in batches of 16 -> 2 steps per client
    assert document["estimate"]["num_steps"] == 16
    assert not store.exists()


def test_diverged_run_is_a_row_and_exit_code_4(call: Call, tmp_path: Path) -> None:
    words = ("run", "supervised", *QUICK, "--set", "client.lr=1e30", "--store", tmp_path)
    for _ in range(2):  # executed, and read back
        answer = call(*words, "--json")
        assert answer.code == 4
        assert answer.json["status"] == "diverged"
        assert "warning: the run diverged in round 1" in answer.err


# Wrong use


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "simcrl"), "unknown method 'simcrl'; did you mean 'simclr'?"),
        (("run", "simclr+vu"), "unknown add-on 'vu' in 'simclr+vu'; did you mean 'uv'?"),
        (("run", "simclr", "--preset", "dmo"), "unknown preset 'dmo'; did you mean 'demo'?"),
        (("run", "simclr", "--set", "client.lrr=1"), "did you mean 'client.lr'?"),
        (("run", "simclr", "--set", "client.lr=-1"), "client.lr: must be greater than 0"),
        (("run", "simclr", "--set", "client.lr"), "--set 'client.lr': write KEY=VALUE"),
        (("run", "simclr", "--set", "data.name=digts"), "did you mean 'digits'?"),
        (("run", "simclr", "--config", "no.yaml"), "no.yaml: no such file"),
        (("run", "simclr", "--device", "tpu"), "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
        (("run", "simclr", "--workers", "0"), "0 is not in the range"),
        (("run", "--nope", "simclr"), "no such option: --nope"),
        (("run",), "missing argument 'SPEC'"),
        (("rnu",), "no such command 'rnu'. Did you mean 'run'?"),
        (("leaderboard", "--grid", "heterogenety"), "did you mean 'heterogeneity'?"),
        (("leaderboard", "--metric", "knm_acc"), "unknown metric 'knm_acc'; did you mean"),
        (("partition", "--labels", "balanced:7:2"), "7 examples do not make 2 equal classes"),
        (("partition", "--set", "data.partition=idd"), "did you mean 'iid'?"),
        (("data", "prepare", "cifar11"), "did you mean 'cifar10'?"),
    ],
)
def test_wrong_use_is_exit_code_2_and_one_or_two_lines(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call(*words)
    assert answer.code == 2
    assert answer.out == ""
    assert message in answer.err
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_exponent_without_a_dot_is_refused_in_yaml(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("client:\n  lr: 1e-3\n", encoding="utf-8")
    answer = call("config", "simclr", "--config", file)
    assert answer.code == 2
    assert "client.lr: '1e-3' is text in YAML; write 1.0e-3" in answer.err


def test_missing_gpu_is_exit_code_3(call: Call, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    answer = call("run", "simclr", *TINY, "--device", "cuda", "--store", tmp_path)
    assert answer.code == 3
    assert "torch sees no GPU" in answer.err


def test_store_that_cannot_be_written_is_exit_code_5(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for words in (("run", "simclr", *QUICK), ("leaderboard",)):
        answer = call(*words, "--store", file)
        assert answer.code == 5
        assert answer.out == ""
        assert str(file) in answer.err
        assert len(answer.err.splitlines()) == 1


def test_bug_is_exit_code_1_and_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("fedbench.bench.listings.records", broken)
    answer = call("methods")
    assert answer.code == 1
    assert answer.err == (
        "error: ValueError: two lines\nthis is a bug; --debug shows the traceback\n"
    )
    assert "Traceback (most recent call last)" in call("methods", "--debug").err


def test_interrupt_is_exit_code_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbench.bench.listings.records", interrupted)
    answer = call("methods")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "interrupted; the same command continues\n"


# Ranking and listing


def test_leaderboard_in_a_pipe_is_plain_text(call: Call, store: Path, finished: Answer) -> None:
    answer = call("leaderboard", "--store", store)
    assert answer.code == 0
    header = answer.out.splitlines()[1].split()
    assert header[:2] == ["rank", "method"]
    assert not set("\x1b│╭─┃") & set(answer.out)


def test_leaderboard_formats_agree(call: Call, store: Path, finished: Answer) -> None:
    document = call("leaderboard", "--store", store, "--json").json
    (row,) = document["rows"]
    assert {"rank", "method", "mean", "std", "n_seeds", "published"} <= set(row)
    assert document == call("leaderboard", "--store", store, "--format", "json").json
    text = call("leaderboard", "--store", store, "--format", "csv").out
    assert f"{row['mean']!r}" in text
    assert "| rank | method |" in call("leaderboard", "--store", store, "--format", "markdown").out


def test_leaderboard_of_a_grid_finds_cells_that_run_executed(
    call: Call, tmp_path: Path
) -> None:
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "grid: mine\ndescription: one cell\naxes: {federation.num_rounds: [0]}\n"
        "methods: [supervised]\nseeds: [0]\n",
        encoding="utf-8",
    )
    store = ("--store", tmp_path / "store")
    for rounds in (0, 1):
        answer = call(
            "run", "supervised", *QUICK[2:], "--set", f"federation.num_rounds={rounds}", *store
        )
        assert answer.code == 0
    assert call("leaderboard", *store, "--grid", grid, "--json").json["rows"] == []
    answer = call(
        "run", "supervised", "--set", "federation.num_rounds=0", "--workers", 1, *store
    )
    rows = call("leaderboard", *store, "--grid", grid, "--json").json["rows"]
    assert [row["num_rounds"] for row in rows] == [0]


def test_empty_store_says_what_to_run(call: Call, tmp_path: Path) -> None:
    answer = call("leaderboard", "--store", tmp_path / "none", "--json")
    assert (answer.code, answer.json["rows"]) == (0, [])
    assert len(answer.err.splitlines()) == 1
    assert "fedbench run" in answer.err
    assert not (tmp_path / "none").exists()


def test_unreadable_rows_are_warnings(call: Call, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / ("0" * 20 + ".parquet")).write_bytes(b"PAR1")
    answer = call("leaderboard", "--store", tmp_path)
    assert answer.code == 0
    assert answer.err.startswith("warning: ")
    assert "0" * 20 in answer.err


def test_forced_colour_draws_a_table(
    call: Call, store: Path, finished: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "70")
    drawn = call("leaderboard", "--store", store).out
    assert "\x1b[" in drawn
    assert "linear %" in drawn
    assert "minutes" not in drawn  # no room
    assert max(map(len, _without_escapes(drawn).splitlines())) <= 70
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in call("leaderboard", "--store", store).out


def _without_escapes(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("kind", ["methods", "presets", "grids", "spaces", "datasets"])
def test_lists(call: Call, kind: str) -> None:
    records = call(kind, "--json").json
    text = call(kind).out
    assert isinstance(records, list)
    assert all(record["name"] in text for record in records)


def test_methods_have_their_fields(call: Call) -> None:
    records = {record["name"]: record for record in call("methods", "--json").json}
    assert records["simclr"]["fields"]["temperature"]["default"] == 0.1
    assert records["simclr"]["aliases"] == ["local-simclr"]
    assert records["uv"]["kind"] == "add-on"
    assert "base" not in records["uv"]["fields"]


def test_config_says_where_values_come_from(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH__CLIENT__LR", "0.5")
    file = tmp_path / "mine.yaml"
    file.write_text("client.batch_size: 8\n", encoding="utf-8")
    words = ("config", "fed-simclr", "--config", file, "--set", "data.alpha=1e-3")
    document = call(*words, "--json").json
    assert document["spec"] == "simclr+uv"
    assert document["client"]["lr"] == 0.5
    assert document["client"]["batch_size"] == 8
    assert document["data"]["alpha"] == 0.001
    sources = document["sources"]
    assert sources["client.lr"] == "environment FEDBENCH__CLIENT__LR"
    assert sources["client.batch_size"] == f"file {file}"
    assert sources["data.alpha"] == "--set"
    assert "data.alpha" in call(*words).out


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
    assert "1,000 images to 100 clients" in call(*words).out


def test_missing_images_are_exit_code_5_and_name_the_remedy(call: Call) -> None:
    answer = call("partition", "--preset", "cross-device")
    assert (answer.code, answer.out) == (5, "")
    assert "fedbench data prepare cifar10" in answer.err


def test_prepare(call: Call) -> None:
    document = call("data", "prepare", "digits", "--json").json
    assert (document["num_train"], document["num_test"]) == (1442, 355)
    assert len(document["sha256"]) == 64
    assert Path(document["path"]).is_dir()


def test_export(call: Call, store: Path, finished: Answer, tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "encoder.safetensors"
    run_id = finished.json["run_id"]
    document = call("export", run_id, file, "--store", store, "--json").json
    assert document["file"] == str(file)
    assert document["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert json.loads(file.with_suffix(".json").read_text())["run_id"] == run_id
    assert call("export", "0" * 20, file, "--store", store).code == 5
    assert call("export", run_id, tmp_path / "encoder.pt", "--store", store).code == 5


# The process


def test_help_is_quick_to_import() -> None:
    code = (
        "import sys, fedbench.cli as c\n"
        "try: c.main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'optuna', 'rich', 'pandas', 'numpy', 'pyarrow', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Example: fedbench run" in done.stdout


def test_every_command_has_an_example(call: Call) -> None:
    overview = call("--help").out
    names = [line.split()[0] for line in overview.split("Commands:")[1].splitlines()[1:-2] if line]
    assert {"run", "leaderboard", "partition", "config", "export", "data"} <= set(names)
    for name in names:
        words = ("data", "prepare") if name == "data" else (name,)
        answer = call(*words, "--help")
        assert answer.code == 0
        assert f"Example: fedbench {' '.join(words)}" in answer.out


def test_alone_it_prints_help_and_counts_as_wrong_use(call: Call) -> None:
    answer = call()
    assert (answer.code, answer.out) == (2, "")
    assert "Commands:" in answer.err


def test_version(call: Call) -> None:
    from fedbench import __version__

    assert call("-V") == call("--version") == (0, f"fedbench {__version__}\n", "")


def test_reader_that_goes_away_is_no_error() -> None:
    words = [sys.executable, "-m", "fedbench", "partition", "--labels", "balanced:20000:10"]
    words += ["--set", "data.num_clients=5000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_letters_that_the_terminal_does_not_have(store: Path, finished: Answer) -> None:
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    answer = shell("run", "simclr", *QUICK, "--store", store, "--json", **env)
    assert answer.code == 0, answer.err
    assert answer.json["paths"]["store"] == str(store)
