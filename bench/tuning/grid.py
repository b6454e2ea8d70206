"""Grids: lists per axis in YAML -> the cells of a sweep, in a fixed order and without repeats."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.presets import lineage
from fedbench.bench.config.yaml_files import installed, load_named, load_yaml
from fedbench.bench.data.datasets import content_names
from fedbench.bench.data.sources.base import with_kind
from fedbench.bench.experiment.code import missing_code
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import GIVEN, Fields, check_key, flat_config, get
from fedbench.bench.experiment.preset_loading import load_preset, preset_names
from fedbench.bench.experiment.resolve import as_read, resolve, user_keys
from fedbench.bench.method import registry
from fedbench.bench.method.registry import entries
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.arguments import one_of
from fedbench.bench.system.errors import ConfigError, FedbenchError
from fedbench.bench.system.identity import canonical_json

METHOD = "method"
_DATA = "data.name"
Scalar = bool | int | float | str | None
Axes = dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]]
Point = dict[str, Scalar]


@dataclass(frozen=True)
class Scaled:
    """A value that follows an axis."""

    key: str  # its dotted name
    base: int | float  # its value without the axis
    value: int | float  # its value in the cell
    text: str  # as `client.lr 0.003 -> 0.0042: x sqrt(participation 1.0 / 0.5)`


class Scale(Strict):
    """Rule by which a value follows an axis: scaled by the ratio of the axis to its plain value."""

    by: Literal["linear", "sqrt", "inverse"]  # sqrt: of the ratio; inverse: divided by it
    of: str  # dotted name of the axis

    def follow(self, key: str, plain: RunConfig, new: Any) -> Scaled | None:
        """Scale a value of a configuration to a new value of the axis; None if it does not change.

        A whole number is at least 1 and rounded, others have six digits.
        """
        base, old = get(plain, key), get(plain, self.of)
        factor = float(new) / float(old)
        scaled = (
            base * {"linear": factor, "sqrt": math.sqrt(factor), "inverse": 1 / factor}[self.by]
        )
        whole = isinstance(base, int)
        value = max(1, math.floor(scaled + 0.5)) if whole else float(f"{scaled:.6g}")
        top, bottom = (old, new) if self.by == "inverse" else (new, old)
        ratio = f"{self.of.rpartition('.')[2]} {top} / {bottom}"
        times = f"sqrt({ratio})" if self.by == "sqrt" else ratio
        text = f"{key} {base:g} -> {value:g}: x {times}"
        return None if value == base else Scaled(key, base, value, text)


class _Lists(Strict):
    """Lists that a grid may also give for single presets."""

    axes: Axes | None = None
    points: tuple[Point, ...] | None = Field(default=None, min_length=1)
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)

    @field_validator("axes")
    @classmethod
    def _named(cls, axes: Axes | None) -> Axes | None:
        for key in axes or ():
            if key in ("seed", "spec", METHOD):
                raise ValueError(f"axis {key} must be written as 'seeds:' or 'methods:'")
        return axes


class Grid(_Lists):
    """A grid file; docs/files.md has its entries."""

    grid: str  # its name
    description: str
    source: str = ""
    axes: Axes = Field(default_factory=dict)
    points: tuple[Point, ...] = Field(default=({},), min_length=1)  # at each point of the axes
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    under: tuple[str, ...] = ()  # presets of a sweep that is given none; empty = `demo`
    presets: dict[str, _Lists] = Field(default_factory=dict)
    scaling: dict[str, Scale] = Field(default_factory=dict)
    exclude: tuple[dict[str, Scalar], ...] = ()
    join_tuned: bool = False  # a sweep without --methods adds those that the store has tuned

    def under_preset(self, preset: str) -> Self:
        """Return the grid with the lists that it has for a preset, else for what that extends."""
        update: dict[str, Any] = {}
        for name in reversed([*lineage(load_preset(preset))]):
            lists = self.presets.get(name, _Lists())
            update |= {key: value for key, value in lists if value is not None}
        return self.model_copy(update=update)

    @property
    def keys(self) -> tuple[str, ...]:
        """Every name that axes or points set."""
        names = [key for point in self.points for key in point if key != METHOD]
        return tuple(dict.fromkeys([*self.axes, *names]))


def check_grid(content: Mapping[str, Any], name: str) -> Grid:
    """Build a grid from the content of its file; a refusal starts with `name`."""
    with registry.of_file(name, Grid.model_fields):
        grid = Grid.model_validate(content)
        for preset in (*grid.presets, *grid.under):
            one_of("preset", preset_names())(preset)
        lists = [grid, *map(grid.under_preset, grid.presets)]
        for each in lists:
            _check_points(each)
        _check_names(grid, lists)
        return grid


def _is_for(point: Point, spec: str) -> bool:
    return METHOD not in point or registry.canonical_spec(str(point[METHOD])) == spec


def _settings(point: Point) -> Point:
    """Return a point without its method."""
    return {key: value for key, value in point.items() if key != METHOD}


def _check_points(grid: Grid) -> None:
    """Check that every point sets fields of each of its methods, and none that an axis sets."""
    specs = tuple(map(registry.canonical_spec, grid.methods))
    for point in grid.points:
        point_specs = [spec for spec in specs if _is_for(point, spec)]
        if not point_specs:
            raise ConfigError(f"points: {point[METHOD]!r} is not among {', '.join(grid.methods)}")
        for key, value in _settings(point).items():
            if key in grid.axes:
                raise ConfigError(f"points: {key} is an axis as well")
            for spec in point_specs:
                Fields.of(spec).build({**GIVEN, key: value})


def _check_names(grid: Grid, lists: Sequence[Grid]) -> None:
    """Check that every axis, exclusion and scaled value fits at least one method of the grid.

    `lists` are the grid itself, and as it is under each of its presets.
    """
    axes = [each.axes for each in lists]
    specs = dict.fromkeys(spec for each in lists for spec in each.methods)
    holder = {key: fields for fields in map(Fields.of, specs) for key in fields.infos}
    settings = [(key, value) for each in axes for key in each for value in each[key]]
    for rule in grid.exclude:
        registry.canonical_spec(str(rule.get(METHOD, grid.methods[0])))
        settings += _settings(rule).items()
    for key, value in settings:
        check_key(key, ", ".join(specs), holder)
        holder[key].build({**GIVEN, key: value})
    for key, scale in grid.scaling.items():
        check_key(key, ", ".join(specs), holder)
        if any(key in each for each in axes):
            raise ConfigError(f"scaling: {key} is an axis and cannot follow another")
        points = [value for each in axes for value in each.get(scale.of, ())]
        if not points:
            raise ConfigError(f"scaling: {key} follows {scale.of!r}, which is no axis of the grid")
        for value in (get(holder[key].build({}), key), *points):
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ConfigError(f"scaling: {key} by {scale.of}: {value!r} is not above 0")


@dataclass(frozen=True)
class TunedValues:
    """Best values of a tuning study for one method spec, by dotted name, and the study's id."""

    tuned: Mapping[str, Any]
    study: str


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    experiment: Experiment
    axes: Mapping[str, Scalar]  # names that the grid's axes and points set and its method has
    scaled: tuple[Scaled, ...] = ()  # values that an axis changed

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self.experiment.config


