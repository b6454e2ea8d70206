from __future__ import annotations

import pytest

from fedbench.bench.tuning.random_init import cautions, noise_limit, shrinkage_of
from fedbench.bench.tuning.scoring import Scoring

UNTRAINED = [
    {"objective": value, "projection_std_ratio": 0.8, "effective_rank": 40.0}
    for value in (0.10, 0.11, 0.09, 0.10, 0.10)
]


def test_noise_limit_is_the_end_of_the_prediction_interval() -> None:
    # mean 0.1, sd sqrt(0.0002 / 4), t(4, 0.975) = 2.776445, sqrt(1 + 1 / 5) = 1.095445
    values = [figures["objective"] for figures in UNTRAINED]
    assert noise_limit(values) == pytest.approx(0.1 + 2.776445 * 0.00707107 * 1.095445, abs=1e-6)
    assert noise_limit(values[:2]) is None


@pytest.mark.parametrize(
    ("objective", "spread", "expected"),
    [
        (0.1216, 0.7, []),
        (0.1214, 0.7, ["no trial left the noise"]),
        (0.1216, 0.39, ["spread of projections 0.39, 0.8 before training"]),
        (-0.003, 0.02, ["best objective is -0.0030, 5 encoders", "shrank"]),
    ],
)
def test_cautions(objective: float, spread: float, expected: list[str]) -> None:
    figures = {"projection_std_ratio": spread, "effective_rank": 12.0}
    best = {"number": 3, "objective": objective, "spread": figures}
    found = cautions(best, UNTRAINED, Scoring())
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
    assert bool(shrinkage_of(best, UNTRAINED)) == (spread < 0.4)


def test_a_rank_that_is_gone_is_shrinkage_too() -> None:
    figures = {"projection_std_ratio": 0.9, "effective_rank": 9.9}
    text = shrinkage_of({"spread": figures}, UNTRAINED)
    assert text.startswith("rank of features 9.9, 40 before training")
    assert not shrinkage_of({"spread": {**figures, "effective_rank": 10.1}}, UNTRAINED)


def test_too_few_encoders_at_random_init_are_a_caution() -> None:
    lacking: tuple[list[dict[str, float]], ...] = ([], UNTRAINED[:2], [{}])
    for figures in lacking:
        (text,) = cautions({"objective": 1.0, "spread": {}}, figures, Scoring())
        measured = sum("objective" in each for each in figures)
        assert f"only {measured} of 5 " in text


def test_an_objective_that_rises_by_shrinking_alone_is_a_caution() -> None:
    figures = [{"objective": -0.3, "sep": value} for value in (0.10, 0.11, 0.09, 0.10, 0.10)]
    best = {"objective": -0.05, "spread": {"sep": 0.1214}}  # the limit is 0.1215, as above
    (text,) = cautions(best, figures, Scoring())
    assert all(figure in text for figure in ("SEP 0.121", "0.100", "0.122"))
    assert not cautions({**best, "spread": {"sep": 0.1216}}, figures, Scoring())
