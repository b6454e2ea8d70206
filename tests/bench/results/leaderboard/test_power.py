"""Standings of lines: best only where the seeds can show that others are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from fedbench.bench.config import RunConfig
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.formats import Ranking, group_table
from fedbench.bench.results.store.row import Row
from fedbench.bench.terminal import show_results
from tests.bench.results.conftest import rank

MakeRow = Callable[..., Row]
BASE = np.array([0.50, 0.52, 0.47, 0.51, 0.49])
FAR = BASE - [0.10, 0.11, 0.09, 0.12, 0.10]
CLOSE = BASE - [0.01, -0.02, 0.02, -0.01, 0.02]


def standings_of(
    make_row: MakeRow, values: Mapping[str, ArrayLike]
) -> tuple[dict[str, str], Group]:
    rows = [
        make_row(RunConfig(spec=spec, seed=seed), linear_acc=value)
        for spec, of_spec in values.items()
        for seed, value in enumerate(np.asarray(of_spec).tolist())
    ]
    (group,) = rank(rows).groups
    return dict(zip(group.frame.method, group.frame.standing, strict=True)), group


def test_best_is_marked_where_some_line_is_told_from_the_first(make_row: MakeRow) -> None:
    values: dict[str, ArrayLike] = {"a": BASE, "b": CLOSE, "c": FAR, "d": [0.2, 0.2]}
    standings, group = standings_of(make_row, values)
    assert standings == {"a": "first", "b": "alike", "c": "worse", "d": "untested"}
    _, close, far, _ = group.frame.detectable
    assert close == pytest.approx(far)  # one variance, equal seeds
    assert f"{close * 100:.1f} points" in group.note


def test_no_best_is_marked_where_nothing_is_told_apart(make_row: MakeRow) -> None:
    noisy = [[0.5, 0.6, 0.4], [0.55, 0.4, 0.45], [0.3, 0.5, 0.35]]
    standings, _ = standings_of(make_row, dict(zip("abc", noisy, strict=True)))
    assert set(standings.values()) == {"unclear"}
    standings, group = standings_of(make_row, {"a": [0.5, 0.6], "b": [0.1, 0.1]})
    assert set(standings.values()) == {"untested"}
    assert group.frame.detectable.isna().all()


def test_a_difference_that_only_the_adjustment_hides_is_unclear(make_row: MakeRow) -> None:
    hidden = BASE - 0.03
    others: dict[str, ArrayLike] = {f"close{i}": BASE - i * 1e-5 for i in range(1, 5)}
    values = {"a": BASE, **others, "hidden": hidden, "below": BASE - 0.031, "far": BASE - 0.2}
    # All variances are equal: a pooled sd of one sample, with 4 degrees from each of 8 lines.
    error = np.std(BASE, ddof=1) * np.sqrt(2 / 5)
    p = 2 * stats.t.sf(0.03 / error, 32)
    assert 0.05 / 7 < p < 0.05
    standings, _ = standings_of(make_row, values)
    assert (standings["hidden"], standings["below"]) == ("unclear", "unclear")
    assert {standings[name] for name in others} == {"alike"}
    assert standings["far"] == "worse"


def test_tables_have_the_marks_of_the_standings(
    make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test tells two noisy lines apart, so none is marked as best and none is in bold."""
    rows = [
        make_row(RunConfig(spec=name, seed=seed), linear_acc=value)
        for name, values in zip("ab", [(0.5, 0.3, 0.6), (0.3, 0.5, 0.4)], strict=True)
        for seed, value in enumerate(values)
    ]
    board = rank(rows)
    (group,) = board.groups
    table = group_table(group)
    assert [row[table.header.index("best")] for row in table.rows] == ["?", "?"]
    assert (list(table.best), [entry.best for entry in group.entries]) == ([False] * 2, [True] * 2)
    shown: list[list[bool]] = []
    monkeypatch.setattr(show_results, "show_table", lambda *_, bold, **__: shown.append([*bold]))
    show_results.show_leaderboard(Ranking(board, ()), "table")
    assert shown == [[False, False]]
