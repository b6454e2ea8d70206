"""Search spaces: YAML per method and add-on, typed, checked at load, joined for a method spec."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.config.yaml_files import load_yaml, shipped
from fedbench.bench.method import registry
from fedbench.bench.runs.fields import (
    build_config,
    check_key,
    flat_config,
    known_keys,
    text_for_number,
)
from fedbench.bench.system.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


Scalar = bool | int | float | str


def _no_text(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(text_for_number(value))
    return value


Number = Annotated[float, BeforeValidator(_no_text)]
Whole = Annotated[int, BeforeValidator(_no_text)]


class FloatRange(Strict):
    """All numbers from low to high; `grid` is what a grid search visits."""

    type: Literal["float"]
    low: Number
    high: Number
    log: bool = False
    grid: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> FloatRange:
        _check_ends(self.low, self.high, self.log)
        for value in self.grid:
            if not self.holds(value):
                raise ValueError(f"grid value {value} must lie in [{self.low}, {self.high}]")
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the range."""
        return _is_number(value) and self.low <= value <= self.high

    def ends(self) -> tuple[Scalar, ...]:
        """The values whose legality implies that of all others."""
        return self.low, self.high

    def steps(self, num_steps: int | None) -> tuple[Scalar, ...]:
        """What a grid search visits: `grid`, or that many even steps; empty if neither is given."""
        if self.grid or num_steps is None:
            return self.grid
        return tuple(_even(self.low, self.high, num_steps, self.log))


class IntRange(Strict):
    """Whole numbers from low to high in steps; with `log` every number, small ones more often."""

    type: Literal["int"]
    low: Whole
    high: Whole
    log: bool = False
    step: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> IntRange:
        _check_ends(self.low, self.high, self.log)
        if self.log and self.step != 1:
            raise ValueError(f"step must be 1 with log (got {self.step})")
        if (self.high - self.low) % self.step:
            raise ValueError(f"step {self.step} must divide high - low = {self.high - self.low}")
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the numbers."""
        if not _is_number(value) or not self.low <= value <= self.high:
            return False
        return bool((value - self.low) % self.step == 0)

    def ends(self) -> tuple[Scalar, ...]:
        """The values whose legality implies that of all others."""
        return self.low, self.high

    def steps(self, num_steps: int | None) -> tuple[Scalar, ...]:
        """What a grid search visits: every number, or about that many spread evenly."""
        numbers = range(self.low, self.high + 1, self.step)
        if num_steps is None or num_steps >= len(numbers):
            return tuple(numbers)
        wanted = _even(self.low, self.high, num_steps, self.log)
        near = {min(numbers, key=lambda number: abs(number - each)) for each in wanted}
        return tuple(sorted(near))


class Choice(Strict):
    """A list of values without order."""

    type: Literal["choice"]
    values: tuple[Scalar, ...] = Field(min_length=1)

    def holds(self, value: Any) -> bool:
        """Whether a value is in the list."""
        return value in self.values

    def ends(self) -> tuple[Scalar, ...]:
        """The values whose legality implies that of all others."""
        return self.values

    def steps(self, num_steps: int | None) -> tuple[Scalar, ...]:
        """What a grid search visits: every value."""
        return self.values


Dimension = Annotated[FloatRange | IntRange | Choice, Field(discriminator="type")]


def _check_ends(low: float, high: float, log: bool) -> None:
    if low >= high:
        raise ValueError(f"low must be below high (got {low} and {high})")
    if log and low <= 0:
        raise ValueError(f"low must be above 0 with log (got {low})")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _even(low: float, high: float, num_steps: int, log: bool) -> list[float]:
    """That many values from low to high, evenly spaced (with `log` in ratio), ends exact."""
    if num_steps < 2:
        return [math.sqrt(low * high) if log else (low + high) / 2]
    inner = [step / (num_steps - 1) for step in range(1, num_steps - 1)]
    values = [low * (high / low) ** t if log else low + (high - low) * t for t in inner]
    return [low, *values, high]


class SpaceFile(Strict):
    """A search-space file of a method, an add-on, or a whole spec."""

    method: str
    source: str = ""
    space: dict[str, Dimension] = Field(min_length=1)
    points: tuple[dict[str, Scalar], ...] = ()


@dataclass(frozen=True)
class SearchSpace:
    """What may be tuned for a method spec.

    Attributes:
        spec: canonical method spec.
        dimensions: dotted name -> range or choice.
        points: settings to evaluate first; each may leave dimensions out.
        source: where ranges and points come from.
    """

    spec: str
    dimensions: Mapping[str, FloatRange | IntRange | Choice]
    points: tuple[Mapping[str, Scalar], ...]
    source: str

    def distributions(self) -> dict[str, BaseDistribution]:
        """The space as Optuna takes it."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        def make(each: FloatRange | IntRange | Choice) -> BaseDistribution:
            if isinstance(each, Choice):
                return CategoricalDistribution(each.values)
            if isinstance(each, IntRange):
                return IntDistribution(each.low, each.high, log=each.log, step=each.step)
            return FloatDistribution(each.low, each.high, log=each.log)

        return {key: make(each) for key, each in self.dimensions.items()}

    def first_points(self, config: RunConfig) -> list[dict[str, Scalar]]:
        """Complete settings to evaluate first: the configuration's own, then the points.

        A point's missing values come from the configuration. Settings outside the space (because
        the configuration is) and repeated ones are left out.
        """
        current = flat_config(config)
        own = {key: current[key] for key in self.dimensions}
        found: list[dict[str, Scalar]] = []
        for point in ({}, *self.points):
            setting = {**own, **point}
            inside = all(each.holds(setting[key]) for key, each in self.dimensions.items())
            if inside and setting not in found:
                found.append(setting)
        return found

    def grid(self, num_steps: int | None = None) -> list[dict[str, Scalar]]:
        """All combinations for a grid search; the last dimension changes fastest.

        Args:
            num_steps: values per range that declares no `grid` of its own.

        Raises:
            ConfigError: for a range without `grid` when `num_steps` is not given.
        """
        axes: list[Sequence[Scalar]] = []
        for key, each in self.dimensions.items():
            values = each.steps(num_steps)
            if not values:
                raise ConfigError(
                    f"space {self.spec}: {key} has no grid; add 'grid: [...]' to its dimension"
                )
            axes.append(values)
        return [dict(zip(self.dimensions, each, strict=True)) for each in itertools.product(*axes)]


