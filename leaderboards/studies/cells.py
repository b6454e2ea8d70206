"""Find the rows of the planned cells of a study by their ids; compare them, where it is fair."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.method import registry
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.chance import NO_MARKS, Marks
from fedbench.bench.results.leaderboard.statistics import (
    MIN_FOR_INTERVAL,
    mean,
    negligible,
    sample_std,
    t_interval,
)
from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import Cell, Grid, plan

PRESET = "laptop-2026-11"
STORE = Path(__file__).resolve().parents[1] / "results"


def planned(grid: Grid, **settings: Any) -> list[Cell]:
    """Return the cells of a grid under `laptop` as it was in 2026-11."""
    return plan(grid, preset=PRESET, environ={}, **settings)


def ran(
    rows: Sequence[Row], grid: Grid, planned: Callable[..., list[Cell]] = planned, **settings: Any
) -> dict[tuple[Any, ...], Row]:
    """Return the rows of a grid's cells that have run.

    Args:
        rows: rows of a store, all on one data set.
        grid: the grid.
        planned: plans the cells.
        **settings: those of `plan`: methods, seeds, set, tuned.

    Returns:
        (method, value of each axis in the grid's order, seed) -> row.
    """
    by_id = {row.row_id: row for row in rows}
    found, cells = {}, planned(grid, **settings)
    for revision in {row.dataset_revision for row in rows}:
        for cell in cells:
            row = by_id.get(row_id(cell.config, revision))
            if row is not None:
                found[row.method, *cell.axes.values(), row.seed] = row
    return found


def linear(row: Row) -> float:
    """Return a row's linear accuracy in points; of a run that diverged, its untrained encoder's."""
    value = row.linear_acc if row.status == "ok" else row.untrained_linear_acc
    if value is None:
        raise ValueError(f"row {row.row_id} has no linear accuracy")
    return 100 * value


def crops(row: Row) -> set[tuple[float, float]]:
    """Return the shares of an image that the random crops of a run cover; empty without crops."""
    needs = registry.create(row.config.spec, row.config.method).needs()
    recipes = [VIEWS[name] for name in (*needs.views, *needs.second_batch)]
    return {recipe.scale for recipe in recipes if recipe.crop == "resized"}


def unequal(first: Sequence[Row], second: Sequence[Row]) -> str:
    """Say why two methods' runs may not be compared; empty if they may."""
    for side in (first, second):
        before = [100 * (row.untrained_linear_acc or 0.0) for row in side]
        if sum(map(linear, side)) < sum(before):
            return f"{side[0].method} ends below its random init, {sum(before) / len(before):.1f}"
    both = [crops(first[0]), crops(second[0])]
    if both[0] == both[1]:
        return ""
    ranges = [" and ".join(f"{100 * a:.0f}–{100 * b:.0f} %" for a, b in each) for each in both]
    return f"crops of {' and '.join(text or 'none' for text in ranges)}"


def counted(
    sides: Mapping[str, Sequence[Row]], marked: Mapping[str, Marks]
) -> dict[str, tuple[int, int]]:
    """Return of each side how many runs end at chance, and how many it has."""
    return {
        name: (sum(bool(marked.get(r.row_id, NO_MARKS).at_chance) for r in rows), len(rows))
        for name, rows in sides.items()
    }


def blind(sides: Mapping[str, tuple[int, int]]) -> str:
    """Say which sides have runs at chance, from their number and that of all; empty if none."""
    return "; ".join(f"{name} at chance, {n} of {runs}" for name, (n, runs) in sides.items() if n)


def minus(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the differences of values paired by seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def paired_p(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Two-sided p-value of Student's paired test; None below three pairs."""
    differences = [a - b for a, b in zip(x, y, strict=True)]
    if len(differences) < MIN_FOR_INTERVAL:
        return None
    centre, std = mean(differences) or 0.0, sample_std(differences) or 0.0
    if negligible(std, (*x, *y)):  # all differences are the same one
        return float(negligible(centre, (*x, *y)))
    from scipy.special import stdtr

    n = len(differences)
    return 2 * float(stdtr(n - 1, -abs(centre) / (std / math.sqrt(n))))


def spread(values: Sequence[float]) -> str:
    """Return mean ± half of the 95 % interval of Student's t."""
    low, high = t_interval(values) or (0.0, 0.0)
    return f"{mean(values):+.2f} ± {(high - low) / 2:.2f}".replace("-", "−")
