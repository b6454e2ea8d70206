"""Dotted names of a configuration: which exist for a spec, and what text and values they take."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten, unflatten
from fedbench.bench.config.overrides import _FLOAT
from fedbench.bench.method import registry
from fedbench.bench.system.errors import ConfigError, UnknownNameError, nearest


def field_infos(spec: str) -> dict[str, FieldInfo]:
    """Every dotted name that may be set for a method spec, with its field.

    Raises:
        UnknownNameError, ConfigError: for a bad spec.
    """
    infos: dict[str, FieldInfo] = {}
    for name, info in RunConfig.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            inner = info.annotation.model_fields
            infos.update({f"{name}.{field}": each for field, each in inner.items()})
        elif name not in ("spec", "method"):
            infos[name] = info
    for entry in registry.parse_spec(spec):
        prefix = f"method.{entry.name}" if entry.is_addon else "method"
        own = {field: info for field, info in entry.cls.model_fields.items() if field != "base"}
        infos.update({f"{prefix}.{field}": info for field, info in own.items()})
    return infos


def known_keys(spec: str) -> tuple[str, ...]:
    """Every dotted name that may be set for a method spec, sorted."""
    return tuple(sorted(field_infos(spec)))


def check_key(key: str, spec: str, known: Collection[str]) -> None:
    """Refuses a name that the spec does not have.

    Raises:
        ConfigError: with the nearest match and the neighbours of the name.
    """
    if key in known:
        return
    if key == "spec":
        raise ConfigError("'spec' cannot be set: the method is the argument SPEC")
    first, _, rest = key.partition(".")
    entry = registry.entries().get(rest.partition(".")[0]) if first == "method" else None
    if entry is not None and entry.is_addon and entry.name not in spec.split("+")[1:]:
        raise ConfigError(f"{key!r} belongs to the add-on {entry.name!r}, which is not in {spec!r}")
    owner = spec if first == "method" else "RunConfig"
    last = key.rpartition(".")[2]
    alike = sorted(name for name in known if name.rpartition(".")[2] == last)  # elsewhere
    close = alike or [name for name in [nearest(key, known)] if name is not None]
    hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    group = f"{key.rpartition('.')[0]}."
    near = ", ".join(sorted(name[len(group) :] for name in known if name.startswith(group)))
    allowed = f"; {group}… has {near}" if near else ""
    raise ConfigError(f"{key!r} is not a field of {owner}{hint}{allowed}")


def check_kind(key: str, value: Any, info: FieldInfo) -> None:
    """Refuses a value of another kind than the field's, which pydantic would convert in silence.

    Text is no number, a boolean is no number, a number is no boolean. Ranges are pydantic's part.

    Raises:
        ConfigError: what must be given and what was.
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
    if given in kinds or (given is int and float in kinds) or (given is float and int in kinds):
        return
    noun = _noun(kinds)
    if isinstance(value, str) and kinds & {int, float} and _FLOAT.fullmatch(value.strip()):
        raise ConfigError(f"{key}: {text_for_number(value)}")
    remedy = "; write it in quotes" if str in kinds and given is not type(None) else ""
    raise ConfigError(f"{key}: must be {noun} (got {show(value)}){remedy}")


def build_config(spec: str, flat: Mapping[str, Any]) -> RunConfig:
    """A configuration with these dotted values and defaults elsewhere, the method's included.

    Raises:
        ConfigError: for a name or a value that does not fit; the message begins with the name.
    """
    infos = field_infos(spec)
    for key, value in flat.items():
        check_key(key, spec, infos)
        check_kind(key, value, infos[key])
    nested = unflatten(flat)
    try:
        method = registry.dump(registry.create(spec, nested.pop("method", {})))
        return RunConfig.model_validate(
            {**nested, "spec": registry.canonical_spec(spec), "method": method}
        )
    except ValidationError as err:
        raise ConfigError(_must(registry.describe_validation(err, infos))) from err
    except UnknownNameError:
        raise
    except ConfigError as err:
        raise ConfigError(_must(str(err))) from err


def flat_config(config: RunConfig) -> dict[str, Any]:
    """Every value of a configuration by dotted name, without `spec`."""
    values = flatten(config.model_dump(mode="json"), keep=field_infos(config.spec))
    return {key: value for key, value in values.items() if key != "spec"}


def get(config: RunConfig, key: str) -> Any:
    """The value of a dotted name.

    Raises:
        ConfigError: for a name that the configuration does not have.
    """
    values = flat_config(config)
    check_key(key, config.spec, values)
    return values[key]


def show(value: Any) -> str:
    """A value as YAML writes it."""
    dumped: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return dumped.removesuffix("\n").removesuffix("\n...")


def text_for_number(text: str) -> str:
    """What is wrong with text in place of a number, with the form that YAML 1.1 takes for one.

    >>> text_for_number("1e3")
    "'1e3' is text in YAML; write 1.0e+3"
    """
    mantissa, e, exponent = text.strip().lower().partition("e")
    if e:
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        exponent = exponent if exponent[:1] in ("+", "-") else f"+{exponent}"
    return f"{text!r} is text in YAML; write {mantissa}{e}{exponent}"


def _must(message: str) -> str:
    return message.replace(": input should be", ": must be", 1)


def _args(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that a field takes; a type of several parts counts as tuple or as itself."""
    if parts := _args(annotation):
        return set().union(*(_kinds(part) for part in parts))
    if get_origin(annotation) is Literal:
        return {type(option) for option in get_args(annotation)}
    if get_origin(annotation) in (tuple, list, Sequence):
        return {tuple}
    return {annotation}


def _options(annotation: Any) -> tuple[str, ...]:
    """The words that a field takes, if words are all it takes; also for a list of words."""
    if get_origin(annotation) in (tuple, list, Sequence):
        return _options(get_args(annotation)[0])
    options = get_args(annotation) if get_origin(annotation) is Literal else ()
    return options if all(isinstance(option, str) for option in options) else ()


def _noun(kinds: set[Any]) -> str:
    names = {tuple: "a list", float: "a number", int: "a whole number", bool: "true or false"}
    names |= {str: "text", type(None): "null"}
    return " or ".join(name for kind, name in names.items() if kind in kinds)
