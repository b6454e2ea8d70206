"""Which method loses most on phones, and whether the objective still chooses well there.

Usage: `python leaderboards/studies/devices/devices.py`, from the rows of this folder; the plan
and how it is decided are in README.md.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedbench import open_store
from fedbench.bench.config import RunConfig
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.leaderboard.statistics import t_interval
from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import Cell, load_grid, plan
from fedbench.leaderboards.studies.cells import linear
from fedbench.leaderboards.studies.compare import compare_pairs

FOLDER = Path(__file__).parent
REFERENCE = "whole"
LOSSES = {"dropout": REFERENCE, "deadline": REFERENCE, "rare and slow": "deadline"}
"""Setting -> the one that it is compared with."""


def planned() -> list[Cell]:
    """Return the cells of the study."""
    phones = {"devices.profile": str(FOLDER / "phones.csv")}
    return plan(load_grid(FOLDER / "devices.yaml"), preset="laptop", environ={}, set=phones)


def setting_of(config: RunConfig) -> str:
    """Return in which of the four settings a run is."""
    if config.devices.failure:
        return "dropout"
    if config.federation.deadline is None:
        return REFERENCE
    return "rare and slow" if config.devices.correlation else "deadline"


def measured(rows: Sequence[Row], cells: Sequence[Cell]) -> pd.DataFrame:
    """Return a line for each cell that has run; `linear` in points.

    A run that diverged has the accuracy of its untrained encoder and the lowest objective.
    """
    by_id = {row.row_id: row for row in rows}
    found = []
    for config in (cell.config for cell in cells):
        ids = {row_id(config, revision) for revision in {row.dataset_revision for row in rows}}
        for row in (by_id[i] for i in ids if i in by_id):
            score = float("-inf") if row.objective is None else row.objective
            line = (row.method, setting_of(config), config.client.lr, row.seed, linear(row), score)
            found.append(line)
    return pd.DataFrame(found, columns=["method", "setting", "lr", "seed", "linear", "objective"])


def chosen(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines at the rate with the highest mean objective, by method and setting."""
    means = table.groupby(["method", "setting", "lr"], as_index=False).objective.mean()
    best = means.loc[means.groupby(["method", "setting"]).objective.idxmax()]
    return table.merge(best[["method", "setting", "lr"]])


def lost(table: pd.DataFrame, setting: str) -> pd.DataFrame:
    """Return the points that each method loses in a setting, by seed: index method, column seed."""
    wide = chosen(table).pivot_table(index=["method", "seed"], columns="setting", values="linear")
    return (wide[LOSSES[setting]] - wide[setting]).unstack("seed")


def regret(table: pd.DataFrame) -> pd.Series:
    """Return the points lost by choosing the rate by the objective, by setting and method."""
    means = table.groupby(["setting", "method", "lr"]).linear.mean()
    best = means.groupby(["setting", "method"]).max()
    return best - chosen(table).groupby(["setting", "method"]).linear.mean()


def main() -> None:
    """Print the three answers, so far as there are rows."""
    cells = planned()
    table = measured(open_store(FOLDER).rows(), cells)
    print(f"{len(table)} of {len(cells)} runs")
    if len(table) < len(cells):
        return
    for setting, reference in LOSSES.items():
        by_method = lost(table, setting)
        print(f"\npoints lost: {reference} -> {setting}")
        for method, values in by_method.iterrows():
            low, high = t_interval([*values]) or (float("nan"), float("nan"))
            print(f"  {method:10} {values.mean():5.2f} [{low:.2f}, {high:.2f}]")
        print(compare_pairs({m: [*v] for m, v in by_method.iterrows()}).to_string())
    print("\npoints lost by choosing the rate without labels")
    print(regret(table).unstack("setting").to_string())


if __name__ == "__main__":
    main()
