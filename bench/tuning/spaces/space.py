"""Search spaces: a YAML file per method and add-on, checked at load, joined for a method spec."""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, StrictBool, StrictFloat, StrictInt, field_validator, model_validator

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.config.partitioners import fields_not_read
from fedbench.bench.config.yaml_files import installed, load_yaml
from fedbench.bench.experiment.fields import Fields, flat_config
from fedbench.bench.method import registry
from fedbench.bench.system.errors import ConfigError, FedbenchError, UnknownNameError
from fedbench.bench.system.plugins import leave_out
from fedbench.bench.training.server_optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

T = TypeVar("T")
Scalar = bool | int | float | str | None
_SERVER = {name for each in OPTIMIZERS.values() for name in each.reads}
_SWITCHES = ("server.optimizer", "client.optimizer", "data.partition")
"""Fields by whose value others are read or not."""


class _Range(Strict):
    """Numbers from low to high."""

    type: str
    low: float
    high: float
    log: StrictBool = False

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low must be below high (got {self.low} and {self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 with log (got {self.low})")
        return self

    def holds(self, value: Any) -> bool:
        """Return True for a value in the range."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high


class FloatRange(_Range):
    """All numbers from low to high; a grid search visits only `grid`."""

    type: Literal["float"]
    low: StrictFloat
    high: StrictFloat
    grid: tuple[StrictFloat, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for value in self.grid:
            if not self.holds(value):
                raise ValueError(f"grid value {value} must lie in [{self.low}, {self.high}]")
        return self


class IntRange(_Range):
    """Whole numbers from low to high in steps; with `log` every number, small ones more often."""

    type: Literal["int"]
    low: StrictInt
    high: StrictInt
    step: StrictInt = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.log and self.step != 1:
            raise ValueError(f"step must be 1 with log (got {self.step})")
        if (self.high - self.low) % self.step:
            raise ValueError(f"step {self.step} must divide high - low = {self.high - self.low}")
        return self

    def holds(self, value: Any) -> bool:
        """Return True for one of the numbers."""
        return super().holds(value) and bool((value - self.low) % self.step == 0)


class Choice(Strict):
    """A list of values without order."""

    type: Literal["choice"]
    values: tuple[Scalar, ...] = Field(min_length=1)

    @field_validator("values")
    @classmethod
    def _once(cls, values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        return tuple(dict.fromkeys(values))

    def holds(self, value: Any) -> bool:
        """Return True for a value in the list."""
        return value in self.values


Dimension = Annotated[FloatRange | IntRange | Choice, Field(discriminator="type")]


def _steps(part: FloatRange | IntRange | Choice) -> Sequence[Scalar]:
    """Return the values of a grid search; empty for a range of floats without a `grid`."""
    if isinstance(part, IntRange):
        return range(part.low, part.high + 1, part.step)
    return part.values if isinstance(part, Choice) else part.grid


class SpaceFile(Strict):
    """The content of a search-space file of a method, an add-on, or a whole spec."""

    method: str
    source: str = ""
    space: dict[str, Dimension] = Field(min_length=1)
    points: tuple[dict[str, Scalar], ...] = ()


@dataclass(frozen=True)
class SearchSpace:
    """The fields that may be tuned for a method spec."""

    spec: str
    dimensions: Mapping[str, FloatRange | IntRange | Choice]  # by dotted name
    points: tuple[Mapping[str, Scalar], ...]  # to evaluate first; each may leave dimensions out
    source: str  # papers or code of ranges and points

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Return the space in Optuna's types."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        def convert(part: FloatRange | IntRange | Choice) -> "BaseDistribution":
            if isinstance(part, Choice):
                return CategoricalDistribution(part.values)
            if isinstance(part, IntRange):
                return IntDistribution(part.low, part.high, log=part.log, step=part.step)
            return FloatDistribution(part.low, part.high, log=part.log)

        return {key: convert(dimension) for key, dimension in self.dimensions.items()}

    def without(self, names: Collection[str]) -> "SearchSpace":
        """Return the space without dimensions that the user has set, or that change nothing."""
        dimensions = {key: dim for key, dim in self.dimensions.items() if key not in names}
        if not dimensions:
            listed = ", ".join(sorted(self.dimensions))
            raise ConfigError(
                f"every dimension of the search space is set ({listed}): nothing is left to tune;"
                " use `fedbench run`, or unset one"
            )
        points = tuple({k: v for k, v in point.items() if k in dimensions} for point in self.points)
        return replace(self, dimensions=dimensions, points=points)

    @property
    def size(self) -> int | None:
        """Number of different settings; None if there is a range of floats."""
        parts = self.dimensions.values()
        if any(isinstance(part, FloatRange) for part in parts):
            return None
        return math.prod(len(_steps(part)) for part in parts)

    def settings(self) -> Iterator[dict[str, Scalar]]:
        """Yield all settings of a space with listed values; the last dimension changes fastest."""
        axes = [_steps(part) for part in self.dimensions.values()]
        for values in itertools.product(*axes):
            yield dict(zip(self.dimensions, values, strict=True))

    def first_points(self, config: RunConfig) -> list[dict[str, Scalar]]:
        """Return complete settings to evaluate first: the configuration, then the points.

        A point's missing values come from the configuration. Settings outside the space (because
        the configuration is) and repeated ones are left out.
        """
        values = flat_config(config)
        start = {key: values[key] for key in self.dimensions}
        settings: list[dict[str, Scalar]] = []
        for point in ({}, *self.points):
            setting = {**start, **point}
            inside = all(part.holds(setting[key]) for key, part in self.dimensions.items())
            if inside and setting not in settings:
                settings.append(setting)
        return settings

    def grid(self) -> list[dict[str, Scalar]]:
        """Return all combinations for a grid search; the last dimension changes fastest."""
        if without := [key for key, part in self.dimensions.items() if not len(_steps(part))]:
            raise ConfigError(
                f"space {self.spec}: {without[0]} has no grid; add 'grid: [...]' to its dimension"
            )
        return [*self.settings()]


def load_space(fields: Fields, *, file: Path | None = None) -> SearchSpace:
    """Join the search-space files of a method and its add-ons.

    Another `file` replaces the method's, or all if its `method` is the whole spec.
    """
    parts = [entry.name for entry in fields.parts]
    spaces: list[SpaceFile] = []
    if file is not None:
        space = read_space(file, fields)
        target = registry.canonical_spec(space.method)
        if target not in (fields.spec, parts[0]):
            raise ConfigError(
                f"{file} is for {space.method!r} and cannot be used with {fields.spec!r}"
            )
        spaces, parts = [space], parts[1:] if target == parts[0] else []
    for name in parts:
        if (path := space_file(name)) is not None:
            spaces.append(read_space(path, fields))
        elif name == fields.parts[0].name or _has_constants(name):
            raise ConfigError(
                f"{name!r} has no search space; write one and pass it with --space FILE"
            )
    dimensions = {key: part for space in spaces for key, part in space.space.items()}
    points = tuple(point for space in spaces for point in space.points)
    return SearchSpace(fields.spec, dimensions, points, "; ".join(space.source for space in spaces))


def _has_constants(name: str) -> bool:
    """Return False for an add-on without fields of its own, which has nothing to tune."""
    return bool({*registry.entries()[name].cls.model_fields} - {"base"})


def space_file(name: str) -> Path | Traversable | None:
    """Return the file of a method or add-on: shipped, or `NAME.yaml` in the folder of a plugin."""
    own = Path(registry.entries()[name].source).parent / f"{name}.yaml"
    return installed().get(name) or (own if own.is_file() else None)


def read_space(path: Path | Traversable, fields: Fields) -> SpaceFile:
    """Read a search-space file and check it against the fields of a spec with its method."""
    content = load_yaml(path)
    with registry.of_file(f"space {path}", SpaceFile.model_fields):
        space = SpaceFile.model_validate(content)
        addons = {name for name, entry in registry.entries().items() if entry.is_addon}
        for key, part in space.space.items():
            if space.method in addons and not key.startswith(f"method.{space.method}."):
                raise ConfigError(f"{key!r} must begin with 'method.{space.method}.'")
            for value in part.values if isinstance(part, Choice) else (part.low, part.high):
                fields.build({key: value})  # if the ends are valid, so are all others
        for key, value in (item for point in space.points for item in point.items()):
            if key not in space.space:
                raise UnknownNameError("dimension", key, space.space)
            if not space.space[key].holds(value):
                raise ConfigError(f"{key}: point {value!r} must lie in the range")
        return space


def space_records() -> list[dict[str, Any]]:
    """Return the search space of every registered spec that has one, for listings."""
    names = {n for n in registry.entries() if space_file(n) is not None or not _has_constants(n)}
    specs = [spec for spec in registry.specs() if names.issuperset(spec.split("+"))]
    spaces, wrong = [], set[str]()
    for spec in specs:
        parts = {*spec.split("+")}
        if wrong.isdisjoint(parts):
            space = for_list(parts, partial(load_space, Fields.of(spec)))
            if space is None:
                wrong |= parts - installed().keys()
            else:
                spaces.append(space)
    return [
        {
            "name": space.spec,
            **vars(space),
            "dimensions": {
                key: part.model_dump(mode="json") for key, part in space.dimensions.items()
            },
        }
        for space in spaces
    ]


def for_list(names: Collection[str], read: Callable[[], T]) -> T | None:
    """Read a space of these methods and add-ons for a list.

    A wrong one of a plugin is None, with a warning: only its own runs need it.
    """
    try:
        return read()
    except FedbenchError as err:
        if installed().keys() >= {*names}:
            raise
        leave_out(err)
        return None


def unread(config: RunConfig) -> dict[str, str]:
    """Map fields that a run does not read to the setting because of which it does not."""
    server, client, partition = config.server.optimizer, config.client.optimizer, config.data
    found = {
        f"server.{name}": f"server.optimizer={server}"
        for name in _SERVER - {*OPTIMIZERS[server].reads}
    }
    if client == "adam":
        found["client.momentum"] = "client.optimizer=adam"
    for name in fields_not_read(partition.partition):
        found[f"data.{name}"] = f"data.partition={partition.partition}"
    return found


def dead_dimensions(
    space: SearchSpace, configure: Callable[[dict[str, Any]], RunConfig]
) -> dict[str, str]:
    """Map dimensions that no trial reads to the reason.

    `configure` makes the configuration of parameters. ConfigError if no other dimension is there.
    """
    switches = {
        key: part.values
        for key, part in space.dimensions.items()
        if key in _SWITCHES and isinstance(part, Choice)
    }
    every = [
        unread(configure(dict(zip(switches, values, strict=True))))
        for values in itertools.product(*switches.values())
    ]
    dead = {key: every[0][key] for key in space.dimensions if all(key in names for names in every)}
    if len(dead) == len(space.dimensions):
        reasons = "; ".join(f"{key} is not read with {why}" for key, why in dead.items())
        raise ConfigError(
            f"the search space of {space.spec}: {reasons}: all trials would be the same run; set"
            " another value there, or give --space with other dimensions"
        )
    return dead
