"""The analysis of long training finds what made-up runs hold, and its tests are SciPy's."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

STUDIES = Path(__file__).resolve().parent.parent / "docs" / "studies"
EFFECT = {"orchestra": 45.0, "simclr": 50.0, "byol": 45.2, "spectral": 40.0}
CROPS = {"orchestra": "orchestra-o", "byol": "byol-o"}
RATES = {"orchestra": 0.003, "simclr": 0.003, "byol": 0.01, "spectral": 0.003}


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a study's module."""
    monkeypatch.syspath_prepend(str(STUDIES))
    return importlib.import_module


def _write(store: Path, name: str, method: str, lr: float, seed: int, **row: Any) -> None:
    config = {
        "data": {"num_clients": 100},
        "client": {"local_epochs": 4, "lr": lr},
        "federation": {"participation": 0.1},
        "method": {"augmentation": CROPS.get(method, "simclr-o"), "representations": "centroids"},
    }
    base = {"row_id": name, "method": method, "backbone": "resnet8", "num_clients": 100}
    base |= {"seed": seed, "status": "ok", "alpha": 0.1, "num_rounds": 60, "grid": "long-main"}
    base |= {"preset": "cross-device-cpu", "config_json": json.dumps(config), "final_loss": 1.0}
    base |= {"linear_acc": math.nan, "untrained_linear_acc": 0.31, **row}
    (store / "rows").mkdir(parents=True, exist_ok=True)
    pd.DataFrame([base]).to_parquet(store / "rows" / f"{name}.parquet")


def _curve(store: Path, name: str, slope: float, clusters: float, rotation: float) -> None:
    rounds = range(61)
    evaluated = {3, 7, 15, 30, 60}
    table = pd.DataFrame({"round_index": rounds})
    table["metrics.linear_acc"] = [
        0.3 + slope / 100 * math.log2(r) if r in evaluated else math.nan for r in rounds
    ]
    table["parts.clusters"], table["parts.rotation"] = clusters, rotation
    (store / "cells" / name).mkdir(parents=True)
    table.to_parquet(store / "cells" / name / "curve.parquet")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with five seeds of four methods; orchestra climbs fastest."""
    rng = np.random.default_rng(0)
    for method, mean in EFFECT.items():
        for seed in range(5):
            name = f"{method}-{seed}"
            accuracy = (mean + rng.normal()) / 100
            _write(tmp_path, name, method, RATES[method], seed, linear_acc=accuracy)
            slope = (3.0 if method == "orchestra" else 1.0) + seed / 10
            _curve(tmp_path, name, slope, 3.0, 1.3)
    return tmp_path


def test_the_gate_wants_both_terms_a_tenth_below_chance(study: Any, store: Path) -> None:
    module = study("long_training")
    terms = module.gate(module.read(store), store)
    assert len(terms) == 3
    assert not module.passed(terms)[0.003]  # rotations at 1.3 of ln 4 = 1.386
    terms["parts.rotation"] = 1.2
    assert module.passed(terms)[0.003]


def test_the_recipe_decides_which_runs_are_compared(study: Any, store: Path) -> None:
    module = study("long_training")
    rows = module.read(store)
    runs = module.recipe(rows, {}, published=True)
    assert runs.groupby("variant").size().to_dict() == {m: 5 for m in EFFECT if m != "spectral"}
    alike = module.recipe(rows, {"spectral": 0.003, "simclr": 0.03}, published=False)
    assert set(alike["variant"]) == {"spectral"}


def test_a_gap_of_five_points_is_found_and_its_slope_has_its_sign(study: Any, store: Path) -> None:
    module = study("long_training")
    groups = module.by_variant(module.recipe(module.read(store), RATES, published=False))
    table = study("compare").compare(groups, "orchestra")
    assert table["verdict"].to_dict() == {
        "byol": "not settled",
        "simclr": "contradicted",
        "spectral": "supported",
    }
    slopes = module.slopes(module.recipe(module.read(store), RATES, published=False), store)
    # A round is a doubling of passes at 1, 2, 4, ...; orchestra's first round trains nothing, so
    # its index is one ahead, which changes the spacing of its points but not the sign.
    assert (slopes["slope"] > 1).all()


def test_a_rate_is_chosen_by_the_last_loss_of_two_seeds(study: Any, tmp_path: Path) -> None:
    for rate, losses in {0.003: (3.0, 3.2), 0.01: (2.0, 4.0), 0.03: (1.0,)}.items():
        for seed, loss in zip((100, 101), losses, strict=False):
            settings = {"final_loss": loss, "num_rounds": 12}
            _write(tmp_path, f"{rate}-{seed}", "simclr", rate, seed, **settings)
    module = study("long_training")
    assert module.chosen(module.read(tmp_path)).to_dict() == {"simclr": 0.01}  # 3.0 against 3.1


def test_pooled_and_welch_tests_are_those_of_scipy(study: Any) -> None:
    rng = np.random.default_rng(1)
    compare = study("compare").compare
    a, b = rng.normal(0, 1, 5), rng.normal(1, 1, 5)
    row = compare({"a": a, "b": b}, "a").loc["b"]
    expected = stats.ttest_ind(a, b)
    assert row["test"] == "pooled"
    assert row["p"] == pytest.approx(expected.pvalue)
    assert (row["low"], row["high"]) == pytest.approx(expected.confidence_interval())
    a, b = rng.normal(0, 1, 15), rng.normal(0, 9, 15)
    row = compare({"a": a, "b": b}, "a").loc["b"]
    assert row["test"] == "Welch"
    assert row["p"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_the_detectable_difference_is_found_with_probability_four_fifths(study: Any) -> None:
    error = math.sqrt(2 / 5)  # five values each of standard deviation 1
    difference = study("compare").detectable(error, 8.0)
    rng = np.random.default_rng(2)
    drawn = rng.normal(size=(2, 20_000, 5))
    drawn[0] += difference
    found = stats.ttest_ind(drawn[0], drawn[1], axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)  # standard error 0.003


def test_holm_multiplies_the_smallest_by_their_number(study: Any) -> None:
    adjusted = study("compare").holm(pd.Series([0.04, 0.01, 0.03]))
    assert adjusted.tolist() == pytest.approx([0.06, 0.03, 0.06])
