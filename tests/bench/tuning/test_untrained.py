from __future__ import annotations

import pytest

from fedbench.bench.tuning.untrained import cautions, is_contracted, noise_limit

UNTRAINED = [
    {"objective": value, "projection_std_ratio": 0.8, "effective_rank": 40.0}
    for value in (0.10, 0.11, 0.09, 0.10, 0.10)
]


def test_noise_limit_is_the_end_of_the_prediction_interval() -> None:
    # mean 0.1, sd sqrt(0.0002 / 4), t(4, 0.975) = 2.776445, sqrt(1 + 1 / 5) = 1.095445
    values = [each["objective"] for each in UNTRAINED]
    assert noise_limit(values) == pytest.approx(0.1 + 2.776445 * 0.00707107 * 1.095445, abs=1e-6)
    assert noise_limit(values[:2]) is None


@pytest.mark.parametrize(
    ("objective", "spread", "expected"),
    [
        (0.1216, 0.7, []),
        (0.1214, 0.7, ["no trial left the noise"]),
        (0.1216, 0.39, ["have contracted: spread 0.390, 0.800 before"]),
        (-0.003, 0.02, ["best objective is -0.0030, 5 encoders", "contracted"]),
    ],
)
def test_cautions(objective: float, spread: float, expected: list[str]) -> None:
    figures = {"projection_std_ratio": spread, "effective_rank": 12.0}
    best = {"number": 3, "objective": objective, "spread": figures}
    found = cautions(best, UNTRAINED)
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
    assert is_contracted(best, UNTRAINED) == (spread < 0.4)


def test_without_figures_nothing_is_said() -> None:
    assert cautions({"objective": 0.0}, []) == ()
    assert cautions({"objective": 0.0, "spread": {"projection_std_ratio": 0.1}}, [{}]) == ()
