"""Equal numbers of right answers tie, on whatever seeds they are and whatever bits means have.

An accuracy is right answers / images, rounded to a double; means of equal sums then differ in their
last bit. The expected ranks and tests come from whole numbers, in which there is no rounding.
"""

import random
from collections.abc import Mapping, Sequence

import pytest
from scipy import stats

from fedbench.bench.config import RunConfig
from fedbench.bench.results.leaderboard.across_cells import CellComparison
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.store.row import Row
from tests.bench.results.conftest import build_row, rank, seeds_of
from tests.specs import extended

IMAGES = 298
METHODS = ("aligned", "byol", "lejepa", "simclr", "simsiam", "spectral")

Answers = tuple[int, ...]
"""Right answers on the test images, one number a seed."""


def accuracies(answers: Answers, images: int = IMAGES) -> list[float]:
    return [count / images for count in answers]


def rows_of(answers: Mapping[str, Answers], images: int = IMAGES, alpha: float = 0.1) -> list[Row]:
    return seeds_of({spec: accuracies(counts, images) for spec, counts in answers.items()}, alpha)


def ranks_on(board: Leaderboard) -> dict[str, int | None]:
    return {entry.method: entry.rank for entry in board.entries}


def expected_ranks(answers: Mapping[str, Answers]) -> dict[str, int]:
    """1 + the number of methods with more right answers."""
    totals = {spec: sum(counts) for spec, counts in answers.items()}
    return {spec: 1 + sum(t > mine for t in totals.values()) for spec, mine in totals.items()}


def equal_sums(rng: random.Random, images: int, count: int, seeds: int = 3) -> list[Answers]:
    """Draw numbers of right answers per seed, all of the same sum."""
    centre = rng.randint(images // 3, images - 20)
    found = []
    for _ in range(count):
        rest = [rng.randint(-6, 6) for _ in range(seeds - 1)]
        numbers = [centre + r for r in (*rest, -sum(rest))]
        rng.shuffle(numbers)
        found.append(tuple(numbers))
    return found


@pytest.mark.parametrize(
    "images", extended([IMAGES, 1_797, 10_000, 26_032], {1_797, 10_000}.__contains__)
)
def test_ranks_are_those_of_the_sums_whatever_the_order_of_seeds(images: int) -> None:
    """One more right answer in all is one rank: at 26,032 images and 3 seeds a mean of 1.3e-5."""
    rng = random.Random(0)
    for _ in range(5):
        first, second, third, fourth = equal_sums(rng, images, 4)
        more = (fourth[0] + 1, *fourth[1:])
        less = (*first[:2], first[2] - 1)
        answers = dict(zip(METHODS, (first, more, second, less, third, fourth), strict=True))
        assert ranks_on(rank(rows_of(answers, images))) == expected_ranks(answers)


def test_ranks_of_a_metric_of_which_less_is_better() -> None:
    """`sigreg` of three seeds in thirds: 0.1 + 0.2 + 0.3 and three times 0.2 are equal sums."""
    answers = {"byol": (0.1, 0.2, 0.3), "simclr": (0.2, 0.2, 0.2), "simsiam": (0.3, 0.1, 0.2)}
    rows = [
        build_row(RunConfig(spec=spec, seed=seed), further={"sigreg": value})
        for spec, values in answers.items()
        for seed, value in enumerate(values)
    ]
    assert set(ranks_on(rank(rows, metric="sigreg")).values()) == {1}


def across(cells: Sequence[Mapping[str, Answers]]) -> CellComparison:
    rows = [row for i, answers in enumerate(cells) for row in rows_of(answers, alpha=0.1 * (i + 1))]
    (comparison,) = rank(rows).across()
    return comparison


def test_mean_ranks_and_friedmans_test_over_cells_are_those_of_whole_numbers() -> None:
    """`aligned` is always ahead by a right answer or more, the other three tie or do not."""
    rng = random.Random(6)
    for _ in range(3):
        cells = []
        for _ in range(8):
            numbers = equal_sums(rng, IMAGES, 4)
            ahead = (2, rng.choice((0, 1)), rng.choice((0, 1)), 0)
            cells.append(
                {
                    spec: (*counts[:2], counts[2] + more)
                    for spec, counts, more in zip(METHODS[:4], numbers, ahead, strict=True)
                }
            )
        totals = [[sum(cell[spec]) for spec in METHODS[:4]] for cell in cells]
        places = [stats.rankdata([-total for total in row]) for row in totals]
        expected = dict(zip(METHODS, (sum(p) / 8 for p in zip(*places, strict=True)), strict=False))
        comparison = across(cells)
        assert {e.method: e.mean_rank for e in comparison.entries} == pytest.approx(expected)
        p = stats.friedmanchisquare(*zip(*totals, strict=True)).pvalue
        assert comparison.friedman_p == pytest.approx(p, rel=1e-9)
