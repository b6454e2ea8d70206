"""The study `start` chooses, compares and decides as it announces."""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.tuning.grid import load_grid, plan
from fedbench.leaderboards.studies.start import start as study

from .conftest import STUDIES


def runs(**changed: Any) -> pd.DataFrame:
    """Return judging runs that differ from 40 % by `seed - 2` tenths, and by what is given."""
    cells = itertools.product(("simclr",), ("random", "near"), ("all", "lora"), (0.1, 100.0))
    lines = []
    for method, start, part, alpha in cells:
        if (start, part) == ("random", "lora"):
            continue
        for seed in range(5):
            line = {"method": method, "start": start, "part": part, "alpha": alpha, "seed": seed}
            after = 40.0 + (seed - 2) / 10 + changed.get(f"{start} {part} {alpha:g}", 0.0)
            line |= {"before": 40.0, "after": after, "change": after - 40.0, "status": "ok"}
            lines.append(line)
    return pd.DataFrame(lines)


def test_settings_are_equal_for_all_methods_and_are_those_announced() -> None:
    preset = str(STUDIES / "start" / "start-preset.yaml")
    configs = [resolve(name, preset=preset, environ={}).config for name in study.METHODS]
    passes = {
        round(c.federation.participation * c.data.num_clients)
        * 2_500
        * c.client.local_epochs
        * c.federation.num_rounds
        for c in configs
    }
    assert passes == {50_000}
    assert {c.method["augmentation"] for c in configs} == {"simclr-m"}
    assert {c.client.batch_size for c in configs} == {32}
    rates = plan(load_grid(STUDIES / "start" / "start-rates.yaml"), preset=preset, environ={})
    assert {cell.config.client.lr for cell in rates} == set(study.RATES)
    assert {cell.config.seed for cell in rates} == {study.CHOOSING}
    judging = plan(load_grid(STUDIES / "start" / "start-runs.yaml"), preset=preset, environ={})
    assert {cell.config.data.alpha for cell in judging} == set(study.ALPHAS)
    assert {cell.config.seed for cell in judging} == set(study.JUDGING)


def test_the_rate_has_the_highest_score_of_those_that_did_not_diverge() -> None:
    line = {"method": "byol", "start": "far", "part": "all", "seed": 100}
    scores = dict(zip(study.RATES, (0.1, 0.3, 0.2, math.nan), strict=True))
    table = pd.DataFrame([{**line, "rate": r, "objective": v} for r, v in scores.items()])
    table["status"] = np.where(table["objective"].isna(), "diverged", "ok")
    assert study.chosen(table).to_dict() == {("byol", "far", "all"): 0.01}
    assert study.chosen(table[:3]).empty  # a rate has not run


def test_a_change_from_the_start_is_tested_with_its_own_spread() -> None:
    table = study.training_on(runs(**{"near all 100": 1.0, "near lora 0.1": -1.0}))
    verdicts = table["verdict"].to_dict()
    assert verdicts.pop(("simclr", "near", "all", 100.0)) == "helps"
    assert verdicts.pop(("simclr", "near", "lora", 0.1)) == "harms"
    assert set(verdicts.values()) == {"not settled"}
    changes = [0.8, 0.9, 1.0, 1.1, 1.2]
    p = table.loc[("simclr", "near", "all", 100.0), "p"]
    assert p == pytest.approx(4 * stats.ttest_1samp(changes, 0.0).pvalue)  # Holm over four cells


def test_the_loss_from_skew_is_compared_between_starts() -> None:
    # 5 points are lost from random init and 1 from the pretrained start.
    made = runs(**{"random all 100": 5.0, "near all 100": 1.0})
    line = study.skew(made).loc[("simclr", "near")]
    assert line["difference"] == pytest.approx(1.0 - 5.0)
    assert line["verdict"] == "supported"
    # Each mean of five has variance s^2 / 5 with s^2 = 0.025, and four of them are summed.
    half = stats.t.ppf(0.975, 16) * math.sqrt(4 * 0.025 / 5)
    assert line["high"] - line["difference"] == pytest.approx(half)


def test_low_rank_updates_are_compared_with_the_training_of_everything() -> None:
    table = study.parts(runs(**{"near lora 0.1": 2.0}))
    assert table["verdict"].to_dict() == {
        ("simclr", "near", 0.1): "better",
        ("simclr", "near", 100.0): "not settled",
    }


def test_harm_is_noticed_by_a_score_that_is_lower() -> None:
    made = runs()
    for name in study.SCORES:
        made[name] = made[f"untrained_{name}"] = 0.0
    made["objective"] = made["change"]  # the two seeds below 40 % are harmed, in each cell
    made["sep"] = -made["change"]
    table = study.noticed(made)
    assert table["cells"].eq(4).all()
    assert table["chance"].to_dict() == {
        "objective": 1.0,
        "sep": 0.0,
        "effective_rank": 0.5,
        "participation_ratio": 0.5,
    }
    assert table.loc["objective", ["fell if harmed", "fell if not"]].to_list() == [1.0, 0.0]
