"""Which rows of a store are cells of a grid, whatever ran them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.bench.config import RunConfig, canonical_json
from fedbench.bench.fields import flat_config
from fedbench.bench.presets import preset_names
from fedbench.bench.registry import entries
from fedbench.bench.results.row import Row
from fedbench.bench.tuning.grid import grid_names, load_grid, plan


def cells_of(rows: Sequence[Row], name: str) -> frozenset[str]:
    """The ids of the rows that are cells of a grid.

    A row carries the name of what ran it first. So a cell that `run` or another grid executed is
    found by its configuration: that of a cell under its preset, or one that differs from a cell
    which did run for this grid in axes and seed only.

    Args:
        rows: of a store.
        name: of the grid, or a YAML file.

    Raises:
        UnknownNameError: for a grid that does not exist and that no row names.
    """
    if name not in grid_names() and (named := {row.row_id for row in rows if row.grid == name}):
        return frozenset(named)  # a grid from a file that is not at hand
    grid = load_grid(name)
    cells = [
        cell
        for preset in sorted({row.preset for row in rows} & {*preset_names()})
        for cell in plan(grid, preset=preset, environ={})
    ]
    planned = {canonical_json(cell.config.model_dump(mode="json")) for cell in cells}
    points = {(cell.preset, _point(cell.axes, grid.keys(cell.preset))) for cell in cells}
    found = {row.row_id for row in rows if row.grid == grid.grid}
    rows = [row for row in rows if {*row.method.split("+")} <= {*entries()}]  # plugins may be gone
    ran = [row for row in rows if row.grid == grid.grid]
    points |= {(row.preset, _split(row, grid.keys(row.preset))[1]) for row in ran}
    families = {(_split(row, grid.keys(row.preset))[0], row.seed) for row in ran}
    for row in rows:
        family, point = _split(row, grid.keys(row.preset))
        sibling = (family, row.seed) in families and (row.preset, point) in points
        if sibling or row.config_json in planned:
            found.add(row.row_id)
    return frozenset(found)


def _split(row: Row, keys: Sequence[str]) -> tuple[str, str]:
    """A row's configuration without what a grid sets and the seed; and its values of the former."""
    config = RunConfig.model_validate_json(row.config_json)
    values = flat_config(config)
    point = _point(values, keys)
    rest = {key: value for key, value in values.items() if key != "seed" and key not in keys}
    return canonical_json([config.spec, rest]), point


def _point(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    return canonical_json({key: values.get(key) for key in keys})
