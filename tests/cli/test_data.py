"""Data sets by their content, through the command."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.data import datasets
from fedbench.bench.data.known import REVISIONS
from tests.bench.data.test_datasets import write_folder
from tests.specs import rewrite

from .conftest import Call

SMALL = {
    "data.num_clients": 2,
    "data.partition": "iid",
    "federation.num_rounds": 1,
    "client.batch_size": 4,
    "model.width": 4,
    "evaluation.untrained": "false",
    "evaluation.objective_max_examples": 8,
}


@pytest.fixture
def run(call: Call, tmp_path: Path) -> Call:
    """Run a small configuration on a folder."""

    def run(method: str, folder: Path, **more: Any) -> Any:
        values = {**SMALL, "data.name": f"folder:{folder}", **more}
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        places = ["--store", tmp_path / "store", "--data-dir", tmp_path / "data"]
        return call("run", method, *words, *places, "--workers", "1", "--json")

    return run


def test_the_same_images_under_two_names_are_one_data_set(
    run: Call, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write_folder(tmp_path / "cifar100x")
    two = write_folder(tmp_path / "snapshot123", turned=True)
    first = run("simclr", one)
    assert first.code == 0, first.err
    assert not first.json["stored_before"]
    again = run("simclr", two)
    assert (again.json["run_id"], again.json["stored_before"]) == (first.json["run_id"], True)
    assert run("supervised", two).code == 0
    board = ("leaderboard", "--store", tmp_path / "store")
    lines = call(*board, "--json").json["rows"]
    assert sorted((line["method"], line["rank"] is not None) for line in lines) == [
        ("simclr", True),
        ("supervised", True),
    ]
    assert len({line["class_id"] for line in lines}) == 1
    assert {line["dataset"] for line in lines} == {"folder:cifar100x"}
    # The order of the files changes no bit of a run.
    shutil.rmtree(tmp_path / "store")
    other = run("simclr", two).json
    assert not other["stored_before"]
    assert other["metrics"] == first.json["metrics"]
    # Once the content has a name, rows get it.
    words = ("data", "prepare", f"folder:{two}", "--data-dir", tmp_path / "data", "--json")
    revision = call(*words).json["sha256"]
    monkeypatch.setattr(datasets, "REVISIONS", {**REVISIONS, revision: "cifar100"})
    assert run("supervised", one).code == 0
    for asked in ("cifar100", f"folder:{two}"):
        lines = call(*board, "--dataset", asked, "--json").json["rows"]
        assert [line["dataset"] for line in lines] == ["cifar100", "cifar100"]


def test_prepare_shows_what_a_set_holds(
    call: Call, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(tmp_path / "set")
    words = ("data", "prepare", f"folder:{folder}", "--data-dir", tmp_path / "data")
    answer = call(*words, "--json", "--preview", tmp_path / "see.png")
    assert answer.code == 0
    assert [*answer.json][:5] == ["path", "sha256", "name", "num_train", "num_test"]
    assert answer.json["classes"] == [{"name": name, "train": 6, "test": 2} for name in "ab"]
    assert answer.json["preview"] == str(tmp_path / "see.png")
    lines = call(*words).out.splitlines()
    table = [["class", "train", "test"], ["a", "6", "2"], ["b", "6", "2"]]
    assert [line.split() for line in lines[:3]] == table
    assert ["test_in_train", "0"] in [line.split() for line in lines]
    split = call("data", "split", *words[2:]).out.splitlines()
    assert len(split) == 1 + 12 + 4
    # What speaks against the data is said before each study, too.
    rewrite(folder / "test" / "a" / "0.png", (folder / "train" / "b" / "0.png").read_bytes())
    given = {**SMALL, "data.name": f"folder:{folder}"}.items()
    settings = [word for key, value in given for word in ("--set", f"{key}={value}")]
    for _ in range(2):
        places = ("--store", tmp_path / "store", "--data-dir", tmp_path / "data")
        plan = call("tune", "simclr", "--trials", 1, "-n", *settings, *places)
        assert plan.code == 0, plan.err
        assert "1 of 4 test images are training images, too" in caplog.text
        assert "two labels or more: 1" in caplog.text
        caplog.clear()


def test_a_partition_names_the_classes(call: Call, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set")
    long = "a golden retriever, seen from the left"
    for split in ("train", "test"):
        (folder / split / "a").rename(folder / split / long)
        (folder / split / "b").rename(folder / split / "7")
    settings = ("--set", f"data.name=folder:{folder}", "--set", "data.num_clients=1")
    words = ("partition", "--data-dir", tmp_path / "data", *settings)
    document = call(*words, "--json").json
    assert document["class_names"] == ["7", long]
    client = call(*words).out.splitlines()[-1]
    assert "class 7: 6" in client  # a number alone would look like a count
    assert long not in client
    (short,) = re.findall("a golden[^:]*(?=: 6)", client)
    assert len(short) == 20
    assert "class_names" not in call("partition", "--labels", "balanced:40:4", "--json").json
