"""Robust means against slow loops written from the papers, one number or one vector at a time."""

from fractions import Fraction
from itertools import islice, permutations

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn.robust import coordinate_median, krum, trimmed_mean
from tests.specs import gaussian

_SIZE = 70_001  # more numbers than one block has
SOME = (0, 1, 2, 65_535, 65_536, _SIZE - 1)


def uploads(count: int) -> list[Tensor]:
    """Return uploads of which one is far away; rounded, so that values coincide."""
    rows = gaussian(count, _SIZE, name=f"uploads of {count}")
    rows[-1] = 1e4 * rows[-1]
    return list((4 * rows).round() / 4)


@pytest.mark.parametrize(("count", "cut"), [(1, 0), (5, 0), (5, 1), (8, 3)])
def test_the_trimmed_mean_is_that_of_a_loop(count: int, cut: int) -> None:
    rows, weights = uploads(count), [float(1 + k % 3) for k in range(count)]
    for given in ([1.0] * count, weights):
        result = trimmed_mean(rows, cut, given)
        for i in SOME:
            pairs = sorted(((float(row[i]), k) for k, row in enumerate(rows)))
            kept = pairs[cut : count - cut]
            expected = sum(v * given[k] for v, k in kept) / sum(given[k] for _, k in kept)
            assert float(result[i]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_median_is_that_of_a_loop(count: int) -> None:
    """A weight is a number of copies of a row, of all of which it is the plain median."""
    rows, copies = uploads(count), [1 + k % 3 for k in range(count)]
    for given in ([1] * count, copies):
        result = coordinate_median(rows, [float(w) for w in given])
        for i in SOME:
            values = sorted(
                float(row[i]) for row, w in zip(rows, given, strict=True) for _ in range(w)
            )
            middle = len(values) // 2
            expected = (values[(len(values) - 1) // 2] + values[middle]) / 2
            assert float(result[i]) == expected


@pytest.mark.parametrize(("count", "f"), [(3, 0), (7, 1), (7, 2), (12, 3)])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_krum_chooses_as_a_loop_does(count: int, f: int, offset: float) -> None:
    """Far from zero too, where squares of the models have no digits left for their distances."""
    rows = [row[:200] / 100 + offset for row in uploads(count)]
    scores = []
    for i, one in enumerate(rows):
        distances = sorted(
            sum((float(a) - float(b)) ** 2 for a, b in zip(one, other, strict=True))
            for j, other in enumerate(rows)
            if j != i
        )
        scores.append(sum(distances[: count - f - 2]))
    assert krum(rows, f) == scores.index(min(scores))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1, 1e3, 1e6, 1e10, 1e20, 1e38, "largest"])
def test_no_attacker_moves_krums_choice_from_the_exact_one(
    dtype: torch.dtype, far: float | str
) -> None:
    """Two of seven, one far away and one anywhere: the same client in whatever order they come.

    Scores are fractions, in which nothing is lost.
    """
    honest = gaussian(5, 50, name=f"honest beside {far}", dtype=torch.float64).to(dtype)
    reach = torch.finfo(dtype).max if far == "largest" else float(far)
    away = torch.full((50,), reach, dtype=dtype)
    for other in (honest.mean(dim=0) + 3, away, -away, away * (1 - 1e-3), away * 1e-5):
        rows = [*honest, away, other]
        exact = [[Fraction(value) for value in row.tolist()] for row in rows]
        scores = []
        for one in exact:
            apart = (sum((a - b) ** 2 for a, b in zip(one, x, strict=True)) for x in exact)
            scores.append(sum(sorted(apart)[1:4]))  # n - f - 2 = 3, behind the distance to itself
        best = {k for k, score in enumerate(scores) if score == min(scores)}  # equal rows tie
        for order in islice(permutations(range(7)), 0, None, 97):
            assert order[krum([rows[k] for k in order], 2)] in best


def test_of_equal_scores_krum_takes_the_first() -> None:
    """Of 0, 1 and 0, 1 the nearest other of each is itself, at distance 0."""
    rows = [torch.tensor([value]) for value in (9.0, 1.0, 0.0, 1.0, 0.0)]
    assert krum(rows, 2) == 1
