"""Commands on stores: report, studies, merge, verify, reproduce."""

import re
from pathlib import Path
from typing import Any

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from tests.specs import flip

from .conftest import Call


def put(store: Path, row: Row) -> None:
    """Overwrite a stored row, which no command does."""
    (store / "rows" / f"{row.row_id}.parquet").write_bytes(encode([row], Row))


def test_report(call: Call, copy: Path, tmp_path: Path) -> None:
    file = tmp_path / "out put" / "page.html"
    answer = call("report", file, "--store", copy)
    assert answer.code == 0, answer.err
    assert str(file) in answer.out
    assert file.read_text().startswith("<!doctype html>")
    assert call("report", file, "--store", copy, "--json").json["num_rows"] == 1
    assert call("report", tmp_path / "page.pdf", "--store", copy).code == 2


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
    store.write_study("simclr-1", {"spec": "simclr", "preset": "demo", "sampler": "tpe"})
    place = ("--store", store.root)
    listed = call("studies", *place)
    assert listed.code == 0
    assert "simclr-1 simclr demo 6 0.5 0.97 [0.73, 1.00]" in " ".join(listed.out.split())
    one = call("studies", "simclr-1", *place)
    # x = 0…5, y = 0, 2, 2, 4, 4, 6: r = 19 / sqrt(17.5 * 22) = 0.968; ranks with ties: 0.971.
    assert "against knn_acc: Pearson 0.97 [0.73, 1.00], Spearman 0.97 [0.63, 1.00]" in one.out
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
    assert other.code == 4
    assert f"linear_acc  {(row.linear_acc or 0) / 2}  {row.linear_acc}" in other.out
    assert Store(keep).rows()[0].linear_acc == row.linear_acc
    assert len(Store(copy).rows()) == 1
