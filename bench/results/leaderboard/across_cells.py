"""Methods compared over many cells: mean ranks, worst values, slopes, and tests of the ranks.

Methods are ranked within each cell, which is a comparability class; a mean of ranks compares no
accuracy of one class with one of another.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pandas as pd

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.choice import AXES
from fedbench.bench.results.leaderboard.columns import half_interval
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.statistics import (
    LEVEL,
    friedman_p,
    nemenyi_difference,
    rounded,
    slope,
)
from fedbench.bench.results.store.frame import plain
from fedbench.bench.results.store.settings import CLIENTS
from fedbench.bench.system.identity import canonical_json

FOLLOWERS = {"num_clients": ("local_epochs",)}
"""Axis -> columns that may follow it by a scaling rule."""

MIN_CELLS = 6
"""With fewer common cells mean ranks are only described."""


COLUMNS = {
    "method": "its spec",
    "variant": "its hyperparameters, where a cell has several entries of the method",
    "label": "of its entries",
    "means": "its mean in each cell; null where the cell is missing, or a run of it diverged: the"
    " mean of the others would flatter it",
    "halves": "half of the 95 % interval of each mean; null where it has none",
    "ties": "the letters of each cell: entries with one letter are not told from the best of them",
    "seeds": "how many each mean is of",
    "coverage": "share of cells with a result, those where it diverged included",
    "worst": "its worst mean; null if it diverged anywhere, and over all cells, whose budgets may"
    " differ",
    "slope": "change of the mean per tenfold of the axis, least squares over the cells with a mean",
    "diverged": "true for cells in which a run of it diverged; it ranks last there",
    "num_runs": "its finished runs",
    "num_at_chance": "those of them that ended at chance",
    "minimises_objective": "whether its loss is the objective that chooses settings",
    "mean_rank": "over the cells that all ranked methods have; null if it is not ranked, since half"
    " of its cells or more are missing, or there are fewer than two common cells",
    "best": "its mean rank is the lowest, or not further from it than the critical difference; null"
    " where no test was possible or none rejected",
}
"""Columns of a comparison."""


@dataclass(frozen=True, eq=False)
class CellComparison:
    """All methods over the cells along one axis, or over all cells of a data set."""

    axis: str | None  # the column that varies, or None: all cells of the data set
    metric: str
    title: str  # settings that the cells share, as far as they tell them from others
    values: tuple[float | str, ...]  # of the axis; for all cells their titles
    class_ids: tuple[str, ...]
    num_common: int  # cells that all ranked methods have
    friedman_p: float | None  # that all methods are alike; None with too few cells
    critical_difference: float | None  # by Nemenyi; None unless Friedman's test rejects
    frame: pd.DataFrame  # `COLUMNS` of each method, and `left_out` of `Group`; best mean rank first

    @cached_property
    def entries(self) -> tuple[Any, ...]:
        """The rows of the frame, with columns as attributes."""
        return tuple(self.frame.itertuples(index=False, name="Line"))

    @property
    def cliques(self) -> tuple[tuple[int, int], ...]:
        """Widest runs of entries, first and last, whose mean ranks no test tells apart.

        The bars of a critical-difference diagram (Demšar 2006, figure 1); none without a test.
        """
        if self.critical_difference is None:
            return ()
        return cliques(self.frame.mean_rank.dropna().tolist(), self.critical_difference)

    def num_cells(self, entry: Any) -> int:
        """Return the cells in which an entry has a result; divergence is one."""
        number: int = round(entry.coverage * len(self.values))
        return number

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "frame"}
        # By the name that users have.
        return {**plain, "entrants": self.frame[[*COLUMNS]].to_dict("records")}


def cliques(ranks: Sequence[float], difference: float) -> tuple[tuple[int, int], ...]:
    """Return, as first and last, the widest runs of ascending ranks within a difference."""
    runs: list[tuple[int, int]] = []
    for start, rank in enumerate(ranks):
        end = max(i for i, r in enumerate(ranks) if r - rank <= difference)
        if end > start and (not runs or end > runs[-1][1]):
            runs.append((start, end))
    return tuple(runs)


def compare_cells(groups: Sequence[Group], metric: str) -> tuple[CellComparison, ...]:
    """Compare methods along each axis on which groups differ, and over all groups of each data set.

    Nothing is compared where no entry has results in two of the groups, nor over all groups where
    no two of them rank the same methods: what is left would look like a ranking. Untrained encoders
    have no cell among those of trained ones. Versions of the benchmark have tables of their own:
    their cells may be the same tasks. So has each revision of a data set whose content is not
    known: folders of one name may hold anything.
    """
    # Of groups that differ in the number of evaluated clients only, the largest.
    largest = [max(same[::-1], key=lambda g: len(g.frame)) for same in _alike(groups, ())]
    comparisons = [
        _compare([group.keys[axis] for group in family], family, metric, axis)
        for axis in AXES
        for family in _all_families([group for group in groups if group in largest], axis)
    ]
    of_data: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        name = group.keys["dataset"]
        revision = group.keys["dataset_revision"] if ":" in name else None
        of = name, revision, group.keys["benchmark_version"]
        of_data.setdefault(of, []).append(group)
    for every in of_data.values():
        cells = [group for group in every if group.keys["num_rounds"]] or every
        ids = {group.class_id for group in cells}
        axes = [c for c in comparisons if ids.issuperset(c.class_ids)]
        one_axis = len(axes) == 1 and len(axes[0].values) == len(cells)
        if len(cells) > 1 and not one_axis:
            whole = _compare([group.title for group in cells], cells, metric, None)
            comparisons += [whole] * any(e.mean_rank is not None for e in whole.entries)
    return tuple(c for c in comparisons if any(c.num_cells(e) > 1 for e in c.entries))


_LABELS = ("dataset", CLIENTS)
"""Keys that do not set the cells of a family apart."""


def _alike(
    groups: Sequence[Group], left_out: Collection[str], by_rule: bool = False
) -> list[list[Group]]:
    """Return groups with equal keys but for some; `by_rule`: keys as they were before a rule."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        keys = {**group.keys, **(group.unscaled if by_rule else {})}
        rest = {k: v for k, v in keys.items() if k not in _LABELS and k not in left_out}
        alike.setdefault(canonical_json(rest), []).append(group)
    return [*alike.values()]


