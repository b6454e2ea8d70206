"""Grids: lists per axis in YAML -> the cells of a sweep, in a fixed order and without repeats."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from fedbench.bench import registry
from fedbench.bench.config import RunConfig, Strict, canonical_json
from fedbench.bench.dotted import flatten
from fedbench.bench.errors import ConfigError, UnknownNameError
from fedbench.bench.fields import build_config, check_key, flat_config, get, known_keys
from fedbench.bench.presets import load_preset, preset_names
from fedbench.bench.resolve import resolve, user_keys
from fedbench.bench.tuning.scaling import Scale, Scaled, check_scale, follow
from fedbench.bench.yaml_files import load_yaml, shipped

FOLDER = "grids"
Scalar = bool | int | float | str | None
Axes = dict[str, tuple[Scalar, ...]]


class _Lists(Strict):
    """What a grid may say per preset as well."""

    axes: Axes | None = None
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)

    @field_validator("axes")
    @classmethod
    def _not_empty(cls, axes: Axes | None) -> Axes | None:
        for key, values in (axes or {}).items():
            if not values:
                raise ValueError(f"axis {key} must have at least one value")
            if key in ("seed", "spec", "method"):
                raise ValueError(f"axis {key} must be written as 'seeds:' or 'methods:'")
        return axes


class Grid(_Lists):
    """A grid file.

    Attributes:
        axes: dotted name -> values; a sweep runs all combinations.
        methods: method specs.
        seeds: seeds.
        presets: preset -> lists that replace those above when the sweep uses that preset.
        scaling: dotted name -> the axis that its value follows, from the preset's value of both.
        exclude: combinations that are left out; `method` stands for the spec.
    """

    grid: str
    description: str
    source: str = ""
    axes: Axes
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    presets: dict[str, _Lists] = Field(default_factory=dict)
    scaling: dict[str, Scale] = Field(default_factory=dict)
    exclude: tuple[dict[str, Scalar], ...] = ()

    def lists(self, preset: str) -> tuple[Axes, tuple[str, ...], tuple[int, ...]]:
        """Axes, methods and seeds under a preset."""
        own = self.presets.get(preset, _Lists())
        axes = self.axes if own.axes is None else own.axes
        return axes, own.methods or self.methods, own.seeds or self.seeds


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
        axes: the values of the grid's axes.
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


def check_grid(content: Mapping[str, Any], name: str) -> Grid:
    """A grid from the content of its file.

    Raises:
        ConfigError: `name: what is wrong`.
    """
    try:
        grid = Grid.model_validate(content)
        for preset in grid.presets:
            if preset not in preset_names():
                raise UnknownNameError("preset", preset, preset_names())
        _check_names(grid)
    except ValidationError as err:
        reason = registry.describe_validation(err, Grid.model_fields)
        raise ConfigError(f"{name}: {reason}") from err
    except ConfigError as err:
        raise ConfigError(f"{name}: {err}") from err
    return grid


def _check_names(grid: Grid) -> None:
    """Every axis, exclusion and scaled value fits at least one method of the grid."""
    lists = [grid.lists(preset) for preset in ("", *grid.presets)]
    specs = dict.fromkeys(spec for _, methods, _ in lists for spec in methods)
    holder = {key: spec for spec in specs for key in known_keys(spec)}
    settings = [(key, value) for axes, _, _ in lists for key in axes for value in axes[key]]
    settings += [item for rule in grid.exclude for item in rule.items() if item[0] != "method"]
    for key, value in settings:
        check_key(key, ", ".join(specs), holder)
        build_config(holder[key], {key: value})
    for key, scale in grid.scaling.items():
        check_key(key, ", ".join(specs), holder)
        plain = get(build_config(holder[key], {}), key)
        check_scale(key, scale, plain, [axes for axes, _, _ in lists])


def grid_records() -> list[dict[str, Any]]:
    """Every grid with its lists and its number of cells, for listing."""
    return [load_grid(name).model_dump(mode="json", exclude_none=True) for name in grid_names()]


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
            methods that have it.
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
    environ = os.environ if environ is None else environ
    found = {registry.canonical_spec(spec): each for spec, each in (tuned or {}).items()}
    known = {spec: set(known_keys(spec)) for spec in specs}
    for key in overrides:
        check_key(key, ", ".join(specs), set().union(*known.values()))
    for spec in specs:
        given = {**user_keys(spec, files, environ), **dict.fromkeys(overrides, "--set")}
        _check_free(grid, axes, given)

    cells: dict[str, Cell] = {}
    for seed, point, spec in itertools.product(seeds, _points(axes), specs):
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
        settled = {key: get(config, key) for key in point}
        if not _excluded(grid, config):
            key = canonical_json(config.model_dump(mode="json"))
            cells.setdefault(key, Cell(config, preset, settled, resolved.study, scaled))
    return list(cells.values())


def _points(axes: Axes) -> Iterator[dict[str, Scalar]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


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


def _check_free(grid: Grid, axes: Axes, given: Mapping[str, str]) -> None:
    for key, source in given.items():
        if key in axes:
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
