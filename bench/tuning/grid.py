"""Grids: lists per axis in YAML -> the cells of a sweep, in a fixed order and without repeats."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.yaml_files import load_yaml, shipped
from fedbench.bench.method import registry
from fedbench.bench.method.registry import entries
from fedbench.bench.results.store.row import Row
from fedbench.bench.runs.fields import build_config, check_key, flat_config, get, known_keys
from fedbench.bench.runs.presets import load_preset, preset_names
from fedbench.bench.runs.resolve import preset_of, resolve, user_keys
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.system.identity import canonical_json


class Scale(Strict):
    """How a value follows an axis: by the ratio of the axis to its plain value.

    Attributes:
        by: `linear`, `sqrt`, or `inverse`: divided by the ratio.
        of: dotted name of the axis.
    """

    by: Literal["linear", "sqrt", "inverse"]
    of: str

    def apply(self, base: int | float, ratio: float) -> int | float:
        """The scaled value: a whole number of at least 1 for a whole number, else six digits."""
        factor = {"linear": ratio, "sqrt": math.sqrt(ratio), "inverse": 1 / ratio}[self.by]
        value = base * factor
        if isinstance(base, int):
            return max(1, math.floor(value + 0.5))
        return float(f"{value:.6g}")


@dataclass(frozen=True)
class Scaled:
    """A value that followed an axis, and why.

    Attributes:
        key: its dotted name.
        base: what it is without the axis.
        value: what it is in the cell.
        reason: the factor, with both values of the axis.
    """

    key: str
    base: int | float
    value: int | float
    reason: str

    @property
    def text(self) -> str:
        """One line: `client.lr 0.003 -> 0.00424264: x sqrt(participation 1.0 / 0.5)`."""
        return f"{self.key} {self.base:g} -> {self.value:g}: {self.reason}"


def follow(key: str, scale: Scale, plain: RunConfig, new: Any) -> Scaled | None:
    """A value at one point of its axis; None if it does not change there.

    Args:
        key: dotted name of the value.
        scale: how it follows.
        plain: the configuration without the axis.
        new: the axis's value.
    """
    base, old = get(plain, key), get(plain, scale.of)
    value = scale.apply(base, float(new) / float(old))
    if value == base:
        return None
    top, bottom = (old, new) if scale.by == "inverse" else (new, old)
    ratio = f"{scale.of.rpartition('.')[2]} {top} / {bottom}"
    return Scaled(key, base, value, f"x sqrt({ratio})" if scale.by == "sqrt" else f"x {ratio}")


def check_scale(
    key: str, scale: Scale, plain: Any, axes: Sequence[Mapping[str, Sequence[Any]]]
) -> None:
    """Refuses a value that cannot follow.

    Args:
        key: dotted name of the value.
        scale: how it follows.
        plain: an example of the value.
        axes: the axes of the grid, and those under each preset.

    Raises:
        ConfigError: if one of both is no number, or there is no such axis.
    """
    if any(key in each for each in axes):
        raise ConfigError(f"scaling: {key} is an axis and cannot follow another")
    points = [value for each in axes for value in each.get(scale.of, ())]
    if not points:
        raise ConfigError(f"scaling: {key} follows {scale.of!r}, which is no axis of the grid")
    for name, values in ((key, [plain]), (scale.of, points)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ConfigError(f"scaling: {name} must be a positive number (got {value!r})")


METHOD = "method"
Scalar = bool | int | float | str | None
Axes = dict[str, tuple[Scalar, ...]]
Point = dict[str, Scalar]


class _Lists(Strict):
    """What a grid may say per preset as well."""

    axes: Axes | None = None
    points: tuple[Point, ...] | None = Field(default=None, min_length=1)
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)

    @field_validator("axes")
    @classmethod
    def _not_empty(cls, axes: Axes | None) -> Axes | None:
        for key, values in (axes or {}).items():
            if not values:
                raise ValueError(f"axis {key} must have at least one value")
            if key in ("seed", "spec", METHOD):
                raise ValueError(f"axis {key} must be written as 'seeds:' or 'methods:'")
        return axes


class Grid(_Lists):
    """A grid file.

    Attributes:
        axes: dotted name -> values; a sweep runs all combinations.
        points: settings that are no product, one mapping each, at every combination of the axes;
            one that names a `method` is for that spec only.
        methods: method specs.
        seeds: seeds.
        under: presets that a sweep goes through unless it is given one; none = `demo`.
        presets: preset -> lists that replace those above when the sweep uses that preset.
        scaling: dotted name -> the axis that its value follows, from the preset's value of both.
        exclude: combinations that are left out; `method` stands for the spec.
    """

    grid: str
    description: str
    source: str = ""
    axes: Axes = Field(default_factory=dict)
    points: tuple[Point, ...] = Field(default=({},), min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    under: tuple[str, ...] = ()
    presets: dict[str, _Lists] = Field(default_factory=dict)
    scaling: dict[str, Scale] = Field(default_factory=dict)
    exclude: tuple[dict[str, Scalar], ...] = ()

    def lists(self, preset: str) -> tuple[Axes, tuple[str, ...], tuple[int, ...]]:
        """Axes, methods and seeds under a preset."""
        own = self.presets.get(preset, _Lists())
        axes = self.axes if own.axes is None else own.axes
        return axes, own.methods or self.methods, own.seeds or self.seeds

    def points_of(self, preset: str) -> tuple[Point, ...]:
        """The points under a preset."""
        return self.presets.get(preset, _Lists()).points or self.points

    def keys(self, preset: str) -> tuple[str, ...]:
        """Every name that axes or points set under a preset."""
        names = [*self.lists(preset)[0]]
        names += [key for point in self.points_of(preset) for key in point if key != METHOD]
        return tuple(dict.fromkeys(names))


def check_grid(content: Mapping[str, Any], name: str) -> Grid:
    """A grid from the content of its file.

    Raises:
        ConfigError: `name: what is wrong`.
    """
    try:
        grid = Grid.model_validate(content)
        for preset in (*grid.presets, *grid.under):
            if preset not in preset_names():
                raise UnknownNameError("preset", preset, preset_names())
        for preset in ("", *grid.presets):
            _check_points(grid, preset)
        _check_names(grid)
    except ValidationError as err:
        reason = registry.describe_validation(err, Grid.model_fields)
        raise ConfigError(f"{name}: {reason}") from err
    except ConfigError as err:
        raise ConfigError(f"{name}: {err}") from err
    return grid


def is_for(point: Point, spec: str) -> bool:
    """Whether a point is for a (canonical) spec."""
    return METHOD not in point or registry.canonical_spec(str(point[METHOD])) == spec


def settings_of(point: Point) -> Point:
    """What a point sets."""
    return {key: value for key, value in point.items() if key != METHOD}


def _check_points(grid: Grid, preset: str) -> None:
    """Every point sets fields that each of its methods has, and none that an axis sets."""
    axes, methods, _ = grid.lists(preset)
    specs = tuple(map(registry.canonical_spec, methods))
    for point in grid.points_of(preset):
        meant = [spec for spec in specs if is_for(point, spec)]
        if not meant:
            raise ConfigError(f"points: {point[METHOD]!r} is not among {', '.join(methods)}")
        for key, value in settings_of(point).items():
            if key in axes:
                raise ConfigError(f"points: {key} is an axis as well")
            for spec in meant:
                check_key(key, spec, known_keys(spec))
                build_config(spec, {key: value})


def _check_names(grid: Grid) -> None:
    """Every axis, exclusion and scaled value fits at least one method of the grid."""
    lists = [grid.lists(preset) for preset in ("", *grid.presets)]
    specs = dict.fromkeys(spec for _, methods, _ in lists for spec in methods)
    holder = {key: spec for spec in specs for key in known_keys(spec)}
    settings = [(key, value) for axes, _, _ in lists for key in axes for value in axes[key]]
    settings += [item for rule in grid.exclude for item in rule.items() if item[0] != METHOD]
    for key, value in settings:
        check_key(key, ", ".join(specs), holder)
        build_config(holder[key], {key: value})
    for key, scale in grid.scaling.items():
        check_key(key, ", ".join(specs), holder)
        plain = get(build_config(holder[key], {}), key)
        check_scale(key, scale, plain, [axes for axes, _, _ in lists])


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


def presets_for(grid: Grid, preset: str | None, files: Sequence[Path | str]) -> tuple[str, ...]:
    """Return the presets of a sweep: the one that it is given, else the grid's, else `demo`."""
    named = preset is not None or any("preset" in load_yaml(Path(file)) for file in files)
    return grid.under if grid.under and not named else (preset or preset_of(files),)