def _all_families(groups: Sequence[Group], axis: str) -> list[list[Group]]:
    """Return groups that differ in the axis and in what follows it only.

    A grid's rules may scale other keys of the class with the axis; groups that such a rule holds
    together are one family, whatever part of them has equal keys by chance.
    """
    followers = FOLLOWERS.get(axis, ())
    by_rule = _families(groups, axis, followers, by_rule=True)
    as_run = _families(groups, axis, followers, by_rule=False)
    whole = [{group.class_id for group in family} for family in by_rule]
    rest = [f for f in as_run if not any({g.class_id for g in f} <= ids for ids in whole)]
    return [*by_rule, *rest]


def _families(
    groups: Sequence[Group], axis: str, followers: Sequence[str], *, by_rule: bool
) -> list[list[Group]]:
    """Return groups that differ in the axis (and its followers) only, one for each value of it.

    Where two groups have one value, that which a grid's rule scaled is taken; `by_rule=False`
    compares the other with the groups whose keys are as its own.
    """
    families = []
    there = [group for group in groups if group.keys[axis]]  # an axis of numbers is of ratios
    for family in _alike(there, (axis, *followers), by_rule):
        last = sorted(family, key=lambda each: (by_rule and bool(each.unscaled), len(each.frame)))
        chosen = {group.keys[axis]: group for group in last}
        if len(chosen) < len(family) and followers:
            families += _families(family, axis, (), by_rule=by_rule)
        elif len(chosen) > 1:
            families.append([chosen[value] for value in sorted(chosen)])
    return families


def _compare(
    values: Sequence[float | str], cells: Sequence[Group], metric: str, axis: str | None
) -> CellComparison:
    better, places = needed(metric).score, range(len(cells))
    tenfold = [0.0 if axis is None else math.log10(float(value)) for value in values]
    lines = pd.concat([cell.frame.assign(cell=place) for place, cell in enumerate(cells)])
    ended = lines["mean"].notna() | (lines.num_diverged > 0)  # divergence is the worst of a cell
    lines = lines[ended & (lines.selection != "oracle")].set_index("cell")
    records, scores = [], []
    for _, of in lines.groupby(["method", "joined_by"], sort=False):
        known = of[of.num_diverged == 0]
        of_cell = dict(zip(known.index, known.itertuples(index=False, name="Line"), strict=True))
        every = [of_cell.get(place) for place in places]
        scores.append(known["mean"].map(better).reindex(of.index, fill_value=-math.inf))
        records.append(
            {
                **of.iloc[0][["method", "variant", "label", "left_out", "minimises_objective"]],
                "means": tuple(line and line.mean for line in every),
                "halves": tuple(line and half_interval(line) for line in every),
                "ties": tuple(line and line.ties for line in every),
                "seeds": tuple(line and line.n_seeds for line in every),
                "coverage": len(of) / len(cells),
                "worst": None
                if axis is None or len(known) < len(of)
                else min(known["mean"], key=better),
                "slope": slope([tenfold[place] for place in known.index], [*known["mean"]]),
                "diverged": tuple(p in of.index and p not in known.index for p in places),
                "num_runs": sum(of.n_seeds),
                "num_at_chance": sum(of.num_at_chance),
            }
        )
    found = pd.DataFrame(records, columns=[*COLUMNS, "left_out"], dtype=object)
    table = pd.DataFrame(dict(enumerate(scores)))[
        [*found.index[(found.coverage > 0.5) & (found.num_runs > 0)]]
    ]
    # Ties share the mean of their ranks.
    table = table.dropna().map(rounded) if len(table.columns) else table[:0]
    p = friedman_p(table.to_numpy().tolist()) if len(table) >= MIN_CELLS else None
    rejected = p is not None and p <= LEVEL
    difference = nemenyi_difference(len(table.columns), len(table)) if rejected else None
    if len(table.columns) > 1 and len(table) > 1:
        rank = table.astype(float).rank(axis="columns", ascending=False).mean()
        found.loc[rank.index, "mean_rank"] = rank
        if difference is not None:
            found.loc[rank.index, "best"] = rank <= rank.min() + difference
    by = {"mean_rank": True, "coverage": False, "method": True, "label": True}
    order = found.sort_values([*by], ascending=[*by.values()], ignore_index=True)
    return CellComparison(
        axis=axis,
        metric=metric,
        title=_shared_title(cells, axis),
        values=tuple(values),
        class_ids=tuple(cell.class_id for cell in cells),
        num_common=len(table),
        friedman_p=p,
        critical_difference=difference,
        frame=plain(order),
    )


def _shared_title(cells: Sequence[Group], axis: str | None) -> str:
    """Return the parts of the titles that all cells have, without those of the axis."""
    parts = [cell.title.split(" · ") for cell in cells]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    if axis is None:
        said = [part for part in shared if part.startswith(("benchmark version", "revision"))]
        return " · ".join(["mean ranks over all cells", parts[0][0], *said])
    return " · ".join([f"over {axis}", *shared])
