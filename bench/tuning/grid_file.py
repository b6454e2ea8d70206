"""A grid file: axes, single points, methods and seeds, and what holds under a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, field_validator

from fedbench.bench import registry
from fedbench.bench.config import Strict
from fedbench.bench.errors import ConfigError, UnknownNameError
from fedbench.bench.fields import build_config, check_key, get, known_keys
from fedbench.bench.presets import preset_names
from fedbench.bench.tuning.scaling import Scale, check_scale

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