def load_grid(name: str | Path) -> Grid:
    """Load a grid by name, or from a file if the name ends in `.yaml`."""
    source = str(name) if str(name).endswith((".yaml", ".yml")) else f"grids/{name}.yaml"
    return check_grid(load_named("grids", str(name)), source)


def grid_records() -> list[dict[str, Any]]:
    """Return every grid that ships with fedbench, as a record for listings."""
    grids = {name: load_grid(name) for name in installed("grids")}
    return [{"name": n, **g.model_dump(mode="json", exclude_none=True)} for n, g in grids.items()]


def presets_for(grid: Grid, preset: str | None, files: Sequence[Path | str]) -> tuple[str, ...]:
    """Return the presets of a sweep: the one that it is given, else the grid's, else `demo`."""
    of_files = [
        content["preset"] for content in map(load_yaml, map(Path, files)) if "preset" in content
    ]
    named = preset or (str(of_files[-1]) if of_files else None)
    return grid.under if grid.under and named is None else (named or "demo",)


def plan(
    grid: Grid,
    *,
    preset: str = "demo",
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    dataset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    tuned: Mapping[str, TunedValues] | None = None,
    environ: Mapping[str, str] | None = None,
    content: Callable[[str], str] | None = None,
    data_dir: Path | None = None,
) -> list[Cell]:
    """Return the cells of a sweep: seed by seed, then axis by axis, then method by method.

    In this order a sweep that is cut short has compared all methods under some seeds. Equal
    configurations are one cell. Scaled values start from the value without the axis that they
    follow. `methods` and `seeds` replace the grid's, `seeds` also a seed of `config_files` and
    `environ`; a spec that is not in `tuned` stays untuned.
    The others are as in `resolve`: a field of a method goes to the methods that have it, and
    `dataset`, or `data.name` in `set`, says where one of the grid's data sets lies; cells on others
    are left out.

    Raises:
        FedbenchError: as in `resolve`; also for a value that the grid itself sets.
    """
    content = content or content_names(data_dir)  # one for all cells, which remembers its answers
    for option, items in (("--methods", methods), ("--seeds", seeds)):
        if items is not None and not items:
            raise ConfigError(f"{option}: is empty; give one, or leave it out for the grid's")
    grid = grid.under_preset(preset)
    methods = grid.methods if methods is None else methods
    specs = dict.fromkeys(map(registry.canonical_spec, methods))
    overrides = flatten(set or {}) | ({} if dataset is None else {_DATA: with_kind(dataset)})
    keys = grid.keys
    points: list[Point] = [
        {**dict(zip(grid.axes, values, strict=True)), **point}
        for values in itertools.product(*grid.axes.values())
        for point in grid.points
    ]
    if _DATA in keys and _DATA in overrides:
        place = str(overrides.pop(_DATA))
        points = _located(points, place, as_read(content, overrides))
    best = {registry.canonical_spec(spec): values for spec, values in (tuned or {}).items()}
    known = {spec: {*Fields.of(spec).infos} for spec in specs}
    for key in overrides:
        check_key(key, ", ".join(specs), {name for names in known.values() for name in names})
    for spec in specs:
        given = {**user_keys(spec, config_files, environ), **dict.fromkeys(overrides, "--set")}
        for key, source in given.items():
            if key in keys:
                raise ConfigError(
                    f"{key} is an axis of grid {grid.grid!r} and cannot be set as well [{source}];"
                    " use another grid, or `fedbench run` for one value"
                )
            if key == "seed" and (seeds is None or key in overrides):
                raise ConfigError(f"seed: give --seeds, or leave it to the grid [{source}]")

    shared: dict[str, Any] = {"preset": preset, "config_files": config_files, "environ": environ}
    shared |= {"content": content, "data_dir": data_dir}
    seeds = grid.seeds if seeds is None else seeds
    cells: dict[str, Cell] = {}
    for seed, point, spec in itertools.product(seeds, points, specs):
        if not _is_for(point, spec):
            continue
        settings = {**shared, "seed": seed, **(vars(best[spec]) if spec in best else {})}
        values = {key: value for key, value in overrides.items() if key in known[spec]}
        values |= _settings(point)
        scaled = _followers(grid, spec, values, point, settings)
        values |= {follower.key: follower.value for follower in scaled}
        experiment = resolve(spec, set=values, **settings)
        flat = flat_config(experiment.config)
        if not _excluded(grid, spec, flat):
            axis_values = {key: flat[key] for key in keys if key in known[spec]}
            key = canonical_json([spec, flat, experiment.config.code])
            cells.setdefault(key, Cell(experiment, axis_values, scaled))
    return list(cells.values())


