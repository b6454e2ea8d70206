"""Dotted names of a configuration under a method spec, their fields, and their values."""

import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten, unflatten
from fedbench.bench.config.yaml_files import dump_yaml
from fedbench.bench.experiment.code import foreign_code
from fedbench.bench.method import registry
from fedbench.bench.method.registry import Registered
from fedbench.bench.nn.weights import read_weights
from fedbench.bench.system.errors import ConfigError, UnknownNameError, nearest
from fedbench.bench.system.files import user_path
from fedbench.bench.training.devices import with_devices

GIVEN = {"data.natural_column": "any", "data.partition_file": "any"}  # to try one value alone
_MOST_NAMES = 40  # that a message lists


@dataclass(frozen=True)
class Fields:
    """The fields of a configuration that may be set for a method with its add-ons.

    Attributes:
        parts: the method, then its add-ons in order.
    """

    parts: tuple[Registered, ...]

    @classmethod
    def of(cls, spec: str) -> Self:
        """Return the fields of a method spec.

        Raises:
            FedbenchError: as `parse_spec`.
        """
        return cls(registry.parse_spec(spec))

    @cached_property
    def spec(self) -> str:
        """The method spec without aliases."""
        return registry.name_of(self.parts)

    @cached_property
    def infos(self) -> Mapping[str, FieldInfo]:
        """Every field by dotted name."""
        infos: dict[str, FieldInfo] = {}
        for name, info in RunConfig.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                inner = info.annotation.model_fields
                infos.update({f"{name}.{field}": part for field, part in inner.items()})
            elif name not in ("spec", "method", "code"):
                infos[name] = info
        for entry in self.parts:
            prefix = f"method.{entry.name}" if entry.is_addon else "method"
            fields = entry.cls.model_fields.items()
            infos.update({f"{prefix}.{field}": info for field, info in fields if field != "base"})
        return infos

    def check(self, key: str, value: Any) -> None:
        """Refuse a dotted name that is none of them, or a value of another type than its field's.

        Raises:
            ConfigError: names the nearest match, or the type.
        """
        check_key(key, self.spec, self.infos)
        _check_kind(key, value, self.infos[key])

    def build(self, flat: Mapping[str, Any]) -> RunConfig:
        """Build a configuration from dotted values; all other fields keep their defaults.

        Raises:
            ConfigError: for an unknown name or a bad value; the message begins with the name.
        """
        for key, value in flat.items():
            self.check(key, value)
        nested = unflatten(flat)
        try:
            method = registry.dump(registry.make(self.parts, nested.pop("method", {})))
            values = {**nested, "spec": self.spec, "method": method}
            return with_devices(_with_files(RunConfig.model_validate(values)))
        except ValidationError as err:
            raise ConfigError(_must(registry.describe_validation(err, self.infos))) from err
        except UnknownNameError:
            raise
        except ConfigError as err:
            raise ConfigError(_must(str(err))) from err


def check_key(key: str, spec: str, known: Collection[str]) -> None:
    """Refuse a name that the spec does not have.

    Raises:
        ConfigError: names the nearest match and the other fields of the same group.
    """
    if key in known:
        return
    if key == "spec":
        raise ConfigError("'spec' cannot be set: the method is the argument SPEC")
    first, _, rest = key.partition(".")
    entry = registry.entries().get(rest.partition(".")[0]) if first == "method" else None
    if entry is not None and entry.is_addon and entry.name not in spec.split("+")[1:]:
        raise ConfigError(f"{key!r} belongs to the add-on {entry.name!r}, which is not in {spec!r}")
    owner = spec if first == "method" else "a configuration"
    last = key.rpartition(".")[2]
    alike = sorted(name for name in known if name.rpartition(".")[2] == last)  # elsewhere
    close = alike or [name for name in [nearest(key, known)] if name is not None]
    hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    if inside := [name for name in known if name.startswith(f"{key}.")]:
        raise ConfigError(f"{key!r} is a section; set fields of it, such as {min(inside)}")
    group = f"{key.rpartition('.')[0]}."
    near = sorted(name[len(group) :] for name in known if name.startswith(group))
    allowed = f"; {group}… has {', '.join(near)}" if 0 < len(near) <= _MOST_NAMES else ""
    raise ConfigError(f"{key!r} is not a field of {owner}{hint}{allowed}")


