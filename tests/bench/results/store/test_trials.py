"""Trials, studies and curves in the store."""

import math
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.results.leaderboard.studies import spent, studies
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError


def test_trials_come_back_as_they_went_in(store: Store) -> None:
    record = {
        "status": "ok",
        "seeds": [0, 1],
        "params": {"client.lr": 0.003, "method.temperature": 0.5},
        "objective": 0.8125,
        "watched": {"knn_acc": 0.25},
        "seconds": 1.5,
        "objectives": [0.8, 0.825],
    }
    for number in (10, 9, 0):
        assert store.write_trial("simclr-ab12", number, record)
    trials = store.trials("simclr-ab12")
    assert [trial["number"] for trial in trials] == [0, 9, 10]
    assert record.items() <= trials[0].items()
    assert trials[0]["params_json"] == '{"client.lr":0.003,"method.temperature":0.5}'
    assert trials[0]["error"] is None
    assert not store.write_trial("simclr-ab12", 0, record | {"objective": 0.1})
    store.write_trial("simclr-ab12", 3, {"status": "error", "objective": None, "error": "boom"})
    assert store.write_trial("simclr-ab12", 3, record)
    assert store.trials("simclr-ab12")[1]["objective"] == 0.8125
    for name, value in (("objective", "high"), ("params", {"x": math.inf}), ("more", object())):
        with pytest.raises(StoreError, match="trial 4 of 'simclr-ab12'"):
            store.write_trial("simclr-ab12", 4, record | {name: value})


def test_studies(store: Store) -> None:
    store.write_study("b", {"spec": "simclr+uv", "name": "Größe", "trials": 12})
    store.write_study("b", {"spec": "simclr+uv", "trials": 13})
    store.write_trial("a", 0, {"status": "ok"})
    assert store.studies() == ["a", "b"]
    assert store.study("b") == {"spec": "simclr+uv", "trials": 13}
    with pytest.raises(StoreError):
        store.write_study("b", {"x": float("inf")})
    file = store.root / "trials" / "b" / "study.json"
    file.write_text(file.read_text().replace("13", "12"))
    with pytest.raises(StoreError, match=r"study\.json"):
        store.study("b")
    file.write_text("{")
    (store.root / "trials" / "a" / "0.parquet").write_bytes(b"")
    (store.root / "trials" / "a" / "study.json").mkdir()
    for study_id in ("a", "b"):
        with pytest.raises(StoreError, match=r"study\.json"):
            store.study(study_id)
    assert len(store.problems()) == 3


@pytest.mark.parametrize(
    "entry",
    [
        {"spec": 5},
        {"trials": "x"},
        {"objective": []},
        {"space": [1]},
        {"cautions": 5},
        {"untrained": [0.1]},
        {"confirmation": "x"},
    ],
)
def test_a_study_of_other_types_is_damaged(store: Store, entry: dict[str, Any]) -> None:
    store.write_study("fine", {"spec": "simclr"})
    store.write_study("other", {"spec": "simclr", "finished_at": "2026-11-01", **entry})
    assert [view.study_id for view in studies(store)] == ["fine"]
    (problem,) = studies(store).problems
    assert all(name in problem for name in ("study.json", *entry))
    assert spent(store, ["fine", "other"]) == {}


@pytest.mark.parametrize(
    "point", [{"loss": 1.0}, {"round_index": "0"}, {"round_index": 0, "loss": "high"}]
)
def test_a_curve_of_other_types_is_damaged(store: Store, point: dict[str, Any]) -> None:
    store.write_curve("cell", [point])
    with pytest.raises(StoreError, match=r"curve\.parquet"):
        store.curve("cell")


def test_curves(store: Store) -> None:
    points: list[dict[str, Any]] = [
        {"round_index": 0, "loss": 5},
        {"round_index": 1, "loss": 4.5, "knn_acc": 0.3},
        {"round_index": 2, "loss": float("inf")},
    ]
    store.write_curve("cell", points)
    assert store.curve("cell") == [
        {"round_index": 0, "loss": 5.0, "knn_acc": None},
        {"round_index": 1, "loss": 4.5, "knn_acc": 0.3},
        {"round_index": 2, "loss": None, "knn_acc": None},
    ]
    store.write_curve("cell", [])
    assert store.curve("cell") == []
    with pytest.raises(StoreError, match="cell"):
        store.write_curve("cell", [{"loss": 1.0}, {"loss": "high"}])
    (store.cell_dir("cell") / "curve.parquet").write_bytes(b"PAR1")
    (store.cell_dir("other") / "curve.parquet").mkdir(parents=True)
    for name in ("cell", "other"):
        with pytest.raises(StoreError, match=r"curve\.parquet"):
            store.curve(name)


def test_a_study_costs_all_seeds_of_its_trials(tmp_path: Path) -> None:
    store = Store(tmp_path)
    meta = {"trials": 6, "seeds_per_trial": 2, "dataset": "digits", "data": "r", "spec": "simclr"}
    store.write_study("s", {**meta, "finished_at": "2026-11-01T00:00:00+00:00"})
    store.write_study("running", meta)
    assert spent(store, ["s", "running", "gone"]) == {"s": (12, "digits", "r")}