def load_space(spec: str, *, file: Path | None = None) -> SearchSpace:
    """The search space of a method spec: the method's file joined with those of its add-ons.

    Args:
        spec: method spec.
        file: takes the place of the method's file, or of all files if it is written for the spec.

    Raises:
        UnknownNameError: for an unknown method.
        ConfigError: for a file that is missing or does not fit.
    """
    parts = [entry.name for entry in registry.parse_spec(spec)]
    canonical = "+".join(parts)
    spaces: list[SpaceFile] = []
    if file is not None:
        own = read_space(file, canonical)
        written_for = registry.canonical_spec(own.method)
        if written_for not in (canonical, parts[0]):
            raise ConfigError(f"{file} is for {own.method!r} and cannot be used with {canonical!r}")
        spaces, parts = [own], parts[1:] if written_for == parts[0] else []
    spaces += [_space_of(name, canonical) for name in parts]
    dimensions = {key: each for space in spaces for key, each in space.space.items()}
    points = tuple(point for space in spaces for point in space.points)
    return SearchSpace(canonical, dimensions, points, "; ".join(space.source for space in spaces))


def space_file(name: str) -> Path | Traversable | None:
    """The file of a method or add-on: shipped with fedbench, or `NAME.yaml` beside a plugin."""
    beside = Path(registry.entries()[name].source).parent / f"{name}.yaml"
    return shipped().get(name) or (beside if beside.is_file() else None)


def _space_of(name: str, spec: str) -> SpaceFile:
    path = space_file(name)
    if path is None:
        raise ConfigError(f"{name!r} has no search space; write one and pass it with --space FILE")
    return read_space(path, spec)


def read_space(path: Path | Traversable, spec: str) -> SpaceFile:
    """A search-space file, checked against the fields of a spec that contains its method.

    Raises:
        ConfigError: for an unknown name, an end that its field refuses, or a point or default
            outside its range.
    """
    content = load_yaml(path)
    try:
        space = SpaceFile.model_validate(content)
        _check_space(space, spec)
    except ValidationError as err:
        reason = registry.describe_validation(err, SpaceFile.model_fields)
        raise ConfigError(f"space {path.name}: {reason}") from err
    except ConfigError as err:
        raise ConfigError(f"space {path.name}: {err}") from err
    return space


def _check_space(space: SpaceFile, spec: str) -> None:
    known = known_keys(spec)
    addons = {name for name, entry in registry.entries().items() if entry.is_addon}
    for key, each in space.space.items():
        check_key(key, spec, known)
        if space.method in addons and not key.startswith(f"method.{space.method}."):
            raise ConfigError(f"{key!r} must begin with 'method.{space.method}.'")
        for value in each.ends():
            build_config(spec, {key: value})
        default = flat_config(build_config(spec, {})).get(key)
        if default is not None and not each.holds(default):
            raise ConfigError(f"{key}: its default {default!r} must lie in the range")
    for point in space.points:
        for key, value in point.items():
            if key not in space.space:
                raise UnknownNameError("dimension", key, space.space)
            if not space.space[key].holds(value):
                raise ConfigError(f"{key}: point {value!r} must lie in the range")


def space_records() -> list[dict[str, Any]]:
    """The search space of every registered spec that has one, for listing."""
    names = {name for name in registry.entries() if space_file(name) is not None}
    spaces = [load_space(spec) for spec in registry.specs() if names.issuperset(spec.split("+"))]
    return [
        {
            "spec": space.spec,
            "source": space.source,
            "dimensions": {
                key: each.model_dump(mode="json") for key, each in space.dimensions.items()
            },
            "points": [dict(point) for point in space.points],
        }
        for space in spaces
    ]
