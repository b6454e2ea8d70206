"""Equal numbers of right answers tie, on whatever seeds they are and whatever bits means have.

An accuracy is right answers / images, rounded to a double; means of equal sums then differ in their
last bit. The expected ranks and tests come from whole numbers, in which there is no rounding.
"""

import random

import pytest
from scipy import stats

from fedbench.bench.config import RunConfig
from tests.bench.results.conftest import build_row, rank, seeds_of

IMAGES = 298
METHODS = ("aligned", "byol", "lejepa", "simclr")


def test_ranks_of_a_metric_of_which_less_is_better() -> None:
    """`sigreg` of three seeds in thirds: 0.1 + 0.2 + 0.3 and three times 0.2 are equal sums."""
    answers = {"byol": (0.1, 0.2, 0.3), "simclr": (0.2, 0.2, 0.2), "simsiam": (0.3, 0.1, 0.2)}
    rows = [
        build_row(RunConfig(spec=spec, seed=seed), further={"sigreg": value})
        for spec, values in answers.items()
        for seed, value in enumerate(values)
    ]
    assert {entry.rank for entry in rank(rows, metric="sigreg").entries} == {1}


def test_mean_ranks_and_friedmans_test_over_cells_are_those_of_whole_numbers() -> None:
    """`aligned` is always ahead by a right answer or more, the other three tie or do not."""
    rng = random.Random(6)
    for _ in range(3):
        rows, totals = [], []
        for cell in range(8):
            centre, counts = rng.randint(IMAGES // 3, IMAGES - 20), {}
            ahead = (2, rng.choice((0, 1)), rng.choice((0, 1)), 0)
            for spec, more in zip(METHODS, ahead, strict=True):
                a, b = rng.randint(-6, 6), rng.randint(-6, 6)
                counts[spec] = [centre + a, centre + b, centre - a - b + more]
            totals.append([sum(counts[spec]) for spec in METHODS])
            shares = {spec: [n / IMAGES for n in counts[spec]] for spec in METHODS}
            rows += seeds_of(shares, 0.1 * (cell + 1))
        (comparison,) = rank(rows).across
        places = [stats.rankdata([-total for total in row]) for row in totals]
        expected = dict(zip(METHODS, (sum(p) / 8 for p in zip(*places, strict=True)), strict=True))
        assert {e.method: e.mean_rank for e in comparison.entries} == pytest.approx(expected)
        p = stats.friedmanchisquare(*zip(*totals, strict=True)).pvalue
        assert comparison.friedman_p == pytest.approx(p, rel=1e-9)