def plan(
    grid: Grid,
    *,
    preset: str = "demo",
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
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
        set: dotted names to values, as `--set` gives them; a field of a method goes to the
            methods that have it. `data.name` may stand there even where the grid sets it: it says
            where the data set of that name lies, and cells on others are left out.
        config_files: YAML files over the preset, as in `resolve`.
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
    overrides = flatten(set or {})
    keys = grid.keys(preset)
    points = _points(axes, grid.points_of(preset))
    if _DATA in keys and _DATA in overrides:
        points = _located(points, str(overrides.pop(_DATA)))
    environ = os.environ if environ is None else environ
    found = {registry.canonical_spec(spec): each for spec, each in (tuned or {}).items()}
    known = {spec: {*known_keys(spec)} for spec in specs}
    for key in overrides:
        check_key(key, ", ".join(specs), {name for names in known.values() for name in names})
    for spec in specs:
        given = {**user_keys(spec, config_files, environ), **dict.fromkeys(overrides, "--set")}
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
            "config_files": config_files,
            "seed": seed,
            "environ": environ,
            "tuned": best.values if best else None,
            "study": best.study if best else None,
        }
        scaled = _followers(grid, spec, {**own, **point}, point, settings)
        followers = {each.key: each.value for each in scaled}
        resolved = resolve(spec, set={**own, **point, **followers}, **settings)
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
            plain = resolve(spec, set=without, **settings).config
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
