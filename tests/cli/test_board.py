"""`submit`, `verify BUNDLE` and `verify --claims` as a user sees them, on rows of this project."""

import itertools
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum
from tests.bench.results.conftest import run_of

from .conftest import Call

RESULTS = Path(__file__).resolve().parents[2] / "leaderboards" / "results"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Store with two rows."""
    part, whole = Store(tmp_path_factory.mktemp("store")), Store(RESULTS)
    for row in [row for row in whole.rows() if row.method == "simclr"][:2]:
        part.write_row(row)
        part.write_curve(row.row_id, whole.curve(row.row_id))
    return part


@pytest.fixture
def ids(store: Store) -> list[str]:
    return [row.row_id for row in store.rows()]


def test_from_a_store_to_a_board(
    call: Call,
    store: Store,
    ids: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    who = ("--by", "Ada Lovelace", "--orcid", "0000-0002-1825-0097")
    packed = call("submit", ids[0], ids[1][:8], *who, "--store", store.root, "--json")
    assert packed.code == 0, packed.err
    (file,) = tmp_path.iterdir()
    assert packed.json["file"] == file.name == f"fedbench-{packed.json['id'][:10]}.zip"
    assert "Add 2 runs of simclr" in packed.json["commands"][3]
    check = shlex.split(packed.json["commands"][1])
    assert check == ["fedbench", "verify", str(file), "--add-to", "leaderboards/results"]
    assert "Ada Lovelace (0000-0002-1825-0097)" in packed.json["text"]

    before = file.read_bytes()
    again = call("submit", "--all", *who, "--store", store.root, "--out", "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == before
    assert "git push" in again.out

    answer = call("verify", file, "--add-to", tmp_path / "board")
    assert answer.code == 0, answer.out
    assert "Ada Lovelace (0000-0002-1825-0097)" in answer.out
    assert [row.row_id for row in Store(tmp_path / "board").rows()] == ids
    assert len(list(tmp_path.glob("board/submissions/*.json"))) == 1
    claims = call("verify", "--claims", "--store", tmp_path / "board", "--json")
    assert (claims.code, claims.json["ok"], len(claims.json["rows"])) == (0, True, 2)
    assert call("verify", "--store", tmp_path / "board").code == 0


def test_a_refused_bundle_is_named_with_its_reason(
    call: Call, store: Store, ids: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    assert call("submit", ids[0], "--store", store.root, "--out", folder).code == 0
    curve = folder / "cells" / ids[0] / "curve.parquet"
    curve.write_bytes(curve.read_bytes()[:-1])
    answer = call("verify", folder, "--add-to", tmp_path / "board", "--rerun", 1)
    assert answer.code == 5
    assert str(curve.relative_to(folder)) in answer.out
    assert not (tmp_path / "board").exists()
    problem = call("verify", folder, "--json").json["problems"][0]
    assert (problem["run_id"], problem["check"]) == (ids[0], "files")


def test_reproductions_show_in_tables(call: Call, store: Store, tmp_path: Path) -> None:
    """Records that do not count are named with their reasons; an author needs no ORCID iD."""
    copy = Store(shutil.copytree(store.root, tmp_path / "copy"))
    row = copy.rows()[0]
    row_id = row.row_id
    record = copy.root / "reproductions" / row_id / "0.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"by": None}))
    again = row.model_dump(mode="json")
    named = {"row_id": row_id, "claimed": "", "by": {"name": "Ben"}, "row": again}
    record.with_name("1.json").write_text(json_with_checksum(named))
    answer = call("leaderboard", "--store", copy.root)
    assert answer.code == 0, answer.err
    assert row_id[:4] in answer.out
    assert "Ben" in answer.out
    shown = call("leaderboard", "--store", copy.root, "--json").json["reproductions"]
    assert [(row["run_id"], row["count"]) for row in shown] == [(row_id, 0)]
    assert "reproductions" not in call("leaderboard", "--store", store.root, "--json").json


def test_two_methods_of_one_table_are_proposed(call: Call, tmp_path: Path) -> None:
    rows = [("byol", 2), ("simsiam", 90), ("simclr", 10), ("spectral", 10)]
    for spec, clients in rows[:2]:
        Store(tmp_path).write_row(run_of(spec, data__num_clients=clients, linear_acc=0.5))
    alone = call("leaderboard", "--no-published", "--store", tmp_path).err
    assert "fedbench report" in alone
    for spec, clients in rows[2:]:
        Store(tmp_path).write_row(run_of(spec, data__num_clients=clients, linear_acc=0.5))
    proposed = shlex.split(call("leaderboard", "--store", tmp_path).err.splitlines()[-1])
    assert {*proposed[3:5]} == {"simclr", "spectral"}


def test_a_board_over_an_axis_has_the_rows_of_its_tables(call: Call, tmp_path: Path) -> None:
    """Two alphas, and a cell of other rounds beside them; no grid of participation was run."""
    cells: list[dict[str, Any]] = [
        {"data__alpha": 0.1},
        {"data__alpha": 1.0},
        {"federation__num_rounds": 3},
    ]
    for spec, given in itertools.product(("simclr", "byol"), cells):
        Store(tmp_path).write_row(run_of(spec, linear_acc=0.5, **given))
    words = ("leaderboard", "--store", tmp_path, "--over")
    found = call(*words, "alpha", "--json").json
    assert [each["axis"] for each in found["across"]] == ["alpha"]
    assert len(found["rows"]) == len(call(*words, "alpha", "--format", "csv").out.splitlines()) - 1
    assert {row["num_rounds"] for row in found["rows"]} == {RunConfig().federation.num_rounds}
    assert [row["rank"] for row in found["rows"]] == [1, 1] * 2
    ranking = fedbench.leaderboard(tmp_path, over="alpha")
    assert ranking.to_frame().run_ids.tolist() == [row["run_ids"] for row in found["rows"]]
    none = call(*words, "participation")
    assert (none.code, none.out) == (0, "")
    assert "--over alpha or fedbench sweep --grid participation" in none.err
    assert len(none.err.splitlines()) == 1
    with pytest.raises(fedbench.UnknownNameError):
        fedbench.leaderboard(tmp_path, over="beta")


@pytest.mark.slow
def test_nothing_contradicts_the_rows_of_this_project(call: Call) -> None:
    """Every run and every bundle in leaderboards/results, whoever sent it."""
    answer = call("verify", "--claims", "--store", RESULTS)
    assert answer.code == 0, answer.out


def test_two_runs_and_two_methods_are_compared(call: Call, store: Store, ids: list[str]) -> None:
    where = ("--store", store.root)
    runs = call("compare", ids[0][:8], ids[1][:8], *where, "--json").json
    assert runs["sentence"] in call("compare", *ids, *where).out
    assert call("compare", "simclr", "byol", *where).code == 2  # the store has no byol
    laptop = ("--preset", "laptop", "--dataset", "cifar10", "--store", RESULTS)
    methods = call("compare", "simclr", "byol", *laptop, "--json").json
    assert [each["seeds"] for each in methods["settings"]] == [[5, 5]] * 3
    answer = call("compare", "simclr", "byol", *laptop)
    assert answer.out.splitlines()[-1] == methods["sentence"]
    advice = call("leaderboard", "--methods", "byol,simclr", *laptop).err.splitlines()[-1]
    assert "fedbench compare simclr byol --dataset=cifar10 --preset=laptop --store" in advice