def _located(points: Sequence[Point], place: str, content: Callable[[str], str]) -> list[Point]:
    """Return the points on the data set that a place contains, with the place as its name."""
    name = content(place) if ":" in place else place
    located = [{**point, _DATA: place} for point in points if point.get(_DATA) == name]
    if not located:
        known = ", ".join(dict.fromkeys(str(point.get(_DATA)) for point in points))
        raise ConfigError(f"{_DATA}: this grid is about {known} (got {place}, which is {name})")
    return located


def _followers(
    grid: Grid,
    spec: str,
    overrides: Mapping[str, Any],
    point: Mapping[str, Scalar],
    settings: Mapping[str, Any],
) -> tuple[Scaled, ...]:
    """Return the values of a spec that follow an axis to a point."""
    followers = []
    for key, scale in grid.scaling.items():
        if key in Fields.of(spec).infos and scale.of in point:
            without = {name: value for name, value in overrides.items() if name != scale.of}
            plain = resolve(spec, set=without, **settings).config
            followers.append(scale.follow(key, plain, point[scale.of]))
    return tuple(filter(None, followers))


def _excluded(grid: Grid, spec: str, values: Mapping[str, Any]) -> bool:
    def holds(key: str, value: Scalar) -> bool:
        if key == METHOD:
            return spec == registry.canonical_spec(str(value))
        return key in values and bool(values[key] == value)

    return any(all(holds(key, value) for key, value in rule.items()) for rule in grid.exclude)


def cells_of(rows: Sequence[Row], name: str) -> frozenset[str]:
    """Return the ids of the rows that are cells of a grid.

    A row names the grid that it was first run for. Other cells differ from a planned one, or from a
    row of this grid, only in the names that the grid varies, and in their evaluation.
    """
    grid = load_grid(name)
    keys_under = {preset: grid.under_preset(preset).keys for preset in preset_names()}

    def parts(config: RunConfig, preset: str, dataset: str) -> tuple[str, str]:
        """Return the settings of a training without the grid's names, and the values of these."""
        values, keys = flat_config(config), keys_under.get(preset, grid.keys)
        if ":" not in dataset:  # a known one is named by its content, wherever it lay
            values[_DATA] = dataset
        rest = {
            key: value
            for key, value in values.items()
            if key not in keys and not key.startswith("evaluation.")
        }
        point = {key: values.get(key) for key in keys}
        return canonical_json([config.spec, rest]), canonical_json([preset, point])

    parts_of = {}
    for row in rows:
        if {*row.method.split("+")} <= {*entries()} and not missing_code(row.code):
            with suppress(FedbenchError):  # another version, which took other settings, made it
                parts_of[row.row_id] = parts(row.config, row.preset, row.dataset)
    named = {row.row_id for row in rows if row.grid == grid.grid}
    cells = [parts_of[row_id] for row_id in named & parts_of.keys()]
    for preset in sorted({row.preset for row in rows} & {*preset_names()}):
        with suppress(ConfigError):  # it cannot be swept under this preset: no row is a cell of it
            configs = [cell.config for cell in plan(grid, preset=preset, environ={})]
            cells += [parts(config, preset, config.data.name) for config in configs]
    settings, points = {rest for rest, _ in cells}, {point for _, point in cells}
    found = {i for i, (rest, point) in parts_of.items() if rest in settings and point in points}
    return frozenset(named | found)
