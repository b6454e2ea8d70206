"""Grids: lists per axis in YAML -> the cells of a sweep, in a fixed order and without repeats."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedbench.bench import registry
from fedbench.bench.config import RunConfig, canonical_json
from fedbench.bench.dotted import flatten
from fedbench.bench.errors import ConfigError, UnknownNameError
from fedbench.bench.fields import check_key, flat_config, get, known_keys
from fedbench.bench.presets import load_preset
from fedbench.bench.resolve import preset_of, resolve, user_keys
from fedbench.bench.tuning.grid_file import (
    Axes,
    Grid,
    Point,
    Scalar,
    check_grid,
    is_for,
    settings_of,
)
from fedbench.bench.tuning.scaling import Scaled, follow
from fedbench.bench.yaml_files import load_yaml, shipped

__all__ = [
    "Cell",
    "Grid",
    "TunedValues",
    "check_grid",
    "grid_names",
    "grid_records",
    "load_grid",
    "plan",
    "presets_for",
]

FOLDER = "grids"
_DATA = "data.name"


@dataclass(frozen=True)
class TunedValues:
    """What a tuning study found for one method spec: dotted names to values, and the study's id."""

    values: Mapping[str, Any]
    study: str


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        config: its configuration.
        preset: the preset it started from.
        axes: the values of what the grid's axes and points set, as far as its method has it.
        study: the tuning study that values come from, if any.
        scaled: values that followed an axis away from their base.
    """

    config: RunConfig
    preset: str
    axes: Mapping[str, Scalar]
    study: str | None
    scaled: tuple[Scaled, ...] = ()


def grid_names() -> list[str]:
    """Names of the grids that ship with fedbench."""
    return list(shipped(FOLDER))


def load_grid(name: str | Path) -> Grid:
    """A grid by name, or from a file if the name ends in `.yaml`.

    Raises:
        UnknownNameError: for an unknown name.
        ConfigError: for a file that is missing or does not hold a grid.
    """
    files = shipped(FOLDER)
    if str(name).endswith((".yaml", ".yml")):
        return check_grid(load_yaml(Path(name)), str(name))
    if str(name) not in files:
        raise UnknownNameError("grid", str(name), files)
    return check_grid(load_yaml(files[str(name)]), f"grids/{name}.yaml")


def grid_records() -> list[dict[str, Any]]:
    """Every grid with its lists and its number of cells, for listing."""
    return [load_grid(name).model_dump(mode="json", exclude_none=True) for name in grid_names()]


def presets_for(grid: Grid, preset: str | None, files: Sequence[Path]) -> tuple[str, ...]:
    """The presets that a sweep goes through: the one it is given, else the grid's, else `demo`."""
    named = preset is not None or any("preset" in load_yaml(file) for file in files)
    return grid.under if grid.under and not named else (preset or preset_of(files),)


