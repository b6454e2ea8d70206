"""Keyword arguments in groups: dataclasses that functions share, given field by field."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

from fedbench.bench.system.errors import UnknownNameError, did_you_mean


@dataclass(frozen=True)
class Option:
    """A field of a dataclass as an option of the command line, in the `Annotated` of its type."""

    help: str
    flags: str = ""  # its names there, separated by blanks; empty = the field's
    limits: Mapping[str, Any] = field(default_factory=dict)  # `min` and `max` of a number
    check: Callable[[Any], Any] | None = None  # returns what the field takes, without heavy imports
    kind: Any = None  # type on the command line, if it is another one
    metavar: str | None = None  # in the help; None = N, X, NAME or FILE by its type
    panel: str = ""  # its heading in the help; empty = the command's own options


def one_of(kind: str, known: Collection[str]) -> Callable[[str | None], str | None]:
    """Return the check of an option that takes one of some names."""

    def check(name: str | None) -> str | None:
        if name is not None and name not in known:
            raise UnknownNameError(kind, name, known)
        return name

    return check


def parse_names(text: str | None) -> list[str] | None:
    """Split `a,b` into its words; None stays None."""
    return None if text is None else [word for word in map(str.strip, text.split(",")) if word]


P = ParamSpec("P")
R = TypeVar("R")


def grouped(function: Callable[P, R], *, annotated: bool = False) -> Callable[..., R]:
    """Take the fields of dataclass parameters as keywords.

    Signature and docstring of the result list the fields in place of their group; their texts are
    the help of their `Option`. All fields need defaults. With `annotated` the signature keeps what
    an `Annotated` says.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Places: device: str = "auto"
    >>> @grouped
    ... def show(*, places: Places, count: int = 1) -> str: return f"{places.device} {count}"
    >>> show(device="cpu", count=2)
    'cpu 2'
    >>> inspect.signature(show)
    <Signature (*, device: str = 'auto', count: int = 1)>
    >>> show(devise="cpu")
    Traceback (most recent call last):
    TypeError: show() has no argument 'devise'; did you mean 'device'? (known: count, device)
    """
    hints = get_type_hints(function, include_extras=annotated)
    parameters = inspect.signature(function).parameters
    groups: dict[str, Any] = {name: hints[name] for name in parameters if is_dataclass(hints[name])}
    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name not in groups:
            flat.append(parameter.replace(annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=annotated)
        flat += [
            parameter.replace(name=field.name, default=field.default, annotation=types[field.name])
            for field in fields(groups[name])
        ]
    names = [parameter.name for parameter in flat]

    @wraps(function)
    def call(*args: Any, **given: Any) -> R:
        for unknown in sorted(given.keys() - {*names}):
            hint = did_you_mean(unknown, names)
            raise TypeError(f"{function.__name__}() has no argument {unknown!r}{hint}")
        for name, kind in groups.items():
            own = given.keys() & {field.name for field in fields(kind)}
            given[name] = kind(**{field: given.pop(field) for field in own})
        return function(*args, **given)

    # Typer reads both the signature and the annotations.
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    lines = inspect.cleandoc(function.__doc__ or "").split("\n")
    entries = {f"    {name}": kind for name, kind in groups.items()}
    described = [_described(entries.get(line.partition(":")[0])) or line for line in lines]
    call.__doc__ = "\n".join(described)
    return call


def _described(kind: type | None) -> str:
    """List name and help of each field of a dataclass; fields of base classes come first."""
    hints = {} if kind is None else get_type_hints(kind, include_extras=True)
    return "\n".join(
        f"    {name}: {option.help}"
        for name, hint in hints.items()
        for option in getattr(hint, "__metadata__", ())
        if isinstance(option, Option)
    )