def _check_kind(key: str, value: Any, info: FieldInfo) -> None:
    """Refuse a value of another type than the field's, which pydantic would convert in silence.

    Neither text nor a boolean is taken for a number, nor a number for a boolean. Pydantic checks
    ranges.
    """
    options = _options(info.annotation)
    items = value if isinstance(value, list | tuple) else [value]
    if options and all(isinstance(item, str) for item in items):
        for item in items:
            if item not in options:
                raise UnknownNameError(key, item, options)
    kinds = _kinds(info.annotation)
    if not kinds <= {bool, int, float, str, tuple, type(None)}:
        return  # a field of a richer type: pydantic alone decides
    given = tuple if isinstance(value, list) else type(value)
    # Of a float for a whole number pydantic takes 3.0 and refuses 3.5.
    if given in kinds or (given is int and float in kinds) or (given is float and int in kinds):
        return
    remedy = "; write it in quotes" if str in kinds and given is not type(None) else ""
    raise ConfigError(f"{key}: must be {_noun(kinds)} (got {show(value)}){remedy}")


def flat_config(config: RunConfig) -> dict[str, Any]:
    """Map every dotted name of a configuration, except `spec`, to its value."""
    values = flatten(config.model_dump(mode="json"), keep=Fields.of(config.spec).infos)
    return {k: v for k, v in values.items() if k != "spec" and not k.startswith("code")}


def canonical(config: RunConfig) -> RunConfig:
    """The same configuration without aliases, with every field of its method and every hash."""
    parts = registry.parse_spec(config.spec)
    method = registry.dump(registry.make(parts, config.method))
    named = {"spec": registry.name_of(parts), "method": method}
    return _with_files(config.model_copy(update=named))


def _with_files(config: RunConfig) -> RunConfig:
    """Return the configuration with the code of other packages as it is installed now.

    It also gets place and hash of the file that its encoder starts from.

    Raises:
        FedbenchError: if the file cannot be read, or is not that of a hash which is given.
    """
    config = config.model_copy(update={"code": foreign_code(config)})
    if config.model.weights is None:
        return config
    place = user_path(config.model.weights)
    found = {"weights_sha256": read_weights(config.model).sha256}
    if place.exists():  # else it is the name of an encoder that ships
        found["weights"] = str(place.resolve())
    return config.model_copy(update={"model": config.model.model_copy(update=found)})


def get(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted name."""
    values = flat_config(config)
    check_key(key, config.spec, values)
    return values[key]


def show(value: Any) -> str:
    """Format a value as YAML on one line."""
    dumped = dump_yaml(value, flow=True)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _must(message: str) -> str:
    return message.replace(": input should be", ": must be", 1)


def _kinds(annotation: Any) -> set[Any]:
    """Return the plain types that a field takes; a sequence counts as tuple."""
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    if get_origin(annotation) is Literal:
        return {type(option) for option in get_args(annotation)}
    if get_origin(annotation) in (tuple, list, Sequence):
        return {tuple}
    return {annotation}


def _options(annotation: Any) -> tuple[str, ...]:
    """Return the words that a field, or an item of its list, is limited to; else ()."""
    if get_origin(annotation) in (tuple, list, Sequence):
        return _options(get_args(annotation)[0])
    options = get_args(annotation) if get_origin(annotation) is Literal else ()
    return options if all(isinstance(option, str) for option in options) else ()


def _noun(kinds: set[Any]) -> str:
    names = {tuple: "a list", float: "a number", int: "a whole number", bool: "true or false"}
    names |= {str: "text", type(None): "null"}
    return " or ".join(name for kind, name in names.items() if kind in kinds)