def plan(
    grid: Grid,
    *,
    preset: str = "demo",
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    files: Sequence[Path] = (),
    overrides: Mapping[str, Any] | None = None,
    tuned: Mapping[str, TunedValues] | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Cell]:
    """The cells of a sweep: seed by seed, then axis by axis, then method by method.

    In this order a sweep that is cut short has compared all methods under some seeds rather than
    some methods under all seeds. Cells with equal configurations stand once. Scaled values start
    from what the configuration holds without the axis that they follow, tuned or overridden or not.

    Args:
        grid: what to sweep over.
        preset: name of the preset.
        methods: method specs in place of the grid's.
        seeds: seeds in place of the grid's.
        files: YAML files, as in `resolve`.
        overrides: dotted names to values, as `--set` gives them; a field of a method goes to the
            methods that have it. `data.name` may stand there even where the grid sets it: it says
            where the data set of that name lies, and cells on others are left out.
        tuned: per method spec, values found by tuning; specs without an entry stay untuned.
        environ: environment variables; None = those of the process.

    Raises:
        UnknownNameError: for an unknown method or preset.
        ConfigError: for a value that does not fit, or one that the grid itself sets.
    """
    for option, values in (("--methods", methods), ("--seeds", seeds)):
        if values is not None and not values:
            raise ConfigError(
                f"{option}: is empty; give at least one, or leave it out for the grid's own"
            )
    load_preset(preset)
    axes, own_methods, own_seeds = grid.lists(preset)
    methods = own_methods if methods is None else methods
    seeds = own_seeds if seeds is None else seeds
    specs = dict.fromkeys(map(registry.canonical_spec, methods))
    overrides = flatten(overrides or {})
    keys = grid.keys(preset)
    points = _points(axes, grid.points_of(preset))
    if _DATA in keys and _DATA in overrides:
        points = _located(points, str(overrides.pop(_DATA)))
    environ = os.environ if environ is None else environ
    found = {registry.canonical_spec(spec): each for spec, each in (tuned or {}).items()}
    known = {spec: set(known_keys(spec)) for spec in specs}
    for key in overrides:
        check_key(key, ", ".join(specs), set().union(*known.values()))
    for spec in specs:
        given = {**user_keys(spec, files, environ), **dict.fromkeys(overrides, "--set")}
        _check_free(grid, keys, given)

    cells: dict[str, Cell] = {}
    for seed, whole, spec in itertools.product(seeds, points, specs):
        if not is_for(whole, spec):
            continue
        point = settings_of(whole)
        best = found.get(spec)
        own = {key: value for key, value in overrides.items() if key in known[spec]}
        settings: dict[str, Any] = {
            "preset": preset,
            "files": files,
            "seed": seed,
            "environ": environ,
            "tuned": best.values if best else None,
            "study": best.study if best else None,
        }
        scaled = _followers(grid, spec, {**own, **point}, point, settings)
        followers = {each.key: each.value for each in scaled}
        resolved = resolve(spec, overrides={**own, **point, **followers}, **settings)
        config = resolved.config
        settled = {key: get(config, key) for key in keys if key in known[spec]}
        if not _excluded(grid, config):
            key = canonical_json(config.model_dump(mode="json"))
            cells.setdefault(key, Cell(config, preset, settled, resolved.study, scaled))
    return list(cells.values())


def _points(axes: Axes, points: Sequence[Point]) -> list[Point]:
    """Every point at every combination of the axes."""
    combinations = [
        dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())
    ]
    return [{**each, **point} for each in combinations for point in points]


def _located(points: Sequence[Point], place: str) -> list[Point]:
    """The points on the data set whose name a place ends in, with the place as its name.

    Raises:
        ConfigError: if there are none.
    """
    kind, _, path = place.partition(":")
    wanted = {kind, PurePosixPath(path).name}
    found = [{**each, _DATA: place} for each in points if each.get(_DATA) in wanted]
    if not found:
        names = ", ".join(dict.fromkeys(str(each.get(_DATA)) for each in points))
        raise ConfigError(
            f"{_DATA}: this grid is about {names} (got {place}); name the folder after one of them"
        )
    return found


def _followers(
    grid: Grid,
    spec: str,
    overrides: Mapping[str, Any],
    point: Mapping[str, Scalar],
    settings: Mapping[str, Any],
) -> tuple[Scaled, ...]:
    """The values that follow an axis to this point, of those that the spec has."""
    result = []
    for key, scale in grid.scaling.items():
        if key in known_keys(spec) and scale.of in point:
            without = {name: value for name, value in overrides.items() if name != scale.of}
            plain = resolve(spec, overrides=without, **settings).config
            result.append(follow(key, scale, plain, point[scale.of]))
    return tuple(each for each in result if each is not None)


def _check_free(grid: Grid, keys: Collection[str], given: Mapping[str, str]) -> None:
    for key, source in given.items():
        if key in keys:
            raise ConfigError(
                f"{key} is an axis of grid {grid.grid!r} and cannot be set as well [{source}];"
                " use another grid, or `fedbench run` for one value"
            )
        if key == "seed":
            raise ConfigError(f"seed: a sweep takes its seeds from --seeds or the grid [{source}]")


def _excluded(grid: Grid, config: RunConfig) -> bool:
    def holds(key: str, value: Scalar) -> bool:
        if key == "method":
            return config.spec == registry.canonical_spec(str(value))
        return key in values and bool(values[key] == value)

    values = flat_config(config)
    return any(all(holds(key, value) for key, value in rule.items()) for rule in grid.exclude)
