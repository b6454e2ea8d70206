"""Why a leaderboard is empty: what the filters found nothing of, and what the store holds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fedbench.bench.errors import UnknownNameError, did_you_mean
from fedbench.bench.results.published import dataset_name
from fedbench.bench.results.row import Row


def explain(
    rows: Sequence[Row],
    known_datasets: Sequence[str],
    *,
    dataset: str | None,
    grid: str | None,
) -> str:
    """One line about a ranking without lines, with a command that would give it some.

    Args:
        rows: of the store, whatever the filters say.
        known_datasets: names that `data.name` takes.
        dataset: the filter by data set.
        grid: the filter by grid, which exists.

    Raises:
        UnknownNameError: for a data set that is neither in the store nor known.
    """
    run = f"fedbench sweep --grid {shlex.quote(grid)}" if grid else "fedbench run simclr"
    if not rows:
        return f"nothing to rank yet; try {run}"
    held = sorted({row.dataset for row in rows})
    grids = sorted({row.grid for row in rows if row.grid}) or ["none"]
    if dataset is not None and dataset_name(dataset) not in map(dataset_name, held):
        if ":" not in dataset and dataset_name(dataset) not in map(dataset_name, known_datasets):
            raise UnknownNameError("data set", dataset, held, "; known = in the store")
        hint = did_you_mean(dataset, held).removesuffix(f" (known: {', '.join(held)})")
        return f"no run in the store is on data set {dataset!r}{hint}; it has {', '.join(held)}"
    if dataset is None:
        return (
            f"no run in the store is a cell of grid {grid!r}; it has {len(rows)} runs, swept by"
            f" {', '.join(grids)}; try {run}"
        )
    return f"no run in the store is a cell of grid {grid!r} on data set {dataset!r}; try {run}"
